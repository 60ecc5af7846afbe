"""What a plan does, for people: a table, a picture, a timeline for Perfetto.

Covers: text, PNG or SVG (needs matplotlib), Chrome trace JSON.
Leaves: how plans and figures are come by, to the other modules.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..bounds.copies import least_seconds, least_seconds_in_windows
from ..bounds.mixes import least_seconds_of_any_mix
from ..checkpoints.segments import Ways, root_of
from ..errors import LgmError
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..iteration.needs import smallest_budget
from ..placing.mapping import layers, occupied
from ..records.model import Plan, Trace
from ..records.rows import describe, name_of
from ..records.units import format_bytes, format_seconds
from ..timing.lanes import Timeline
from ..timing.moves import Moves, moves_of_plan
from ..timing.simulate import run_on_demand, run_plan

__all__ = ["checkpoints", "draw", "graph", "perfetto", "summary", "table", "trace_summary"]

_FEW = 8000  # operations
_MOST_PLACED = 1 << 19  # chunks, each placed by itself: some seconds


def trace_summary(trace: Trace) -> str:
    """What a trace holds, in a few lines."""
    life = analyze_lifetimes(trace)
    lasting = trace.lasting
    fullest, neediest = (describe(trace, int(np.argmax(of))) for of in (life.live, life.needed))
    rows = [
        ("operations", str(trace.operations)),
        (
            "tensors",
            f"{trace.tensors}, of which {int(lasting.sum())} last ({format_bytes(trace.tensor_bytes[lasting].sum())})",
        ),
        ("computing", format_seconds(trace.seconds)),
        ("peak", f"{format_bytes(life.peak * trace.chunk_bytes)} at {fullest}"),
        ("smallest budget", f"{format_bytes(smallest_budget(trace, life))} for {neediest}"),
        *((_plain(key), _plain(value)) for key, value in trace.meta.items()),
    ]
    return "\n".join(f"  {name:<16} {value}" for name, value in rows)


def _plain(value: object) -> str:
    """On one line, whatever it is."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def summary(plan: Plan) -> str:
    """What a plan promises, beside what no plan can beat and what no plan at all would cost."""
    trace, device, p = plan.trace, plan.device, plan.prediction
    recorded = plan.recorded
    life, moves = moves_of_plan(plan)
    traffic = least_seconds(trace, device, moves)
    times = f"this one takes {p.step_seconds / traffic:.3f} x that"
    bounds = [("its traffic takes", f"{format_seconds(traffic)} at least; {times}")]
    if trace.operations <= _FEW:  # time grows with the square of them
        least = {"plan": least_seconds_in_windows(trace, device, life)}
        if len(recorded.call_first):
            least = {"copying": least["plan"], "plan": least_seconds_of_any_mix(recorded, device)}
        for what, best in least.items():
            times = f"this one takes {p.step_seconds / best:.3f} x that"
            bounds.append((f"no {what} beats", f"{format_seconds(best)}; {times}"))
    chunk = trace.chunk_bytes
    rows = [
        (
            "budget",
            f"{format_bytes(device.budget_chunks * chunk)}, "
            f"{device.budget_chunks / analyze_lifetimes(recorded).peak:.0%} of the peak",
        ),
        ("held at most", f"{format_bytes(p.peak_chunks * chunk)}"),
        ("step", f"{format_seconds(p.step_seconds)}, {p.step_seconds / recorded.seconds:.3f} x computing alone"),
        *bounds,
        ("without a plan", _on_demand(plan)),
        ("waits", format_seconds(p.waits_seconds)),
        *_moving(plan),
        ("out, in", f"{format_bytes(moves.out_bytes.sum())}, {format_bytes(moves.in_bytes.sum())} an iteration"),
        *_recomputed(plan),
        ("reservation", f"{plan.reservation} chunks of {format_bytes(chunk)}"),
        ("made with", ", ".join(f"{k}={v}" for k, v in plan.switches.items())),
    ]
    return "\n".join(f"  {name:<18} {value}" for name, value in rows)


def _on_demand(plan: Plan) -> str:
    try:
        return f"{format_seconds(run_on_demand(plan.recorded, plan.device).step_seconds)} (LRU, on demand)"
    except LgmError as error:  # it brings whole tensors, which may not fit where what is used of them does
        return f"- ({error})"


