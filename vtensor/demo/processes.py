"""Processes that take a step when they are told, so that several can be compared in turns on one machine.

Covers: starting one, on this code or on that of another checkout; its answers, and its words if it ends early.
Leaves: what the demo's do (``worker``). Benchmarks compare by these as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from ..errors import VtensorError

__all__ = ["SteppedProcess", "Worker", "measure_peak"]


class SteppedProcess:
    """A Python process that does something, and says what in a line of JSON, when it is told.

    It runs in `checkout`, with the code that lies there, or like this one.
    """

    def __init__(self, arguments: list[str], checkout: Path | None = None) -> None:
        # No pipe: nobody empties it, and a full one would stop the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this lives)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=checkout,
            env=None if checkout is None else {**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.listen()

    def listen(self) -> dict[str, Any]:
        out: IO[str] | None = self.process.stdout
        assert out is not None
        for line in out:
            if line.startswith("{"):
                message: dict[str, Any] = json.loads(line)
                return message
        self.process.wait()
        self._errors.seek(0)
        raise VtensorError(
            f"a process that took steps ended early:\n{self._errors.read().decode(errors='replace')[-3000:]}"
        )

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def step(self) -> dict[str, Any]:
        self.go()
        return self.listen()

    def finish(self) -> dict[str, Any]:
        result = self.listen()
        self.process.wait()
        return result

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Worker(SteppedProcess):
    """A training process that does one step when told."""

    def __init__(
        self,
        name: str,
        steps: int,
        options: dict[str, Any] | None = None,
        checkpointing: bool = False,
        settled: int = 0,
        *,
        checkout: Path | None = None,
    ) -> None:
        how = json.dumps({"options": options, "checkpointing": checkpointing, "settled": settled})
        super().__init__(["-m", "vtensor.demo.worker", name, str(steps), how], checkout)


def measure_peak(name: str, checkpointing: bool = False) -> int:
    """Bytes in whole chunks that the workload wants at most: its peak with the whole machine as budget."""
    worker = Worker(name, 2, {"budget": 1.0}, checkpointing)
    worker.step()
    worker.step()
    return int(worker.finish()["stats"]["wanted_bytes.peak"])
