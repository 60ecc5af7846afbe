"""One iteration as a page for a browser: memory by what it is for, what a plan moves, and when.

Covers: a file of its own, with no need of a network; zoom and names under the pointer; a table of iterations.
Leaves: drawing (plotly, which is in the file), texts for a terminal (``report``).
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LgmError
from ..iteration.roles import ROLES, Roles, roles_of
from ..placing.mapping import occupied
from ..records.model import Floats, Plan, Trace
from ..records.rows import describe, nominal
from ..records.units import format_bytes, format_seconds
from ..timing.moves import moves_of_plan
from ..timing.simulate import run_plan
from . import report

__all__ = ["page_of", "write_page"]

_COLORS = {
    "weights": "#4477aa",
    "optimizer states": "#66ccee",
    "gradients": "#ccbb44",
    "activations": "#228833",
    "gradients of activations": "#bbcc88",
    "other": "#bbbbbb",
}
_PHASES = (("forward", "#228833"), ("backward", "#ccbb44"), ("optimizer", "#66ccee"))
_LANES = {"computing": "#228833", "recomputed": "#ee6677", "copies out": "#ee8866", "copies in": "#aa3377"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5em auto; max-width: 80em; padding: 0 1em }}
body {{ color: #222; background: #fff }}
pre {{ background: #f5f5f5; padding: 0.8em; white-space: pre-wrap }}
table {{ border-collapse: collapse }}
td, th {{ padding: 0.15em 0.8em; text-align: right; border-bottom: 1px solid #ddd }}
td:last-child, th:last-child {{ text-align: left }}
</style></head><body>
<h1>{title}</h1>
<p>Drag to zoom, double click to see all again; names and sizes are under the pointer.</p>
{figure}
<pre>{summary}</pre>
{table}
</body></html>
"""

Rows = Sequence[dict[str, Any]]


def write_page(found: Trace | Plan, path: str | os.PathLike[str], iterations: Rows = (), title: str = "") -> None:
    """Write :func:`page_of` to `path`."""
    Path(path).write_text(page_of(found, iterations, title), encoding="utf-8")


def page_of(found: Trace | Plan, iterations: Rows = (), title: str = "") -> str:
    """The page of a trace or a plan.

    Parameters
    ----------
    title
        Default: the model's name, if the trace has one.
    iterations
        One row for each that ran, all with the same columns; for the table below the picture.

    Returns
    -------
    str
        HTML, with everything it needs in it: some 5 MB.

    Raises
    ------
    LgmError
        If plotly is not installed.
    """
    try:
        from plotly.graph_objects import Figure
        from plotly.subplots import make_subplots
    except ImportError:
        raise LgmError("a page needs plotly: pip install plotly") from None
    plan = found if isinstance(found, Plan) else None
    trace = found.recorded if isinstance(found, Plan) else found
    figure: Figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.72, 0.28], vertical_spacing=0.06)
    begin = _draw_plan(figure, plan) if plan is not None else _draw_computing(figure, trace)
    _draw_memory(figure, trace, roles_of(trace), begin)
    figure.update_layout(
        height=720, barmode="overlay", hovermode="closest", template="plotly_white", margin={"t": 40, "b": 40, "r": 60},
        modebar={"orientation": "v"},
        legend={"orientation": "h", "y": 1.08}, bargap=0.2,
    )  # fmt: skip
    figure.update_yaxes(title_text="MiB", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="seconds of one iteration", row=2, col=1)
    title = title or str(trace.meta.get("model", "One iteration"))
    if plan is not None:
        title += f" in {format_bytes(plan.device.budget_chunks * trace.chunk_bytes)}"
    return _PAGE.format(
        title=html.escape(title),
        figure=figure.to_html(
            full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True}
        ),
        summary=html.escape(report.summary(plan) if plan is not None else report.trace_summary(trace)),
        table=_table(iterations),
    )


