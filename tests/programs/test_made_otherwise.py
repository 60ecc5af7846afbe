"""What an operation made is not always what it makes when it runs again: programs that found this out, one a rule.

Each makes large tensors, then everything that can be recomputed is dropped; what the program reads then is what plain
PyTorch has. (Found by programs written to that end, none of which was in the tests.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

import vtensor
from vtensor import native
from vtensor.addresses import address_of

from ..identity import PAGE, same, seeded
from ..memory import resident_bytes

Drop = Callable[[], None]
LARGE = 64 * PAGE  # from here on a tensor is managed


def _bytes(tensor: torch.Tensor) -> bytes:
    """Of its content, which nobody recomputes for it; its own address is not given away."""
    return tensor.view(torch.uint8).clone().numpy().tobytes()


def _default_dtype(made_by: torch.dtype, read_by: torch.dtype, drop: Drop) -> Any:
    whole = torch.arange(1 << 18)
    torch.set_default_dtype(made_by)
    try:
        parts = whole / 7
        torch.set_default_dtype(read_by)
        drop()
        return parts
    finally:
        torch.set_default_dtype(torch.float32)


def default_dtype(drop: Drop) -> Any:
    return _default_dtype(torch.float64, torch.float32, drop)


def default_dtype_of_the_same_size(drop: Drop) -> Any:
    return _default_dtype(torch.bfloat16, torch.float16, drop)


def precision_of_products(drop: Drop) -> Any:
    """Exact; then both what is general and what is not say otherwise. (Other bits on processors with bfloat16.)"""
    mkldnn = torch.backends.mkldnn
    places: list[Any] = [mkldnn, mkldnn.matmul]
    before = [place.fp32_precision for place in places]
    product = torch.randn(512, 512) @ torch.randn(512, 512)
    try:
        for place in places:
            place.fp32_precision = "bf16"
        drop()
        return product, product + 1, [place.fp32_precision for place in places]
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


def a_list_of_a_script_that_changes_it(drop: Drop) -> Any:
    def flips(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
        flipped = torch.flip(x, axes)
        axes[0] = 1 - axes[0]
        return flipped

    flipped = torch.jit.script(flips)(torch.randn(64, LARGE // 64), [0])
    drop()
    return flipped


def places_in_memory(drop: Drop) -> Any:
    view = torch.arange(4096.0)[100:]  # small: a copy of what it reaches is kept
    made = torch.as_strided_copy(view, (512, 512), (1, 0), 3)
    drop()
    return made


def sums_in_any_order(drop: Drop) -> Any:
    where, values, onto = torch.randint(64, (1 << 20,)), torch.rand(1 << 20), torch.zeros(1 << 18)
    made = onto.index_put((where,), values, accumulate=True)
    before = _bytes(made)
    drop()
    return _bytes(made) == before


def packing_for_backward(drop: Drop) -> Any:
    norm, x = nn.LayerNorm(256), torch.randn(1024, 256, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.to(torch.float32)):
        y = norm(x)
        total = y.square().sum()  # what is packed is larger than the result
        drop()
        total.backward()
    return y, x.grad


def tangents(drop: Drop) -> Any:
    norm, x = nn.LayerNorm(256), torch.randn(1024, 256)
    with torch.no_grad(), forward_ad.dual_level():
        y = norm(forward_ad.make_dual(x, torch.ones_like(x) * torch.arange(256)))
        drop()
        return tuple(forward_ad.unpack_dual(y))


def tangents_in_lists(drop: Drop) -> Any:
    xs = [torch.randn(256, 256) for _ in range(3)]
    with torch.no_grad(), forward_ad.dual_level():
        ys = torch._foreach_mul([forward_ad.make_dual(x, x + 1) for x in xs], 3.0)
        drop()
        return [tuple(forward_ad.unpack_dual(y)) for y in ys]


def storages_without_memory(drop: Drop) -> Any:
    x = torch.randn(1024)
    x.untyped_storage().resize_(0)  # as FSDP does
    shape = x.to("meta").shape
    x.untyped_storage().resize_(4096)
    drop()
    return x.fill_(len(shape))


def sparse_results(drop: Drop) -> Any:
    dense = torch.randn(LARGE // 8 + 1)
    sparse = dense.to_sparse()  # its indices are managed, and its values not
    drop()
    return sparse.indices(), sparse.values()


def layouts_of_libraries(drop: Drop) -> Any:
    plain = torch.randn(512, 512)
    made = plain.to_mkldnn()
    drop()
    return made.to_dense()


class _Fills(torch.autograd.Function):
    """Writes its argument past torch's operations, as kernels bound by pybind do."""

    @staticmethod
    def forward(_ctx: Any, given: torch.Tensor) -> torch.Tensor:
        address = torch._C.TensorBase.data_ptr(given)  # not the door
        ctypes.memset(address, 0, given.numel() * given.element_size())
        return given.sum()

    @staticmethod
    def backward(_ctx: Any, *_grads: Any) -> Any:
        return None


