"""A session: from ``enable()`` to ``disable()``.

``enabling`` is what users call, ``lifecycle`` what begins and ends in which order. ``adoption`` takes in tensors that
are older, ``shelves`` puts those that last side by side, ``reserve`` keeps room free, ``watchdog`` says when all stands
still.
"""

from __future__ import annotations

from .enabling import adopt, disable, enable, enabled, keeping_the_session
from .lifecycle import is_enabled

__all__ = ["adopt", "disable", "enable", "enabled", "is_enabled", "keeping_the_session"]
