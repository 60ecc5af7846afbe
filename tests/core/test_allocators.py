"""What else allocates torch's tensors, and who looks at that."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..libraries import shared_library
from ..warm import python

# Memory that malloc knows nothing of, as mimalloc's within torch is.
SOURCE = """
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <cstdlib>
struct Arena final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* at = mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return {at, at, &keep, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  static void keep(void*) {}
} arena;
static const int there = (c10::SetCPUAllocator(&arena, std::atoi(getenv("PRIORITY"))), 0);
"""
PROGRAM = """
import ctypes, sys, torch
ctypes.CDLL(sys.argv[1])
import vtensor
try:
    vtensor.enable("64MiB")
except vtensor.VtensorError as error:
    assert not vtensor.is_enabled()
    sys.exit(str(error))
small, large = [torch.ones(16) for _ in range(100)], [torch.ones(1 << 20) for _ in range(24)]
assert sum(float(x.sum()) for x in [*small, *large]) == 1600 + 24 * (1 << 20)
assert vtensor.residency(large[-1]).chunks == 2
del small
assert vtensor.memory_stats()["unmanaged_bytes.current"] == 0
"""
PROFILED = """
import torch, vtensor
from torch.profiler import ProfilerActivity, profile
vtensor.enable("64MiB")
with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
    for size in (1000, 1 << 20):
        for _ in range(10):
            torch.ones(size)
"""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_library(tmp_path_factory.mktemp("arena") / "arena.cpp", SOURCE)


@pytest.mark.parametrize("priority", [0, 1])
def test_an_allocator_in_the_place_of_torchs(arena: Path, priority: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIORITY", str(priority))
    done = subprocess.run([python(), "-c", PROGRAM, str(arena)], capture_output=True, text=True, check=False)
    if priority == 0:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1 and "a priority that keeps others out" in done.stderr


def test_a_profiler_of_memory_is_told_once() -> None:
    done = subprocess.run([python(), "-c", PROFILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "unknown size" not in done.stderr, done.stderr
