"""Which tensors a scripted module writes when it is saved, which only TorchScript knows.

Covers: attributes (parameters and buffers among them) of a module and of those in it, constants of their code, and of
functions and of methods of classes that it calls.
Leaves: what they are needed for (``storages``); what objects in C++ make of themselves to be saved, as packed weights
do, is made in that call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.jit import _state

__all__ = ["tensors_of_scripted"]


def tensors_of_scripted(what: Any) -> Iterator[torch.Tensor]:
    """Of a ``torch._C.ScriptModule`` or ``ScriptFunction``, those that have memory; one may come several times.

    Raises
    ------
    RuntimeError
        If it holds an object of a class that Python does not know: only TorchScript could look into that.
    """
    if isinstance(what, torch._C.ScriptFunction):
        yield from _constants(what.graph, ())
        return
    modules = list(_modules(what))
    looked_through = {module._type().str() for module in modules}
    for module in modules:
        kind: Any = torch._C.ConcreteModuleType.from_jit_type(module._type())
        for name in kind.get_attributes():
            yield from _tensors(module.getattr(name))
        for name in module._method_names():
            yield from _constants(module._get_method(name).graph, looked_through)


def _modules(what: Any) -> Iterator[Any]:
    yield what
    for _, child in torch._C.ModuleDict(what).items():
        yield from _modules(child)


def _constants(graph: Any, looked_through: Collection[str]) -> Iterator[torch.Tensor]:
    """`looked_through`: the types whose methods are by themselves; with them in it each would be as large as all."""
    methods = graph.findAllNodes("prim::CallMethod")
    others = [node for node in methods if node.inputsAt(0).type().str() not in looked_through]
    if others or graph.findAllNodes("prim::CallFunction"):
        graph = graph.copy()
        torch._C._jit_pass_inline(graph)
    for node in graph.findAllNodes("prim::Constant"):  # which live as long as the graph does
        yield from _tensors(node.output().toIValue())
    for node in graph.findAllNodes("prim::fork"):
        yield from _constants(node.g("Subgraph"), looked_through)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    within: Collection[Any] = ()
    if isinstance(value, torch.Tensor):
        within = _components(value)
        if not within:
            yield value
    elif isinstance(value, dict):
        within = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        within = value
    elif _state._get_script_class(type(value)) is not None:  # type: ignore[no-untyped-call]
        within = vars(value).values()
    for each in within:
        yield from _tensors(each)


def _components(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that a sparse one consists of."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()
