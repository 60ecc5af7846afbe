"""CuPy's memory pools as the source of a GPU's chunks, and of memory that CuPy's own arrays share with torch's.

Covers: a :class:`cupy.cuda.MemoryPool` on CUDA's virtual memory, equal chunks taken from it for the core, a limit that
is the budget, an allocator for CuPy.
Leaves: what the core does with chunks (``kernels/cuda/driver_cuda.h``). Never called by the core: Python under its lock
could deadlock with torch's own, and costs tens of microseconds.

CuPy is an extra (``cupy-cuda13x``). Without it the core makes its chunks itself, and CuPy has nothing to share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..native.core import Core
from ..settings.sizes import format_bytes

__all__ = ["ChunkSource", "DevicePool"]


class ChunkSource:
    """Where a pool's memory comes from: whole chunks of CUDA's virtual memory, mapped at one address each.

    The base allocator of a CuPy pool. It refuses what is not whole chunks: a pool on a base of this granularity would
    waste more than it uses on mixed sizes, so small arrays are cut from chunks by the pool itself.

    Parameters
    ----------
    make, give_back
        Functions of the native core: ``make(bytes)`` returns an address, 0 if the device is full; ``give_back(address,
        bytes)`` waits for the device first, as unmapping does not.
    chunk
        Bytes of a chunk.
    """

    def __init__(self, make: Callable[[int], int], give_back: Callable[[int, int], None], chunk: int) -> None:
        self.chunk = chunk
        self._make, self._give_back = make, give_back
        self._bytes: dict[int, int] = {}

    def malloc(self, nbytes: int, device: int) -> int:
        """Address of `nbytes`; raises CuPy's own out-of-memory error, so that a pool frees and tries again."""
        address = self._make(nbytes) if nbytes % self.chunk == 0 else 0
        if address == 0:
            import cupy

            raise cupy.cuda.runtime.CUDARuntimeError(2)  # cudaErrorMemoryAllocation
        self._bytes[address] = nbytes
        return address

    def begins_at(self, address: int) -> bool:
        """Whether memory that it gave begins there."""
        return address in self._bytes

    def free(self, address: int, device: int) -> None:
        self._give_back(address, self._bytes.pop(address))


class DevicePool:
    """One CuPy pool with a hard limit, whose chunks serve torch through the core and CuPy through :meth:`allocate`.

    Parameters
    ----------
    source
        Where its memory comes from.
    budget
        Bytes the pool may hold in all.
    shrink
        Called with the number of chunks CuPy needs and cannot have; makes the core let go of as many and returns their
        addresses. May return fewer.
    """

    def __init__(self, source: ChunkSource, budget: int, shrink: Callable[[int], list[int]]) -> None:
        import cupy

        self.chunk, self._shrink = source.chunk, shrink
        self._source = source  # CuPy keeps bound methods, not what they are bound to
        self._allocator = cupy.cuda.PythonFunctionAllocator(source.malloc, source.free)
        self._pool = cupy.cuda.MemoryPool(self._allocator.malloc)
        self._pool.set_limit(size=budget)
        self._lent: dict[int, Any] = {}

    def lend(self, chunks: int) -> list[int]:
        """Addresses of up to `chunks` chunks for the core; fewer if the device has no more."""
        import cupy

        addresses: list[int] = []
        others = []  # not given back before all are taken, or they would come again
        while len(addresses) < chunks:
            try:
                memory = self._pool.malloc(self.chunk)
            except cupy.cuda.memory.OutOfMemoryError:
                break
            if not self._source.begins_at(int(memory.ptr)):  # it may lie across chunks, in one with CuPy's arrays
                others.append(memory)
                continue
            self._lent[int(memory.ptr)] = memory
            addresses.append(int(memory.ptr))
        return addresses

    def take_back(self, addresses: list[int]) -> None:
        """The core does not use these chunks any more."""
        for address in addresses:
            del self._lent[address]

    @property
    def lent_bytes(self) -> int:
        return len(self._lent) * self.chunk

    def allocate(self, nbytes: int) -> Any:
        """A :class:`cupy.cuda.MemoryPointer` of `nbytes` within the budget: what ``cupy.cuda.set_allocator`` takes.

        Raises
        ------
        cupy.cuda.memory.OutOfMemoryError
            If torch's tensors cannot make room: they are in use right now.
        """
        import cupy

        try:
            return self._cut(nbytes)
        except cupy.cuda.memory.OutOfMemoryError:
            self.take_back(self._shrink(-(-nbytes // self.chunk)))
            if nbytes > self.chunk:
                self._pool.free_all_blocks()  # single chunks, from which no array of several can be cut
            return self._cut(nbytes)

    def _cut(self, nbytes: int) -> Any:
        import cupy

        try:
            return self._pool.malloc(nbytes)  # from what the pool has free, or whole chunks
        except cupy.cuda.memory.OutOfMemoryError:
            whole = -(-max(nbytes, 1) // self.chunk) * self.chunk
            if whole == nbytes:
                raise
        seed = self._pool.malloc(whole)  # free again at once: the pool cuts small blocks from it
        del seed
        return self._pool.malloc(nbytes)

    def resize(self, budget: int) -> None:
        self._pool.set_limit(size=budget)
        self.trim()

    def trim(self) -> None:
        """What nobody uses goes back to the device: a pool keeps what it has."""
        self._pool.free_all_blocks()

    def close(self) -> None:
        """Give everything back. Pre: the core uses none of its chunks."""
        self._lent.clear()
        self.trim()

    def __repr__(self) -> str:
        return f"<DevicePool: {format_bytes(self.lent_bytes)} lent, limit {format_bytes(self._pool.get_limit())}>"


def make_device_pool(core: Core, chunk: int, ordinal: int, budget: int) -> DevicePool | None:
    """The pool of a session on a GPU, or None where there is no CuPy for it."""
    try:
        import cupy
    except ImportError:
        return None
    if not cupy.cuda.is_available():
        return None
    cupy.cuda.Device(ordinal).synchronize()  # makes the device's context, which each chunk would else make and end
    source = ChunkSource(
        lambda nbytes: int(core.make_slab(nbytes, chunk, ordinal)),
        lambda address, nbytes: core.free_slab(address, nbytes, chunk, ordinal),
        chunk,
    )

    def shrink(chunks: int) -> list[int]:
        return [int(address) for address in core.give_chunks_back(chunks)]

    return DevicePool(source, budget, shrink)
