"""All that makes the microbatches of one step take turns.

Covers: putting it on the model once packs are known, and taking it off. Until then each microbatch runs to its end.
Leaves: what each part does (``stops``, ``between``, ``kept``, ``again``), whose turn it is (``weave``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from torch import nn

from ..buffers.kept import Kept
from ..buffers.memories import Constants, Place
from .again import Again
from .between import Between
from .stops import Stops
from .weave import Weave

__all__ = ["Turns"]


class Turns:
    """Of one step.

    `here` says which layers are in this process, if not all are. What lies between packs is not kept in order then:
    waiting for it would cost the overlap of processes.
    """

    def __init__(
        self, model: nn.Module, weave: Weave, recompute: bool, here: Callable[[nn.Module], bool] | None = None
    ) -> None:
        self._model, self._weave, self._recompute, self._here = model, weave, recompute, here
        self.packs: list[list[nn.Module]] = []
        self._parts: list[Stops | Between | Kept | Again] = []
        self._stops: Stops | None = None
        self._between: Between | None = None

    def begin_alone(self, packs: list[list[nn.Module]]) -> None:
        """The first microbatch runs by itself, and shows by which packs the others take turns."""
        self._run_again(packs, None)

    def take(self, packs: list[list[nn.Module]], constants: Constants | None) -> None:
        """From now on, by these packs; `constants` are the buffers known to be."""
        self.remove()
        self.packs = packs
        self._stops = Stops(packs, self._weave, self._here)
        self._parts.append(self._stops)
        if self._here is None and len(packs) > 1:  # else each microbatch runs to its end
            self._between = Between(self._model, packs, self._weave, self._stops, constants)
            self._parts.append(self._between)
            self._between.begin()
            self._parts.append(Kept(self._between.snapshot, constants, self._run_twice(packs)))
        self._stops.begin()  # a microbatch stops first, and then waits for those before it
        self._run_again(packs, constants)

    def _run_again(self, packs: list[list[nn.Module]], constants: Constants | None) -> None:
        self._parts.append(Again(self._run_twice(packs), constants))

    def _run_twice(self, packs: list[list[nn.Module]]) -> list[nn.Module]:
        """The last pack's backward follows its forward at once."""
        layers = itertools.chain(*packs[:-1]) if self._recompute else ()
        return [each for each in layers if self._here is None or self._here(each)]

    @property
    def first_of_backward(self) -> int:
        """The rank at which a pack's backward has ended for the first time; ranks are explained in ``stops``."""
        return len(self.packs) + 1

    @property
    def last_rank(self) -> int:
        """Of microbatches that are through."""
        return 2 * len(self.packs)

    def unseen(self) -> Place | None:
        """A buffer that was written, and has no order by turns."""
        return None if self._between is None else self._between.unseen()

    def forward_is_over(self, microbatch: int) -> None:
        """Of the microbatch."""
        if self._stops is not None:
            self._stops.forward_is_over(microbatch)

    def remove(self) -> None:
        """The model is as it was."""
        while self._parts:
            self._parts.pop().remove()
