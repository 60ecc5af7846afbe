"""Plain torch, vtensor and what else people use, at the same bytes as the driver sees them (C3).

Covers: what 50 % means (of plain torch's own peak, the context apart), a row for each way, what earlier calls found.
Leaves: training (``training``), the ways (``ways``), what comes first (``__main__``).

Under vtensor a share of the peak must hold everything: chunks, their padding, what is too small to be managed and what
kernels take from torch's allocator. What is beside the chunks is measured with room to spare, and the budget is what
remains.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import lgm
import vtensor
from lgm.bounds import least_seconds_in_windows
from lgm.iteration import analyze_lifetimes
from vtensor import native
from vtensor.devices.gpu import lent_bytes
from vtensor.planning.current_planner import newest_plan

from ..record import Row
from .kept import Kept
from .models import Make
from .training import TIMED, WARM, Run, capped, clear, driver_bytes, made_once
from .ways import PEERS, NotSupportedError

__all__ = ["Comparison", "all_ways"]

MIB = 1 << 20
_REFUSALS = (ValueError, TypeError, NotImplementedError)  # of a model, by libraries


def all_ways() -> list[str]:
    """Of training at the same bytes: ours, then others'."""
    return ["vtensor plan", "vtensor lru", *PEERS]


class Comparison:
    """One model in one number format.

    `in_time` says whether there is time for another row; without any, all that is left is left to the next call.
    """

    def __init__(
        self, kept: Kept, name: str, make: Make, device: str, dtype: str, chunk: str | None, in_time: Callable[[], bool]
    ) -> None:
        self.kept, self.name, self.device, self.dtype = kept, name, device, dtype
        self.make = made_once(make)
        self.chunk, self.in_time = chunk, in_time
        self.plain: Run | None = None
        self.peak = self.beside = 0

    def missing(self, share: float, ways: Sequence[str]) -> list[str]:
        """Those of `ways` that have no row yet."""
        return [way for way in ways if self.key(share, way) not in self.kept]

    def key(self, share: float, way: str) -> str:
        return f"{self.name} {self.dtype} {share:.0%} {way}"

    def run(self, share: float, ways: Sequence[str]) -> bool:
        """The rows of one budget that are not there yet; whether all are there now."""
        for way in self.missing(share, ways):
            if not self.in_time():
                return False
            if self.plain is None:
                self.measure()
            clear(self.device)
            row = self.managed(share, way) if way.startswith("vtensor ") else self.peer(share, way)
            self.kept.add(self.key(share, way), row)
        return True

    def measure(self) -> None:
        """Plain torch's step and peak, and what vtensor leaves outside of chunks."""
        clear(self.device)
        self.plain = Run(self.name, self.make, self.device, self.dtype == "bf16")
        self.kept.add(self.key(1, "plain torch"), self.row(1, "plain torch", self.plain))
        clear(self.device)
        before = driver_bytes(self.device)  # the context by now, and the kernels that are loaded
        with vtensor.enabled(0.5, device=self.device, policy="lru", chunk=self.chunk):
            slack = Run(self.name, self.make, self.device, self.dtype == "bf16")
            stats = vtensor.memory_stats()
            taken = driver_bytes(self.device) - before
            chunks = max(native.load().snapshot()["handles"]["chunks"] * stats["chunk_bytes"], lent_bytes())
        exact = stats["tensor_bytes.peak"] + stats["unmanaged_bytes.peak"]
        self.peak = self.plain.peak or exact
        self.beside = max(taken - chunks, 0) if self.device == "cuda" else 0  # a pool takes all of the budget at once
        row = self.row(1, "vtensor, room to spare", slack) | {
            "peak of plain (MiB)": self.peak // MIB,
            "padding (MiB)": (stats["wanted_bytes.peak"] - stats["tensor_bytes.peak"]) // MIB,
            "beside chunks (MiB)": self.beside // MIB,
        }
        self.kept.add(self.key(1, "vtensor, room to spare"), row)

    def row(self, share: float, way: str, run: Run) -> Row:
        assert self.plain is not None
        return {
            "model": self.name, "dtype": self.dtype, "of plain's peak": f"{share:.0%}", "way": way,
            "step ratio": round(run.step / self.plain.step, 3), "step (ms)": round(run.step * 1e3, 1),
            "identical": "yes" if run.is_same(self.plain) else "NO",
        }  # fmt: skip

    def without(self, share: float, way: str, why: str) -> Row:
        return {
            "model": self.name, "dtype": self.dtype, "of plain's peak": f"{share:.0%}", "way": way, "step ratio": why,
        }  # fmt: skip

    def peer(self, share: float, way: str) -> Row:
        how = PEERS[way]
        try:
            with capped(self.device, int(self.peak * share)):
                run = Run(self.name, self.make, self.device, self.dtype == "bf16", how, share)
        except torch.OutOfMemoryError:
            return self.without(share, way, "does not fit")
        except (NotSupportedError, torch._dynamo.exc.TorchDynamoException, *_REFUSALS) as error:
            return self.without(share, way, f"not supported: {' '.join(str(error).split())[:120]}")
        row = self.row(share, way, run)
        return row if how.same_bits else row | {"identical": "not promised"}

    def managed(self, share: float, way: str) -> Row:
        budget, policy = int(self.peak * share) - self.beside, way.split()[1]
        before = driver_bytes(self.device)
        trace = self.kept.path.with_name(f"gpu_{self.name}_{self.dtype}.npz") if share == 0.5 else None
        try:
            with vtensor.enabled(budget, device=self.device, policy=policy, chunk=self.chunk):
                run = Run(self.name, self.make, self.device, self.dtype == "bf16")
                stats, foreseen = vtensor.memory_stats(), _foreseen(trace)
                taken = driver_bytes(self.device) - before
        except (torch.OutOfMemoryError, vtensor.ConfigError) as error:
            return self.without(share, way, f"does not fit: {' '.join(str(error).split())[:120]}")
        return self.row(share, way, run) | {
            "allowed (MiB)": int(self.peak * share) // MIB,
            "driver-visible (MiB)": taken // MIB,
            "held peak (MiB)": stats["held_bytes.peak"] // MIB,
            "overdrawn (MiB)": stats["overdrawn_bytes.peak"] // MIB,
            "pinned (MiB)": stats["pinned_bytes"] // MIB,
            "out (MiB/step)": stats["moved_out_bytes"] // (WARM + TIMED) // MIB,
            "in (MiB/step)": stats["moved_in_bytes"] // (WARM + TIMED) // MIB,
            "recomputed (MiB/step)": stats["made_bytes"] // (WARM + TIMED) // MIB,
            "host waits, all and timed steps": f"{stats['host_waits']}, {run.host_waits}",
            "asking (ms)": round(statistics.median(run.asking[WARM:]) * 1e3, 1),
            "mapped (chunks/step)": run.mapped // TIMED,
            "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
            **foreseen,
        }


def _foreseen(trace: Path | None) -> Row:
    """What the plan foresaw, and what none that only copies can beat with this budget and link.

    The iteration it was made of is written to `trace`, so that it can be looked at where there is no GPU.
    """
    plan = newest_plan()
    if plan is None:
        return {}
    recorded = plan.recorded
    if trace is not None:
        lgm.save_trace(recorded, trace)
    least = least_seconds_in_windows(recorded, plan.device, analyze_lifetimes(recorded))
    return {
        "foreseen (ms)": round(plan.prediction.step_seconds * 1e3, 1),
        "computing (ms)": round(recorded.seconds * 1e3, 1),
        "no copying beats (ms)": round(least * 1e3, 1),
    }
