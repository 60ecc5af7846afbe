"""Which tensors lie side by side in one allocation, so that they pad fewer chunks.

A tensor begins at a chunk, and the rest of its last chunk is nobody's: with chunks of 2 MiB a quarter of what BERT's
weights and Adam's states take is such padding. So where memory is short, what an optimizer keeps for as long as it
lives is moved once, at the end of its step: parameters beside parameters, each kind of state beside its own, in the
order of the layers, so that neighbours are used at about the same time. Gradients and activations stay as they are:
they come and go, and what can be dropped and recomputed must be a tensor's own.

Covers: what of an optimizer is worth moving, what goes together, and when.
Leaves: whether a tensor may be moved, and doing it (``kernels/torch/torch_shelves.h``); finding the ends of steps
(``planning``).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import lgm

from ..logs import log
from ..native.core import Core
from ..planning.current_planner import current
from ..planning.planner import Planner
from ..settings.config import Config
from ..settings.sizes import format_bytes

__all__ = ["keep_shelves", "runs"]

_HUGE = 2 << 20  # bytes of a huge page
_ALIGN = 512  # torch_shelves.h
_CHUNKS = 16  # of a shelf at most: its memory is given back when the last tensor on it dies
_SHARE = 16  # of the budget, the largest shelf; and of a tensor, the padding that is not worth moving it
_WORTH = 128  # of the budget: moving what saves less is not worth the time


def keep_shelves(core: Core, plan: lgm.Plan | None) -> None:
    """From now on, in this session, what optimizers keep is put on shelves once memory is short.

    With a `plan` from a file only if there were some when it was recorded: it knows tensors by their sizes.
    """
    planner = current()
    if _pays(planner.config) and (plan is None or plan.recorded.meta.get("shelves")):
        planner.after_steps.append(Shelves(core, planner, keep_plans=plan is not None).look)


def _pays(config: Config) -> bool:
    """Not between memory and memory, in huge pages: there steps got slower, and padding costs no copies."""
    return config.device != "cpu" or config.chunk < _HUGE or bool(config.link or config.spill_dir)


class Shelves:
    """Of one session."""

    def __init__(self, core: Core, planner: Planner, *, keep_plans: bool) -> None:
        self._core, self._planner, self._keep_plans = core, planner, keep_plans
        self._looked: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        """Move what `optimizer` keeps, the first time it made a step while memory is short."""
        if optimizer in self._looked or not self._core.pressed():
            return
        self._looked.add(optimizer)
        config = self._planner.config
        chunk, limit = config.chunk, min(_CHUNKS, config.budget_chunks // _SHARE)
        shelves = []
        for tensors in _kept_by(optimizer):
            movable = [
                t for t in tensors if _padding(t.nbytes, chunk) * _SHARE > t.nbytes and self._may_move(t, config)
            ]
            shelves += [movable[run] for run in runs([t.nbytes for t in movable], chunk, limit)]
        saved = sum(_saved([t.nbytes for t in shelf], chunk) for shelf in shelves)
        if saved * _WORTH < config.budget:
            return
        try:
            for shelf in shelves:
                self._core.put_on_shelf([t._cdata for t in shelf])
                self._planner.shelves += 1
        finally:
            if not self._keep_plans:
                self._planner.maker.forget()  # they know the tensors that were moved
        count = sum(map(len, shelves))
        log.info("%d tensors share %d allocations: %s less padding", count, len(shelves), format_bytes(saved))

    def _may_move(self, tensor: torch.Tensor, config: Config) -> bool:
        return tensor.device.type == config.device and self._core.may_move(tensor._cdata)


def runs(sizes: list[int], chunk: int, limit: int) -> list[slice]:
    """Consecutive slices of `sizes`, in bytes, that pad less together: of at most `limit` chunks, at least half of it.

    >>> runs([1200] * 9, chunk=2048, limit=4)
    [slice(0, 4, None), slice(4, 8, None)]
    """
    found, start = [], 0
    while start < len(sizes):
        best, stop, total, apart = 0.0, start + 1, 0, 0
        for end in range(start, len(sizes)):
            total += _aligned(sizes[end])
            apart += sizes[end] + _padding(sizes[end], chunk)
            if -(-total // chunk) > limit:
                break
            share = (apart - total - _padding(total, chunk)) / total
            if share >= best and (2 * total > limit * chunk or end + 1 == len(sizes)):
                best, stop = share, end + 1
        if best > 0:
            found.append(slice(start, stop))
        start = stop
    return found


def _saved(sizes: list[int], chunk: int) -> int:
    apart, together = sum(size + _padding(size, chunk) for size in sizes), sum(map(_aligned, sizes))
    return apart - together - _padding(together, chunk)


def _padding(size: int, chunk: int) -> int:
    return -size % chunk


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _kept_by(optimizer: torch.optim.Optimizer) -> Iterator[list[torch.Tensor]]:
    """Its parameters, and its states of each name, in the order of its parameters.

    Of parameters that have a gradient: the step wrote these, so nobody reads them meanwhile, on whatever stream. No
    subclasses of tensors: these have ideas of their own of what a tensor may be asked.
    """
    everything = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    parameters = [parameter for parameter in everything if _is_plain(parameter) and parameter.grad is not None]
    yield parameters
    kinds: dict[str, list[torch.Tensor]] = {}
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            if _is_plain(value):
                kinds.setdefault(name, []).append(value)
    yield from kinds.values()


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, nn.Parameter)
