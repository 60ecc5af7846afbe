"""What is to be known of a program before its layers live in different processes.

Covers: whether it draws random numbers between layers; taking back what layers noted on themselves meanwhile.
Leaves: running it once (``trainer``), in which order layers run (``stops``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..generators import generator_state

__all__ = ["Look"]


class Look:
    """While it is entered the program runs as a whole, in the first process.

    Afterwards modules have the attributes they had: what a layer would note on itself elsewhere is missing then here,
    and is not taken from this run by who reads it.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        self._model, self._layers = model, layers
        self._attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self._hooks: list[Any] = []
        self._left: torch.Tensor | None = None
        self.draws_between = False
        """Whether random numbers were drawn between one layer and the next."""

    def __enter__(self) -> Look:
        self._attributes = [(module, dict(vars(module))) for module in self._model.modules()]
        for layer in self._layers:
            self._hooks += [layer.register_forward_pre_hook(self._enters), layer.register_forward_hook(self._leaves)]
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for module, before in self._attributes:
            now = vars(module)
            for name in now.keys() - before.keys():
                del now[name]
            now.update(before)

    def _enters(self, *_: Any) -> None:
        if self._left is not None:
            self.draws_between |= not torch.equal(self._left, generator_state())

    def _leaves(self, *_: Any) -> None:
        self._left = generator_state()