def written_in_a_function(drop: Drop) -> Any:
    source = torch.randn(512, 512)
    given = source.mul(2)
    made_of_it = given.add(1)
    drop()
    _Fills.apply(given)
    drop()
    return given, made_of_it


def denormals(drop: Drop) -> Any:
    x = torch.full((1 << 20,), 1e-30).mul_(1)  # OpenMP's threads are there from now on
    torch.set_flush_denormal(True)
    try:
        y = x * 1e-10  # some of them flush now
        before = _bytes(y)
        drop()
        ctypes.string_at(torch._C.TensorBase.data_ptr(y), 1)  # touched outside operations: another thread makes it
        return _bytes(y) == before
    finally:
        torch.set_flush_denormal(False)


PROGRAMS = [
    default_dtype,
    default_dtype_of_the_same_size,
    precision_of_products,
    a_list_of_a_script_that_changes_it,
    places_in_memory,
    sums_in_any_order,
    packing_for_backward,
    tangents,
    tangents_in_lists,
    storages_without_memory,
    sparse_results,
    layouts_of_libraries,
    written_in_a_function,
    denormals,
]


@contextlib.contextmanager
def seeing(budget: str = "64MiB") -> Iterator[Any]:
    """A session in which all that can be recomputed is known, and leaves when the core is told to drop it."""
    core = native.load()
    with vtensor.enabled(budget, chunk=PAGE, min_size=LARGE, policy="lru"):
        core.observe()
        core.see("all")
        yield core


def compare(program: Callable[[Drop], Any]) -> None:
    torch.set_num_threads(2)
    plain = seeded(lambda: program(lambda: None))
    with seeing() as core:
        assert same(seeded(lambda: program(core.parts.drop_all)), plain)
        assert core.validate() == ""


def in_a_thread(work: Callable[[], None]) -> None:
    failed = list[BaseException]()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    (thread := threading.Thread(target=run)).start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_what_is_read_is_what_was_made(program: Callable[[Drop], Any]) -> None:
    compare(program)