def _moving(plan: Plan) -> list[tuple[str, str]]:
    """Where those who copy are those who compute."""
    seconds = plan.prediction.step_seconds - plan.trace.seconds - plan.prediction.waits_seconds
    return [("moving", f"{format_seconds(seconds)} of computing")] if plan.device.tax + plan.device.switch > 0 else []


def _recomputed(plan: Plan) -> list[tuple[str, str]]:
    if plan.remaking is None:
        return []
    made = plan.remaking.make_tensor
    size = format_bytes(plan.recorded.tensor_bytes[made].sum())
    seconds = format_seconds(plan.trace.seconds - plan.recorded.seconds)
    return [("recomputed", f"{size} an iteration, {len(made)} tensor{'s' * (len(made) != 1)} in {seconds}")]


def table(plan: Plan, groups: int = 16) -> str:
    """One line for each group of layers: what is held, and what moves meanwhile."""
    trace, chunk = plan.trace, plan.trace.chunk_bytes
    life, moves = moves_of_plan(plan)
    _, line = run_plan(trace, plan.device, life, moves)
    edges = np.unique(np.linspace(0, trace.operations, max(1, min(groups, trace.operations)) + 1).astype(int))
    head = f"{'operations':>13} {'computing':>10} {'waits':>10} {'live':>11} {'held':>11} {'out':>11} {'in':>11}"
    lines = [f"{head}  longest operation"]
    for a, b in itertools.pairwise(edges.tolist()):
        computing, waits = format_seconds(trace.op_ns[a:b].sum() / 1e9), format_seconds(sum(line.wait[a:b]))
        out = moves.out_bytes[(moves.out_op >= a) & (moves.out_op < b)].sum()
        back = moves.in_bytes[(moves.in_op >= a) & (moves.in_op < b)].sum()
        longest = a + int(np.argmax(trace.op_ns[a:b]))
        lines.append(
            f"{f'{a}-{b - 1}':>13} {computing:>10} {waits:>10} "
            f"{format_bytes(life.live[a:b].max() * chunk):>11} {format_bytes(max(line.held[a:b]) * chunk):>11} "
            f"{format_bytes(out):>11} {format_bytes(back):>11}  {name_of(trace, longest)}"
        )
    return "\n".join(lines)


def graph(plan: Plan, limit: int = 40) -> str:
    """The layered graph: events, the physical chunks they place, and swapped-by edges."""
    if plan.trace.chunks.sum() > _MOST_PLACED:
        raise LgmError(f"a graph of more than {_MOST_PLACED} chunks is longer than anybody reads")
    life, moves = moves_of_plan(plan)
    lines, total, edges = [], 0, 0
    for layer in layers(plan.trace, plan.device, life, moves):
        total, edges = total + 1, edges + len(layer.swapped_by)
        if total > limit:
            continue
        chunks = [str(chunk) for _, _, chunk in layer.placed]
        took = ", ".join(f"{a[0]}[{a[1]}] -> {b[0]}[{b[1]}]" for a, b in layer.swapped_by[:4])
        more = f" and {len(layer.swapped_by) - 4} more" if len(layer.swapped_by) > 4 else ""
        by = f"  swapped by: {took}{more}" if took else ""
        where = f"  on chunks {', '.join(chunks[:6])}{' ...' if len(chunks) > 6 else ''}" if chunks else ""
        lines.append(f"  layer {total:<5} operation {layer.op:<5} {layer.event:<22}{where}{by}")
    if total > limit:
        lines.append(f"  ... {total - limit} more layers")
    return "\n".join([*lines, f"  {total} layers, {edges} swapped-by edges"])


