"""What the first process says to the others.

Covers: the messages. Leaves: who makes them (``calls``, ``pipeline``), who follows them (``worker``).

A tensor is named by a :class:`Key`: which order made it, and which of its results it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..processes.wire import Layout

__all__ = [
    "MOST_KNOWN",
    "STATE",
    "Back",
    "Began",
    "End",
    "Failed",
    "Fetch",
    "Forget",
    "Key",
    "Modes",
    "Result",
    "Run",
    "Send",
]


class Key(NamedTuple):
    """A tensor, the same in all processes."""

    order: int
    result: int


MOST_KNOWN = 10_000  # shapes of arguments of which it is remembered how results are laid out
STATE = -1  # the result that says what the generators are after a run


class Fetch(NamedTuple):
    """A tensor to wait for."""

    key: Key
    layout: Layout
    source: int
    tag: int


class Modes(NamedTuple):
    """What torch's thread state says where a layer is called."""

    grad: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    """Of each type of device: whether, and to which type."""
    training: tuple[bool, ...]
    """Of the layer and all within it."""


class Run(NamedTuple):
    """A layer's forward."""

    order: int
    microbatch: int
    layer: int
    arguments: bytes
    tensors: tuple[Key, ...]
    needed: tuple[bool, ...]
    """Which of them need a gradient."""
    fetches: tuple[Fetch, ...]
    modes: Modes
    state: Key
    """Of the generators."""
    signature: Any
    """The same for runs whose results are laid out alike."""
    ask: bool
    """Whether to answer with a :class:`Result`."""


class Back(NamedTuple):
    """The backward of a run. With nothing promised it is answered with layouts, None where there is no gradient."""

    order: int
    run: int
    gradients: tuple[Key | None, ...]
    promised: tuple[bool, ...] | None
    """Which gradients the caller counts on; None: it does not know yet."""
    fetches: tuple[Fetch, ...]


class Result(NamedTuple):
    """What a run returns, without its tensors (``wire.pack``; those of its arguments that it returns were given)."""

    value: bytes
    layouts: tuple[Layout, ...]
    differentiable: tuple[bool, ...]
    draws: bool
    """Whether the run drew random numbers."""


class Send(NamedTuple):
    """Send a tensor to another process."""

    key: Key
    to: int
    tag: int


class Forget(NamedTuple):
    """Nobody will ask for these any more."""

    keys: tuple[Key, ...]


class Began(NamedTuple):
    """A step begins."""

    microbatches: int
    owners: tuple[int, ...]
    """Which process each layer lives in."""


class End(NamedTuple):
    """A step ends."""

    loss: float
    shape: tuple[int, ...]
    """Of the loss: one value, in as many dimensions as the first process has it in."""
    dtype: torch.dtype
    """Of the loss."""
    state: bytes
    """Of the generators."""


class Failed(NamedTuple):
    """The first process failed."""

    why: str
