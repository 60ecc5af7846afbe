"""Which tensors a scripted module writes when it is saved, which only TorchScript knows.

Covers: attributes (parameters and buffers among them) of a module and of those in it, constants of their code.
Leaves: what they are needed for (``storages``); what objects in C++ make of themselves to be saved, as packed weights
do, is made in that call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["tensors_of_scripted"]


def tensors_of_scripted(what: Any) -> Iterator[torch.Tensor]:
    """Of a ``torch._C.ScriptModule`` or ``ScriptFunction``; one may come several times."""
    if isinstance(what, torch._C.ScriptFunction):
        yield from _constants(what)
        return
    kind: Any = torch._C.ConcreteModuleType.from_jit_type(what._type())
    for name in kind.get_attributes():
        yield from _tensors(what.getattr(name))
    for name in what._method_names():
        yield from _constants(what._get_method(name))
    for _, child in torch._C.ModuleDict(what).items():
        yield from tensors_of_scripted(child)


def _constants(function: Any) -> Iterator[torch.Tensor]:
    graph = function.graph  # nodes live as long as it does
    if graph.findAllNodes("prim::CallFunction"):
        graph = function.inlined_graph  # with what it calls
    for node in graph.findAllNodes("prim::Constant"):
        yield from _tensors(node.output().toIValue())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
