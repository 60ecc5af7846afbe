"""Processes that exchange tensors: what a collective is given is seen from the first one on.

Its threads read and write that by system calls, which fail for what is away; so it stays where it is. On a processor
operations are seen only once memory is short, and what was given before that would leave.

Covers: process groups that are there, and new ones.
Leaves: what is done with arguments of collectives (``kernels/torch/torch_observer.cpp``).
"""

from __future__ import annotations

import functools
from typing import Any

from torch import distributed

from ..native.core import Core
from .patches import replace

__all__ = ["watch_collectives"]


def watch_collectives(core: Core) -> None:
    """Let `core` see operations once there is a process group, until :func:`vtensor.hooks.patches.restore`."""
    if not distributed.is_available():
        return
    if distributed.is_initialized():
        core.observe()
    groups = distributed.distributed_c10d
    make = groups._new_process_group_helper  # all ways to make one lead there

    @functools.wraps(make)
    def making(*args: Any, **kwargs: Any) -> Any:
        core.observe()
        return make(*args, **kwargs)

    replace(groups, "_new_process_group_helper", making)
