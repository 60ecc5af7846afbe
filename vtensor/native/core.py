"""What the native core offers to Python, as types: its functions, and the figures they return.

Covers: every function of the module that ``kernels/python/`` binds, with units; ``tests/native/test_core.py`` holds
names and keys to the module as it is built. Leaves: what they do to the sources, parts for tests (``Core.parts``).

Addresses are those of device memory; `cdata` is what torch knows a tensor by (``Tensor._cdata``). Times are
nanoseconds where a name ends in ``_ns``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

__all__ = ["Amount", "Core", "CudaDevice", "PlanCounters", "RawIteration", "Snapshot", "State"]

Ints = npt.NDArray[np.int64]
State = Literal["resident", "leaving", "absent", "arriving", "borrowed", "dropped"]
"""Of a vTensor; ``kernels/memory/residency.h`` draws how they follow each other."""


class Amount(TypedDict):
    """Bytes of one kind, over a session."""

    current: int
    peak: int
    allocated: int
    freed: int


class Handles(TypedDict):
    """What the driver has made and not yet destroyed."""

    reservations: int
    chunks: int
    mappings: int
    host_mappings: int
    places: int
    copies: int


class Snapshot(TypedDict):
    """The engine's figures at one moment; ``kernels/engine/inspector.h`` and ``kernels/memory/counters.h`` say more."""

    tensor_bytes: Amount
    wanted_bytes: Amount
    absent_bytes: Amount
    borrowed_bytes: Amount
    dropped_bytes: Amount
    made_bytes: int
    make_ns: int
    chunk_bytes: int
    budget_chunks: int
    held_chunks: int
    peak_held_chunks: int
    cached_chunks: int
    peak_used_chunks: int
    overdrawn_chunks: int
    peak_overdrawn_chunks: int
    host_waits: int
    pinned_bytes: int
    ranges: int
    slots_used: int
    slots_capacity: int
    slots_peak: int
    moved_out_bytes: int
    moved_in_bytes: int
    allocations: int
    reused: int
    remaps: int
    evictions: int
    discards: int
    drops: int
    cancels: int
    faults: int
    oversize: int
    failures: int
    arrivals: int
    """vTensors that a plan began to bring back."""
    late_arrivals: int
    wait_ns: int
    moves_in_wait: bool
    """Whether the threads that compute copy, and wait for it."""
    out_ns: int
    in_ns: int
    processor_ns: int
    host: str
    """What the host store is."""
    handles: Handles


class Look(Snapshot):
    """A snapshot of an engine that may stand still."""

    broken: str
    """The invariant that is broken, or nothing."""


class PlanCounters(TypedDict):
    """Iterations of a session, and how they went."""

    iterations: int
    planned_iterations: int
    """Those that followed a plan from end to end."""
    deviations: int
    left_at: tuple[int, str] | None
    """The row and the operator at which the last one left its plan; None if it ended early."""
    rejoined: int
    operations: int
    """Rows of iterations that began with a plan."""
    planned_operations: int
    plans: int
    """Installed."""


class RawIteration(TypedDict):
    """The core's log of an iteration, in columns; ``kernels/iteration/recorder.h`` says what they mean."""

    names: list[str]
    op_name: Ints
    op_begin: Ints
    op_last: Ints
    end: int
    took: int
    stalls: int
    """Nanoseconds that were no computing."""
    followed: bool
    tensor_bytes: Ints
    tensor_born: Ints
    tensor_died: Ints
    tensor_previous: Ints
    tensor_serial: Ints
    births: Ints
    use_op: Ints
    use_tensor: Ints
    use_first: Ints
    use_last: Ints
    use_away: Ints
    use_write: Ints
    call_first: Ints
    call_last: Ints
    call_again: Ints


class CudaDevice(TypedDict):
    """A GPU, as its driver describes it."""

    name: str
    granularity: int
    virtual_memory: bool
    integrated: bool
    """Its memory is the processor's."""
    host_in_place: bool
    """Its kernels may use the host's memory where that lies."""


class Changeable(Protocol):
    """Something that holds until it is ended, or forgotten."""

    def end(self) -> None: ...


class Given(Changeable, Protocol):
    """Addresses that a library is given for one call: they stay mapped until it ends."""

    def add(self, addresses: Sequence[int]) -> None: ...
    def add_what_is_made(self) -> None: ...


class TorchState(Protocol):
    """Torch's state of the thread that made this; `set` gives it to another."""

    def set(self) -> None: ...


