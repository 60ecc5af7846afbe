"""Doors are not seen by programs that look at torch's calls, and there is none that tells nobody."""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import vtensor
from vtensor import native

PAGE = 4096


class KnowsOne(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), _kwargs: Any = None) -> Any:
        if func.__name__ != "numpy":
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args)


class Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_subclasses_and_modes_see_the_programs_calls_only() -> None:
    with vtensor.enabled("8MiB", chunk=PAGE, min_size=1):
        x = torch.randn(300, 300)
        assert x.as_subclass(KnowsOne).numpy().shape == (300, 300)  # type: ignore[no-untyped-call]
        with Calls() as calls:
            x.numpy()
            x.untyped_storage()
        assert calls.names == ["numpy", "untyped_storage"]


def test_functions_are_known_by_what_they_are() -> None:
    """As in a script under ``vtensor run``, whose tables are made in the session."""
    with vtensor.enabled("8MiB", chunk=PAGE, min_size=1):

        class Table(torch.Tensor):
            known = MappingProxyType({torch.Tensor.numpy: "mine"})

            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                assert func is torch.Tensor.numpy
                return cls.known.get(func) or super().__torch_function__(func, types, args, kwargs or {})

        x = torch.ones(300)
        assert x.as_subclass(Table).numpy() == "mine"  # type: ignore[no-untyped-call]
        assert x.numpy().sum() == 300


def test_what_others_put_over_ours_stays() -> None:
    original = torch.Tensor.numpy
    with vtensor.enabled("8MiB"):
        ours = torch.Tensor.numpy
        torch.Tensor.numpy = lambda self: ours(self) + 1  # type: ignore[method-assign]
    assert torch.ones(3).numpy().sum() == 6
    torch.Tensor.numpy = ours  # type: ignore[method-assign]
    assert torch.ones(3).numpy().sum() == 3  # what comes back then is ours, and works
    with vtensor.enabled("8MiB"):
        assert torch.ones(3).numpy().sum() == 3
    assert torch.Tensor.numpy is original  # until the next session ends


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def by_table(tensor: torch.Tensor) -> int:
    """Its address, as a library takes it from C to C: by DLPack's table of functions, without a call of Python."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer_of(type(tensor).__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    functions = (ctypes.c_void_p * 7).from_address(table)  # two of the header, then four that make, and one more
    look = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(functions[5])
    found = DLTensor()
    assert look(tensor, found) == 0
    return int(found.data or 0)


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no such table")
def test_what_leaves_by_dlpacks_table_is_known_to_have_left() -> None:
    before = torch.Tensor.__dlpack_c_exchange_api__
    torch.manual_seed(0)
    with vtensor.enabled("4MiB", chunk=PAGE, min_size=1, policy="lru"):
        core = native.load()
        core.observe()
        core.see("all")
        x = torch.randn(1 << 16)
        t = torch.relu(x)
        twice = t * 2
        expected = twice.clone()
        core.parts.drop_all()
        ctypes.memset(by_table(t), 0, t.nbytes)
        core.parts.drop_all()
        assert torch.equal(twice, expected), "it was recomputed from what was written"
        assert not t.any(), "what was written is lost"
        assert core.validate() == ""
        by_table(torch.empty(0))
    assert torch.Tensor.__dlpack_c_exchange_api__ is before
