"""A page about the session, as a file or in a notebook.

Covers: which plan or iteration it is of, the iterations so far, how a notebook shows it.
Leaves: drawing (``lgm.reports.page``), what each iteration did (``planning.journal``).
"""

from __future__ import annotations

import html
import os
from pathlib import Path

from lgm.reports.page import page_of

from ..planning.current_planner import keep_journal, newest_plan
from ..planning.traces import recorded_trace
from ..settings.sizes import format_bytes

__all__ = ["Page", "report"]


class Page:
    """HTML that needs nothing beside it; as the last line of a notebook's cell it is shown."""

    def __init__(self, text: str) -> None:
        self.html = text

    def __repr__(self) -> str:
        return f"<page of {format_bytes(len(self.html))}: shown by a notebook, written by report(path)>"

    def _repr_html_(self) -> str:
        """In a frame, as its styles and its names are not the notebook's."""
        frame = "width: 100%; height: 1000px; border: 0"
        return f'<iframe srcdoc="{html.escape(self.html)}" style="{frame}"></iframe>'


def report(path: str | os.PathLike[str] | None = None, title: str = "") -> Page:
    """Draw the newest plan, or the last iteration recorded: what is held, copied and recomputed, and when.

    Below it the figures foreseen, and a table of the newest iterations: how long each took, what it moved, and whether
    it followed its plan or where it left it (under another policy than plans, of those since the first call).
    ``vtensor run --report FILE`` writes the same at the end of a script.

    Parameters
    ----------
    path
        A file for a browser; without one the page is for a notebook, which shows what stands last in a cell.
    title
        What stands above it.

    Returns
    -------
    Page
        What was drawn, some 5 MB: plotly is in it, so that it needs no network.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    NotRecordedError
        If no iteration was recorded yet, as while everything fits: call :func:`vtensor.record` before.
    lgm.LgmError
        If plotly is not installed.
    """
    plan = newest_plan()
    page = Page(page_of(recorded_trace() if plan is None else plan, keep_journal().rows, title))
    if path is not None:
        Path(path).write_text(page.html, encoding="utf-8")
    return page
