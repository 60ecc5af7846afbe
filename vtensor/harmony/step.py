"""One training step: all microbatches of a batch go through the packs by turns.

Covers: what a microbatch does while it has its turn, what is due between two ranks (a pack's update), and that the
model is as it was afterwards, however the step ends.
Leaves: whose turn it is (``turns``), the update (``updates``), what the steps of a trainer have in common, and what
comes after all packs, such as clipping (``trainer``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import native
from ..session.lifecycle import active_config, is_enabled
from .generators import Generators
from .microbatches import scalar
from .packing import Packing
from .pipeline import Calls, Pipeline
from .processes.replicas import Replicas
from .turns.again import explained
from .turns.layer_order import LayerOrder
from .turns.turns import Turns
from .turns.weave import Weave
from .updates import Updates

__all__ = ["Means", "Step"]


@dataclass(frozen=True, slots=True)
class Means:
    """What all steps of a trainer have in common."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], torch.Tensor]
    packing: Packing
    recompute: bool
    scaler: Any
    """A ``GradScaler``, or None."""
    by_packs: bool
    """Each pack is updated right after its backward."""
    replicas: Replicas | None
    pipeline: Pipeline | None


class Step:
    """Of some microbatches.

    Parameters
    ----------
    make_updates
        Given what says whose turn it is (the index of a microbatch).
    """

    def __init__(
        self, means: Means, batches: list[Any], make_updates: Callable[[Callable[[], int | None]], Updates]
    ) -> None:
        self._means, self._batches = means, batches
        self._generators = Generators(len(batches))
        self._weave = Weave(native.load(), self._generators)
        self.updates = make_updates(self._weave.current)
        here = None if means.pipeline is None else means.pipeline.here
        self._turns = Turns(means.model, self._weave, means.recompute, here)
        self._losses: dict[int, torch.Tensor] = {}
        self._order: LayerOrder | None = None  # while the first microbatch, by itself, shows it
        self._calls: Calls | None = None  # of layers in other processes

    @property
    def seeds(self) -> list[int]:
        """Of all microbatches but the first."""
        return self._generators.seeds

    def run(self) -> list[torch.Tensor]:
        """All microbatches; their losses, each divided by how many there are."""
        packing, replicas, pipeline = self._means.packing, self._means.replicas, self._means.pipeline
        with contextlib.ExitStack() as leaving:  # the model is as it was, whatever ends the step
            leaving.callback(self.updates.remove)
            if replicas is not None:
                replicas.share_buffers()
                # Packs count collectives, and budgets may differ.
                packing.budget = replicas.least(active_config().budget if is_enabled() else 0)
            leaving.callback(self._turns.remove)
            if packing.ordered:
                self._turns.take(packing.packs(), packing.constants)
            else:
                self._turns.begin_alone(packing.packs())
                leaving.callback(self._look_for_order().remove)
            if pipeline is not None:
                self._calls = pipeline.begin(len(self._batches), self._turns.packs, self._weave)
                leaving.callback(self._calls.remove)
            self._weave.run(self._run_one, len(self._batches), self._last_rank, self._between)
        self._generators.finish()
        return [self._losses[index] for index in range(len(self._batches))]

    def _look_for_order(self) -> LayerOrder:
        model, found, weave = self._means.model, self._means.packing.found, self._weave
        # It must not hold this step, which holds it: microbatches and losses would live until a collection of garbage.
        self._order = LayerOrder(model, found, lambda: weave.current() == 0, torch.is_grad_enabled)
        return self._order

    def _run_one(self, index: int) -> None:
        means = self._means
        if self._order is not None and index == 1:
            self._turns.take(means.packing.packs(), means.packing.constants)
        value = scalar(means.loss(means.model, self._batches[index]))
        self._turns.forward_is_over(index)
        if self._calls is not None:
            self._calls.take_state()
        value = value / len(self._batches)
        self._losses[index] = value.detach()
        with explained() if means.recompute else contextlib.nullcontext():
            (value if means.scaler is None else means.scaler.scale(value)).backward()
        if self._order is not None and index == 0:
            means.packing.order_by(self._order, list if means.replicas is None else means.replicas.agreed)

    def _last_rank(self) -> int:
        return self._turns.last_rank + (self._calls is not None)

    def _between(self, rank: int) -> None:
        """All microbatches have reached this rank."""
        if rank == self._turns.first_of_backward and (written := self._turns.unseen()):  # before the first update
            self._means.packing.give_up(written)
        if self._means.by_packs and rank >= self._turns.first_of_backward:
            count = len(self._batches)
            self._generators.enter(count)
            self.updates.update_complete()
            self._generators.leave(count)
