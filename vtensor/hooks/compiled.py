"""Graphs that ``torch.compile`` compiled: their kernels write past torch's operations, unseen.

Covers: nothing that is made while one runs is recomputed, as the result of a library's operation is written again in
place; what it is given and writes (buffers, optimizers' states) is no longer what it was seen to be; what a model that
was compiled ahead of time is given is resident while it runs, on devices where nothing faults.
Leaves: graphs for training (a ``torch.autograd.Function`` runs them, which the observer knows), what other graphs are
given (Triton asks for addresses, ``doors``; the rest is torch's operations).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch

from ..addresses import address_of
from ..native.core import Core
from .imports import when_imported
from .patches import replace

__all__ = ["watch_compiled"]

_GRAPHS = "torch._inductor.output_code"  # imported when something is compiled: that takes seconds
_RUNNERS = ("AOTIModelPackageLoader", "AOTIModelContainerRunnerCpu", "AOTIModelContainerRunnerCuda")


def _written_by(graph: Any, inputs: Sequence[Any]) -> Iterable[Any]:
    """What of its arguments a compiled graph writes; all, if it does not say."""
    which = getattr(graph, "mutated_input_idxs", None)
    return list(inputs) if which is None else [inputs[index] for index in which]


def _unseen(run: Callable[..., Any], core: Core, written: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    @functools.wraps(run)
    def runs(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        for address in _addresses(written(self, inputs)):
            core.before_write(address)
        closed = core.close_eyes()
        try:
            return run(self, inputs, *args, **kwargs)
        finally:
            if closed:
                core.open_eyes()

    return runs


def _resident(run: Callable[..., Any], core: Core) -> Callable[..., Any]:
    @functools.wraps(run)
    def runs(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        before = core.kept()
        try:
            core.keep(_addresses(inputs), False)
            return run(self, inputs, *args, **kwargs)
        finally:
            core.release_kept(before)

    return runs


def _addresses(values: Iterable[Any]) -> list[int]:
    found = (address_of(value) for value in values if isinstance(value, torch.Tensor))
    return [address for address in found if address]


def _watch(module: ModuleType, core: Core) -> None:
    if (graph := getattr(module, "CompiledFxGraph", None)) is not None:
        replace(graph, "__call__", _unseen(graph.__call__, core, _written_by))


def watch_compiled(core: Core) -> None:
    """Tell `core` when such a graph runs, until :func:`vtensor.hooks.patches.restore`."""
    when_imported(_GRAPHS, lambda module: _watch(module, core))
    for name in _RUNNERS:
        runner = getattr(torch._C._aoti, name, None)
        for run in ("run", "boxed_run"):
            if hasattr(runner, run):
                unseen = _unseen(getattr(runner, run), core, lambda _runner, inputs: list(inputs))
                replace(runner, run, _resident(unseen, core) if core.ordered() else unseen)
