"""Before the first step of a pipeline: one microbatch without a trace, by the first process alone.

Covers: in which order layers run, where they will live, whether the loss can do without them.
Leaves: what is to be known of the program (``pipeline.look``), where layers live (``pipeline.placement``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import HarmonyError
from .buffers.copies import BufferCopies
from .generators import Generators
from .packing import Packing
from .pipeline import Look, Pipeline
from .turns.layer_order import LayerOrder

__all__ = ["rehearse"]


def rehearse(pipeline: Pipeline, packing: Packing, model: nn.Module, loss: Callable[[], Any]) -> None:
    """Order the packs and place them in processes; `loss` is called, and once more with layers left out.

    Raises
    ------
    HarmonyError
        If the loss needs more of layers in other processes than what they return, or writes weights.
    """
    generators = Generators(1)

    def again() -> Any:
        generators.enter(0)
        with torch.no_grad(), BufferCopies(model):
            return loss()

    def watched() -> tuple[Look, Any]:
        with torch.no_grad(), BufferCopies(model), pipeline.look() as look:
            order = LayerOrder(model, packing.found)
            try:
                found = loss()
            finally:
                order.remove()
            packing.order_by(order)
            return look, found

    try:
        look, found = watched()
        if not packing.ordered:
            generators.enter(0)
            look, found = watched()
            if not packing.settled:
                raise HarmonyError(
                    "the forward of this model writes weights, as MoCo's momentum encoder is written: the processes of "
                    "a pipeline could not keep the ordinary loop's order. Make the model anew, as it was written "
                    "twice by now, and train without pipeline=True"
                )
        pipeline.place(packing.packs(), look)
        look.check(again, found, [layer for layer in packing.layers if not pipeline.here(layer)])
    finally:
        generators.finish()