@pytest.mark.filterwarnings("ignore")
def test_what_compiled_graphs_write_is_not_made_again() -> None:
    """The result of a library's operation, in place; and an argument."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()).to(memory_format=torch.channels_last)

    @torch.no_grad()
    @torch.compile
    def compiled(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.mul_(0.5)
        return net(x) * 2 + 1

    def program(drop: Drop) -> Any:
        x = torch.randn(2, 8, 64, 64).to(memory_format=torch.channels_last)
        count = torch.relu(torch.randn(LARGE))
        made_of_it = count.add(1)
        drop()
        y = compiled(x, count)
        drop()
        return y, count, made_of_it

    compare(program)


def test_a_kernel_of_the_users_is_not_run_again() -> None:
    """In the place of torch's own, it may count, or draw numbers from anywhere."""
    library, calls = torch.library.Library("aten", "IMPL"), list[int]()

    def counting(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.clamp_min(x, 0) + len(calls)

    def program(drop: Drop) -> Any:
        calls.clear()
        made = torch.relu(torch.randn(LARGE))
        drop()
        return made, len(calls)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel of its own is overridden
        library.impl("relu", counting, "CPU")
    try:
        in_a_thread(lambda: compare(program))  # what an operator does is looked up once for each thread
    finally:
        library._destroy()


@pytest.mark.parametrize("entered", ["_Enter", "_DDPSink"])
def test_a_function_is_not_taken_for_one_that_was_called_before(entered: str) -> None:
    """Names of ranges lie where others lay before; where one may write unseen, what was made of it is there first."""

    def add_one_unseen(tensor: torch.Tensor) -> None:
        data = (ctypes.c_float * tensor.numel()).from_address(address_of(tensor))
        data[:] = [value + 1 for value in data]

    def function(name: str, forward: Callable[..., Any]) -> Any:
        kinds = {"forward": staticmethod(forward), "backward": staticmethod(lambda _, grad: grad)}
        return type(name, (torch.autograd.Function,), kinds)

    def write(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        add_one_unseen(x)
        return x

    trusted, other = function(entered, lambda _, x: x.clone()), function("Writes", write)

    def program(drop: Drop) -> Any:
        x, made = torch.rand(LARGE), []
        for _ in range(3):
            made.append(x * 2)
            drop()
            trusted.apply(torch.ones(4, requires_grad=True))
            with torch.no_grad():
                other.apply(x)
        return made, x

    compare(program)


@pytest.mark.parametrize("mode", ["none", "all"])
def test_what_is_made_again_is_managed_as_it_was(mode: str) -> None:
    """Whatever the operation does that misses it: the host's part of Harmony makes memory of torch's own."""
    with seeing() as core:
        core.manage(mode if mode == "all" else "large")
        x = torch.rand(LARGE)
        made, small = x * 2, x[:8] * 3
        core.parts.drop_all()
        core.manage("none" if mode == "none" else "large")
        read = made + 1
        core.manage("large")
        assert torch.equal(read, x * 2 + 1) and torch.equal(small, x[:8] * 3)


def test_threads_that_only_read_what_others_read() -> None:
    """What an operation without a result to keep has read forgets it under the engine's lock. (Ended by a signal.)"""
    w = torch.rand(LARGE)
    with seeing() as core:
        w = w + 1

        def score() -> None:
            for _ in range(2000):
                w.sum()

        threads = [threading.Thread(target=score) for _ in range(4)]
        made = w * 2
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert core.validate() == ""
        core.parts.drop_all()
        before = w.clone()
        w.add_(1)
        assert torch.equal(made, before * 2)


def test_threads_that_write_halves_of_one_tensor() -> None:
    """What is there then neither of their operations has made."""

    def program() -> list[list[float]]:
        found = []
        for scale in range(12):
            x = torch.arange(1 << 19) * (1.0 + scale) / (1 << 22)
            halves, together = x.chunk(2), threading.Barrier(2)

            def fill(half: torch.Tensor, together: threading.Barrier = together) -> None:
                together.wait()
                half.exp_()

            threads = [threading.Thread(target=fill, args=(half,)) for half in halves]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found.append(x)
        return [x[:: 1 << 16].tolist() for x in found]

    plain = program()
    with vtensor.enabled("12MiB", chunk=1 << 16, recompute="only"):
        for _ in range(4):
            assert program() == plain
        assert vtensor.memory_stats()["drops"] > 0


def test_threads_that_make_again_what_was_made_by_other_settings() -> None:
    """These are the process's: each waits for its turn, and at the end they are the program's."""
    whole = torch.arange(LARGE)
    with seeing() as core:
        made = []
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            made.append([whole / (7 + k) for k in range(4)])
        expected = [[_bytes(x) for x in each] for each in made]
        for _ in range(100):
            core.parts.drop_all()
            threads = [threading.Thread(target=lambda all_of=all_of: [x[:2] + 1 for x in all_of]) for all_of in made]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert torch.get_default_dtype() == torch.float32
        assert [[_bytes(x) for x in each] for each in made] == expected


def test_precisions_that_were_inherited_are_so_after_something_was_made_again() -> None:
    def found() -> list[str]:
        places: list[Any] = [torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul]
        return [place.fp32_precision for place in places]

    def program(drop: Drop) -> Any:
        before = torch.backends.fp32_precision
        try:
            torch.backends.fp32_precision = "ieee"
            y = torch.sigmoid(torch.randn(LARGE))
            torch.backends.fp32_precision = "bf16"
            drop()
            y.sum()
            as_set = found()
            torch.backends.fp32_precision = "ieee"
            return as_set, found()
        finally:
            torch.backends.fp32_precision = before

    plain = program(lambda: None)
    with seeing() as core:
        assert program(core.parts.drop_all) == plain


def test_a_forked_child_drops_nothing() -> None:
    torch.set_num_threads(1)
    with vtensor.enabled("2MiB", chunk=PAGE, min_size=LARGE, recompute="only"):
        x = torch.randn(1 << 17)
        made = [torch.relu(x + k) for k in range(12)]
        sums = [t.sum().item() for t in made]
        if (child := os.fork()) == 0:
            os._exit(0 if all([t.sum().item() for t in made] == sums for _ in range(3)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert [t.sum().item() for t in made] == sums


def test_a_full_host_store_ends_no_program_while_something_is_made_again() -> None:
    """The callback in which an operation's arguments are recomputed cannot raise; the next allocation can."""
    with vtensor.enabled("2MiB", chunk=PAGE, min_size=LARGE, recompute="only", host="1MiB") as _:
        x = torch.randn(1 << 17)
        made = [torch.relu(x + k) for k in range(12)]
        sums = [t.sum().item() for t in made]
        with pytest.raises(torch.OutOfMemoryError, match="the host store is full"):
            torch.cat(made)  # reads all of them at once
        assert vtensor.memory_stats()["host_bytes.peak"] > 1 << 20
        assert [t.sum().item() for t in made] == sums
        assert torch.relu(x).sum().item() == sums[0]  # and goes on


def test_another_thread_making_again_leaves_the_number_of_threads() -> None:
    found = list[int]()
    torch.set_num_threads(2)
    with seeing() as core:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            source = torch.randn(LARGE)
            made = source.mul(2)
            core.parts.drop_all()
            ctypes.string_at(torch._C.TensorBase.data_ptr(made), 1)
        asked = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        asked.start()
        asked.join()
    assert found == [1]


def test_small_arguments_of_many_operations_are_kept_once() -> None:
    small = torch.randn(LARGE // 8)  # torch's own; a call that reads it keeps a copy
    rows, held = torch.randn(2, LARGE // 8), []

    with seeing("4MiB") as core:
        rows = rows + 1
        before = resident_bytes()
        for _ in range(300):
            held.append(rows * small)
            core.parts.drop_all()
        assert vtensor.memory_stats()["drops"] > 0
        assert resident_bytes() - before < 16 << 20
