"""Graphs that ``torch.compile`` compiled: their kernels write past torch's operations, unseen.

Covers: nothing that is made while one runs is made again, as the result of a library's operation is written again in
place; what it is given and writes (buffers, optimizers' states) is no longer what it was seen to be.
Leaves: graphs for training (a ``torch.autograd.Function`` runs them, which the observer knows), bringing what they read
(on the CPU it is touched).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from .doors import address_of
from .patches import replace

__all__ = ["watch_compiled"]

_GRAPHS = "torch._inductor.output_code"  # imported when something is compiled: that takes seconds
_core: ModuleType | None = None  # of the session that is there
_RUNNERS = ("AOTIModelPackageLoader", "AOTIModelContainerRunnerCpu", "AOTIModelContainerRunnerCuda")


def _written_by(graph: Any, inputs: Sequence[Any]) -> Iterable[Any]:
    """What of its arguments a compiled graph writes; all, if it does not say."""
    which = getattr(graph, "mutated_input_idxs", None)
    return list(inputs) if which is None else [inputs[index] for index in which]


def _unseen(run: Callable[..., Any], core: ModuleType, written: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    @functools.wraps(run)
    def runs(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        for tensor in written(self, inputs):
            if isinstance(tensor, torch.Tensor) and (address := address_of(tensor)):
                core.before_write(address)
        closed = core.close_eyes()
        try:
            return run(self, inputs, *args, **kwargs)
        finally:
            if closed:
                core.open_eyes()

    return runs


def _watch(module: ModuleType, core: ModuleType) -> None:
    if (graph := getattr(module, "CompiledFxGraph", None)) is not None:
        replace(graph, "__call__", _unseen(graph.__call__, core, _written_by))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as others do; if a session is there when it is imported, it is watched. Stays for good."""

    looks = False

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != _GRAPHS or self.looks:
            return None
        self.looks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looks = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_watch(module: ModuleType) -> None:
                execute(module)
                if _core is not None:
                    _watch(module, _core)

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def watch_compiled(core: ModuleType) -> None:
    """Tell `core` when such a graph runs, until :func:`vtensor.hooks.patches.restore`."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    replace(sys.modules[__name__], "_core", core)
    if (imported := sys.modules.get(_GRAPHS)) is not None:
        _watch(imported, core)
    for name in _RUNNERS:
        runner = getattr(torch._C._aoti, name, None)
        for run in ("run", "boxed_run"):
            if hasattr(runner, run):
                replace(runner, run, _unseen(getattr(runner, run), core, lambda _runner, inputs: list(inputs)))
