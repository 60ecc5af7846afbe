"""What goes in and comes out: the record of an iteration, a device, a plan.

``model`` and ``device`` say what they are, ``copies`` how moves are handed on, ``codec`` how all is stored; ``rows``
are what a trace calls operations, ``units`` sizes and times as people write them, ``limits`` what none of them can
hold.
"""

from __future__ import annotations

from .device import ASSUMED_LINK, HOST_COSTS
from .model import Device, Plan, Trace

__all__ = ["ASSUMED_LINK", "HOST_COSTS", "Device", "Plan", "Trace"]