def _draw_memory(figure: Any, trace: Trace, roles: Roles, begin: Floats) -> None:
    names = [trace.names[name] for name in trace.op_name.tolist()]
    over_time = roles.bytes_over_time(trace) / 2**20
    for k, role in enumerate(ROLES):
        if over_time[k].any():
            figure.add_scatter(
                x=begin, y=over_time[k], name=role, mode="lines", stackgroup="memory", text=names,
                line={"width": 0.5, "color": _COLORS[role], "shape": "hv"},
                hovertemplate="%{text}<br>" + role + " %{y:.1f} MiB<extra></extra>", row=1, col=1,
            )  # fmt: skip
    edges = [0, roles.backward, roles.step, trace.operations]
    times = [*begin.tolist(), float(begin[-1] + trace.op_ns[-1] / 1e9)]
    for (name, color), a, b in zip(_PHASES, edges, edges[1:], strict=False):
        if a < b:
            figure.add_vrect(
                x0=times[a], x1=times[b], fillcolor=color, opacity=0.06, line_width=0, annotation_text=name,
                annotation_position="top left", row=1, col=1,
            )  # fmt: skip


def _draw_computing(figure: Any, trace: Trace) -> Floats:
    begin = nominal(trace)[:-1]
    _bars(figure, "computing", begin, trace.op_ns / 1e9, [describe(trace, k) for k in range(trace.operations)])
    return np.asarray(begin)


def _draw_plan(figure: Any, plan: Plan) -> Floats:
    """What the plan holds, and its lanes; when each recorded row begins under it."""
    trace = plan.trace
    life, moves = moves_of_plan(plan)
    _, line = run_plan(trace, plan.device, life, moves)
    begin, mib = np.array(line.begin), trace.chunk_bytes / 2**20
    for name, values, style in (
        ("there by plan", occupied(trace, life, moves), {"color": "#000000", "width": 1.5}),
        ("held, with copies under way", np.array(line.held), {"color": "#000000", "width": 1, "dash": "dot"}),
    ):
        figure.add_scatter(
            x=begin, y=values * mib, name=name, mode="lines", line={**style, "shape": "hv"},
            hovertemplate=name + " %{y:.1f} MiB<extra></extra>", row=1, col=1,
        )  # fmt: skip
    figure.add_hline(
        y=plan.device.budget_chunks * mib, line={"color": "#cc3311", "dash": "dash"}, annotation_text="budget",
        annotation_position="bottom right", row=1, col=1,
    )  # fmt: skip
    again = np.zeros(trace.operations, dtype=bool) if plan.remaking is None else plan.remaking.rows_again
    names = [describe(trace, k) for k in range(trace.operations)]
    for lane, rows in (("computing", ~again), ("recomputed", again)):
        chosen = np.flatnonzero(rows)
        _bars(figure, lane, begin[chosen], trace.op_ns[chosen] / 1e9, [names[k] for k in chosen])
    sizes = trace.chunk_bytes
    for lane, copies, gap in (("copies out", line.out, moves.out_gap), ("copies in", line.back, moves.in_gap)):
        tensors = [int(life.gaps.tensor[gap[k]]) for _, _, k, _ in copies]
        texts = [f"tensor {t}, {format_bytes(c * sizes)}" for t, (_, _, _, c) in zip(tensors, copies, strict=True)]
        starts = np.array([a for a, _, _, _ in copies])
        _bars(figure, lane, starts, np.array([b for _, b, _, _ in copies]) - starts, texts)
    recorded = np.arange(trace.operations) if plan.remaking is None else plan.remaking.at
    return np.asarray(begin[recorded])


def _bars(figure: Any, lane: str, begin: Floats, seconds: Floats, texts: Sequence[str]) -> None:
    """Bars from `begin` on. Their edges are drawn, so that what is narrower than a pixel is seen."""
    if len(begin):
        figure.add_bar(
            base=begin, x=seconds, y=[lane] * len(begin), orientation="h", name=lane, showlegend=False,
            marker={"color": _LANES[lane], "line": {"color": _LANES[lane], "width": 0.6}},
            customdata=[f"{text}<br>{format_seconds(float(s))}" for text, s in zip(texts, seconds, strict=True)],
            hovertemplate="%{customdata}<extra>" + lane + "</extra>", row=2, col=1,
        )  # fmt: skip


def _table(rows: Rows) -> str:
    if not rows:
        return ""

    def line(cells: Any, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(line(row.values(), "td") for row in rows)
    return f"<h2>Iterations</h2>\n<table>{line(rows[0], 'th')}\n{body}</table>"
