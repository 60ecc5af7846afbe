"""What ``test_pools`` runs, each in a process of its own: ``python -m tests.gpu.cupy_standin.programs LIBRARY``.

The names of those that came to their end are printed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from . import inject

CHUNK = 1 << 16


class Base:
    """The native core's side: whole chunks, counted."""

    def __init__(self, chunks: int) -> None:
        self.room, self.made, self.blocks = chunks, [], {}

    def make(self, nbytes: int) -> int:
        if nbytes > self.room * CHUNK:
            return 0
        self.room -= nbytes // CHUNK
        self.made.append(nbytes)
        block = ctypes.create_string_buffer(nbytes)
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def give_back(self, address: int, nbytes: int) -> None:
        assert len(self.blocks.pop(address)) == nbytes
        self.room += nbytes // CHUNK


def pool_of(base: Base, budget: int, shrink: Any = lambda chunks: []) -> Any:
    from vtensor.devices.pools import ChunkSource, DevicePool

    return DevicePool(ChunkSource(base.make, base.give_back, CHUNK), budget * CHUNK, shrink)


def chunks_are_equal_and_the_limit_is_the_budget() -> None:
    base = Base(100)
    pool = pool_of(base, budget=8)
    lent = pool.lend(20)
    assert len(lent) == len(set(lent)) == 8
    assert base.made == [CHUNK] * 8
    assert pool.lent_bytes == 8 * CHUNK
    pool.take_back(lent[:3])
    assert len(pool.lend(5)) == 3  # the same memory again: nothing new is made
    assert len(base.made) == 8


def a_device_without_room_lends_fewer() -> None:
    assert len(pool_of(Base(5), budget=8).lend(8)) == 5


def a_smaller_budget_goes_back_to_the_device() -> None:
    base = Base(100)
    pool = pool_of(base, budget=8)
    lent = pool.lend(8)
    pool.take_back(lent[:4])
    pool.resize(4 * CHUNK)
    assert base.room == 96


def an_array_of_several_chunks_gets_what_torch_gives_up() -> None:
    base = Base(100)
    given = []
    pool = pool_of(base, budget=8, shrink=lambda chunks: [given.pop() for _ in range(chunks)])
    given += pool.lend(8)
    array = pool.allocate(3 * CHUNK)
    assert base.made[-1] == 3 * CHUNK and len(given) == 5
    del array


def small_arrays_are_cut_from_a_chunk() -> None:
    base = Base(100)
    pool = pool_of(base, budget=4)
    pieces = [pool.allocate(1000) for _ in range(20)]
    assert base.made == [CHUNK]
    assert len({int(piece.ptr) for piece in pieces}) == 20
    large = pool.allocate(2 * CHUNK + 5)
    assert base.made == [CHUNK, 3 * CHUNK]
    del large, pieces
    assert len(pool.lend(4)) >= 1


def cupy_takes_room_from_torch() -> None:
    base = Base(100)
    asked: list[int] = []

    def shrink(chunks: int) -> list[int]:
        asked.append(chunks)
        return [lent.pop() for _ in range(chunks)]

    pool = pool_of(base, budget=6, shrink=shrink)
    lent = pool.lend(6)
    memory = pool.allocate(CHUNK - 8)
    assert asked == [1]
    assert len(lent) == 5
    ctypes.memset(int(memory.ptr), 7, CHUNK - 8)
    assert sum(base.made) == 6 * CHUNK  # nothing beyond the budget was ever made


def without_room_it_is_cupys_own_error() -> None:
    import cupy

    pool = pool_of(Base(100), budget=2)
    pool.lend(2)
    try:
        pool.allocate(100)
    except cupy.cuda.memory.OutOfMemoryError:
        return
    raise AssertionError("nothing was raised")


def cupys_arrays_use_it() -> None:
    import cupy
    import numpy

    base = Base(100)
    pool = pool_of(base, budget=16)
    cupy.cuda.set_allocator(pool.allocate)
    values = numpy.arange(5000, dtype=numpy.float64)
    array = cupy.ndarray((5000,), dtype=cupy.float64)
    array.set(values)
    assert (array.get() == values).all()
    assert base.made == [CHUNK]
    del array
    cupy.cuda.set_allocator(None)
    pool.close()
    assert base.room == 100


def everything_is_given_back() -> None:
    base = Base(10)
    pool = pool_of(base, budget=10)
    pool.lend(4)
    piece = pool.allocate(700)
    del piece
    pool.close()
    assert base.room == 10
    assert not base.blocks


PROGRAMS = [
    chunks_are_equal_and_the_limit_is_the_budget,
    a_device_without_room_lends_fewer,
    a_smaller_budget_goes_back_to_the_device,
    an_array_of_several_chunks_gets_what_torch_gives_up,
    small_arrays_are_cut_from_a_chunk,
    cupy_takes_room_from_torch,
    without_room_it_is_cupys_own_error,
    cupys_arrays_use_it,
    everything_is_given_back,
]

if __name__ == "__main__":
    inject(Path(sys.argv[1]))
    import cupy  # noqa: F401 -- once, as it takes seconds

    import vtensor.devices.pools  # noqa: F401

    for program in PROGRAMS:
        if (child := os.fork()) == 0:
            program()
            print(program.__name__, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
