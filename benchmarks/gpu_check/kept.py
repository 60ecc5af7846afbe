"""Rows of earlier calls, so that the next goes on where one ended.

Covers: which rows are there for this commit and machine, writing a result file as soon as it has a row.
Leaves: which rows there should be (``compare``, ``__main__``).
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from ..record import RESULTS, Row, metadata, write

__all__ = ["Kept"]


class Kept:
    """The rows of one result file, each with a key of its own.

    What another commit or machine found does not count. Pre: `case` names one result file.
    """

    def __init__(self, case: str, note: str, folder: Path = RESULTS) -> None:
        self.case, self.note = case, note
        self.path = folder / f"{case}.partial.json"
        self.found_by = {**metadata("make gpu-check"), "date": "", "node": platform.node()}
        self.rows: dict[str, Row] = {}
        if self.path.exists():
            before: dict[str, Any] = json.loads(self.path.read_text())
            if before["found_by"] == self.found_by:
                self.rows = before["rows"]

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def add(self, key: str, row: Row) -> None:
        """Writes all rows so far: a call may be cut off at any moment."""
        print(row, flush=True)
        self.rows[key] = row
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps({"found_by": self.found_by, "rows": self.rows}, indent=1) + "\n")
        write(self.case, list(self.rows.values()), self.note, "make gpu-check", folder=self.path.parent, show=False)

    def close(self) -> None:
        """All rows are there: the next call begins anew."""
        self.path.unlink(missing_ok=True)