def draw(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Memory over time with and without the plan; below it computing and the two lanes.

    Raises
    ------
    LgmError
        If matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise LgmError("a picture needs matplotlib: pip install matplotlib") from None
    trace, device = plan.trace, plan.device
    life, moves = moves_of_plan(plan)
    prediction, line = run_plan(trace, device, life, moves)
    mib = trace.chunk_bytes / 2**20
    begin = np.array(line.begin)
    figure, (top, lanes) = pyplot.subplots(
        2, 1, figsize=(11, 6), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    recorded = np.arange(trace.operations) if plan.remaking is None else plan.remaking.at
    live = analyze_lifetimes(plan.recorded).live * mib
    top.step(begin[recorded], live, where="post", color="0.55", label="all live tensors (no budget)")
    top.fill_between(
        begin, occupied(trace, life, moves) * mib, step="post", alpha=0.35, color="tab:blue", label="resident by plan"
    )
    top.step(begin, np.array(line.held) * mib, where="post", color="tab:blue", label="held, copies under way included")
    top.axhline(device.budget_chunks * mib, color="tab:red", linestyle="--", label="budget")
    top.set_ylabel("MiB")
    top.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    top.set_title(
        f"{trace.meta.get('model', 'one iteration')}: step {format_seconds(prediction.step_seconds)}, "
        f"{prediction.step_seconds / plan.recorded.seconds:.2f} x computing, "
        f"budget {device.budget_chunks / analyze_lifetimes(plan.recorded).peak:.0%} of the peak",
        fontsize=10,
    )
    computing = np.stack([begin, trace.op_ns / 1e9], axis=1)
    again = np.zeros(trace.operations, dtype=bool) if plan.remaking is None else plan.remaking.rows_again
    for y, color, bars in (
        (2, "tab:green", computing[~again].tolist()),
        (2, "tab:red", computing[again].tolist()),
        (1, "tab:orange", [(a, b - a) for a, b, _, _ in line.out]),
        (0, "tab:purple", [(a, b - a) for a, b, _, _ in line.back]),
    ):
        lanes.broken_barh(bars, (y - 0.4, 0.8), facecolors=color, linewidth=0)
    lanes.set_yticks([2, 1, 0], ["compute" if plan.remaking is None else "compute\n(red: recompute)", "out", "in"])
    lanes.set_xlabel("seconds of one iteration in the steady state")
    try:
        figure.savefig(path)
    except ValueError as error:
        raise LgmError(f"{os.fspath(path)}: {error}") from None
    finally:
        pyplot.close(figure)


def perfetto(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the predicted iteration as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open."""
    trace = plan.trace
    life, moves = moves_of_plan(plan)
    _, line = run_plan(trace, plan.device, life, moves)
    Path(path).write_text(json.dumps({"traceEvents": _events(plan, life, moves, line), "displayTimeUnit": "ms"}))


def _events(plan: Plan, life: Lifetimes, moves: Moves, line: Timeline) -> list[dict[str, Any]]:
    trace = plan.trace
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in ((1, "compute"), (2, "out lane"), (3, "in lane"))
    ]

    def bar(tid: int, name: str, start: float, length: float, **args: Any) -> None:
        events.append(
            {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start * 1e6, "dur": length * 1e6, "args": args}
        )

    for op in range(trace.operations):
        if line.wait[op] > 0:
            bar(1, "waiting for copies", line.begin[op] - line.wait[op], line.wait[op])
        bar(1, name_of(trace, op), line.begin[op], float(trace.op_ns[op]) / 1e9, operation=op)
        held = {"held": line.held[op] * trace.chunk_bytes, "budget": plan.device.budget_chunks * trace.chunk_bytes}
        events.append({"ph": "C", "pid": 1, "name": "bytes", "ts": line.begin[op] * 1e6, "args": held})
    for tid, copies, gap in ((2, line.out, moves.out_gap), (3, line.back, moves.in_gap)):
        for a, b, k, chunks in copies:
            tensor = int(life.gaps.tensor[gap[k]])
            bar(tid, f"tensor {tensor}", a, b - a, chunks=chunks, bytes=chunks * trace.chunk_bytes)
    return events


def checkpoints(trace: Trace, ways: Ways) -> str:
    """What the best checkpoints keep, and what they and those by the rule of the square root come to."""
    best, before = ways.best, analyze_lifetimes(trace).peak
    chain = best.chain
    rows = [("everything kept", before, 1.0)]
    for name, found in (("these", best), (f"one layer in {root_of(chain)}", ways.root)):
        if found is not None:
            rows.append((name, found.plan.prediction.peak_chunks, found.plan.trace.seconds / trace.seconds))
    lines = [f"  a chain of {len(chain.rows)} layers; kept are what is alive after"]
    for k in best.layers:
        lines.append(f"    {format_bytes(chain.across[k]):>12}   layer {k}, {describe(trace, int(chain.rows[k]))}")
    lines.append(f"  {'':<20} {'peak':>12} {'of the peak':>12} {'step':>9}")
    for name, peak, step in rows:
        size = format_bytes(peak * trace.chunk_bytes)
        lines.append(f"  {name:<20} {size:>12} {peak / before:>12.0%} {step:>7.3f} x")
    return "\n".join(lines)
