"""lgm: the Layered Graph Model. Records of training iterations in, plans for a small memory out.

Needs NumPy only, and never imports torch or vtensor: a plan can be made on any machine.

    import lgm
    trace = lgm.load_trace("resnet50.npz")
    plan = lgm.analyze(trace, lgm.Device(budget_chunks=256, out_speed=6e9, in_speed=6e9))
    lgm.save_plan(plan, "plan.npz")

The same from the command line: ``lgm analyze resnet50.npz --budget 512MiB --link 6GB/s --recompute never -o plan.npz``;
without ``--recompute``, as with ``recompute="auto"`` here, what is cheaper to recompute is not copied. ``DESIGN.md``
in this folder walks through a small example by hand.
"""

from __future__ import annotations

from .analysis import Recompute, analyze
from .errors import FormatError, InfeasibleError, InvalidPlanError, LgmError
from .records.codec import load_plan, load_trace, save_plan, save_trace
from .records.model import Device, Plan, Prediction, Trace
from .switches import Switches
from .validation import validate

__all__ = [
    "Device",
    "FormatError",
    "InfeasibleError",
    "InvalidPlanError",
    "LgmError",
    "Plan",
    "Prediction",
    "Recompute",
    "Switches",
    "Trace",
    "analyze",
    "load_plan",
    "load_trace",
    "save_plan",
    "save_trace",
    "validate",
]