class _Session(Protocol):
    """``module.cpp``: the engine of the session, and its figures."""

    InvalidUse: type[ValueError]
    OutOfMemory: type[MemoryError]
    parts: Any

    def start(
        self, *, budget_chunks: int, chunk: int, host: int, spill_dir: str, policy: str, granularity: str, leaving: str,
        raise_oversize: bool, link: float, min_size: int, observe_always: bool,
    ) -> None: ...  # fmt: skip
    def stop(self) -> None: ...
    def resize(self, chunks: int, /) -> None: ...
    def manage(self, what: Literal["all", "large", "none"], /) -> None: ...
    def in_forked_child(self) -> bool: ...
    def snapshot(self) -> Snapshot: ...
    def progress(self) -> tuple[int, bool]: ...
    def look(self) -> Look | None: ...
    def reset_peaks(self) -> None: ...
    def validate(self) -> str: ...
    def pressed(self) -> bool: ...
    def unmanaged(self) -> Amount: ...
    def fits(self) -> bool: ...


class _Tensors(Protocol):
    """``module.cpp``, ``module_shelves.cpp``: tensors by their addresses, and by what torch knows them by."""

    def manages(self, address: int, /) -> bool: ...
    def merge(self, address: int, /) -> dict[str, int]: ...
    def residency(self, address: int, /) -> dict[str, int]: ...
    def pieces(self, address: int, /) -> list[tuple[int, int, State, bool, int]]: ...
    def lend(self, address: int, memory: int, nbytes: int, /) -> bool: ...
    def lent(self, address: int, memory: int, nbytes: int, /) -> bool: ...
    def take_back(self, memory: int, nbytes: int, /) -> None: ...
    def may_move(self, cdata: int, /) -> bool: ...
    def whose_memory(self, cdata: int, /) -> Literal["allocator", "lender", "other"]: ...
    def swap_memory(self, cdata: int, other: int, /) -> None: ...
    def put_on_shelf(self, cdata: Sequence[int], /) -> None: ...


class _Hooks(Protocol):
    """``module.cpp``, ``module_remaking.cpp``, ``module_turns.cpp``, ...: what the core has to be told of."""

    Given: Callable[[], Given]
    KernelsChange: Callable[[], Changeable]
    TorchState: Callable[[], TorchState]

    def ordered(self) -> bool: ...
    def keep(self, addresses: Sequence[int], unseen: bool, /) -> None: ...
    def kept(self) -> int: ...
    def release_kept(self, but: int, /) -> None: ...
    def writes_unseen(self, function: str, /) -> bool: ...
    def close_eyes(self) -> bool: ...
    def open_eyes(self) -> None: ...
    def before_write(self, address: int, /) -> None: ...
    def export_address(self, address: int, /) -> None: ...
    def arm_fault_handler(self) -> None: ...
    def note_pythons_handler(self) -> None: ...
    def telling_table(self, table: object, /) -> object: ...
    def this_thread(self) -> int: ...
    def pass_turn(self, thread: int, /) -> None: ...


class _Planning(Protocol):
    """``module_planning.cpp``, ``module_remaking.cpp``, ``module_spans.cpp``: iterations, plans, and what was done."""

    def boundary(self, timing: bool, /) -> bool: ...
    def hear_of_rounds(self, listener: Callable[[bool], object] | None, timing: bool = False) -> None: ...
    def recorded_iteration(self) -> RawIteration: ...
    def install_plan(self, plan: dict[str, Any], /) -> None: ...
    def forget_plans(self) -> None: ...
    def expect_shortfall(self, chunks: int, /) -> None: ...
    def observe(self) -> None: ...
    def plan_counters(self) -> PlanCounters: ...
    def see(self, what: Literal["nothing", "planned", "noted", "all"], verify: bool = False) -> None: ...
    def verified(self) -> list[tuple[str, int, int, int, str]]: ...
    def keep_spans(self) -> None: ...
    def take_spans(self) -> list[tuple[str, int, int, int]]: ...


class _Cuda(Protocol):
    """``module_cuda.cpp``: there only in a core that was compiled for a torch with CUDA."""

    def probe_cuda(self, ordinal: int, /) -> CudaDevice: ...
    def start_cuda(
        self, *, budget_chunks: int, chunk: int, host: int, policy: str, granularity: str, leaving: str,
        raise_oversize: bool, min_size: int, ordinal: int, donated: Sequence[int], places: bool, strict: bool,
    ) -> None: ...  # fmt: skip
    def stop_cuda(self) -> tuple[bool, list[int]]: ...
    def make_slab(self, nbytes: int, chunk: int, ordinal: int, /) -> int: ...
    def free_slab(self, address: int, nbytes: int, chunk: int, ordinal: int, /) -> None: ...
    def donate(self, homes: Sequence[int], /) -> None: ...
    def unused_chunks(self) -> list[int]: ...
    def give_chunks_back(self, chunks: int) -> list[int]: ...


class Core(_Session, _Tensors, _Hooks, _Planning, _Cuda, Protocol):
    """The native core of a process. What is in ``module_cuda.cpp`` is missing where torch has no CUDA."""

    def __hash__(self) -> int: ...  # caches by core (hooks/foreach.py)
