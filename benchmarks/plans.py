"""B2 to B5: planned runs beside plain torch, the reactive policies, whole-tensor baselines and the simulator."""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lgm
from lgm.bounds import least_seconds, least_seconds_in_windows, least_seconds_of_any_mix
from lgm.iteration import analyze_lifetimes
from lgm.timing.moves import moves_of_plan
from lgm.timing.simulate import run_on_demand
from vtensor.demo.processes import Worker, measure_peak
from vtensor.demo.workloads import WORKLOADS

from .edge import link_for
from .record import Row, write
from .steps import MIB, THREE

LINKS_OF_GOALS = dict.fromkeys(WORKLOADS, 1.5e9) | {"bert": 1.4e9}  # bytes a second: by the traces of that time
WARM = 6  # the first iterations are recorded, and the plan is made beside the next
TRACES = Path(__file__).resolve().parent.parent / "traces"


class Side:
    """One way to train, step by step."""

    def __init__(self, name: str, steps: int, options: dict[str, Any] | None) -> None:
        self.worker = Worker(name, steps, options, settled=WARM)
        self.seconds: list[float] = []
        self.final: dict[str, Any] = {}


def race(name: str, ways: dict[str, dict[str, Any] | None], steps: int) -> dict[str, Side]:
    """Run every way in turns, one step each, so that all see the same noise."""
    sides = {way: Side(name, steps, options) for way, options in ways.items()}
    try:
        order = list(sides.values())
        for step in range(steps):
            for side in order if step % 2 else order[::-1]:
                side.seconds.append(side.worker.step()["seconds"])
        for side in order:
            side.final = side.worker.finish()
    finally:
        for side in sides.values():
            side.worker.stop()
    return sides


def ratios(sides: dict[str, Side], way: str, to: str = "plain", warm: int = WARM) -> list[float]:
    pairs = zip(sides[way].seconds[warm:], sides[to].seconds[warm:], strict=True)
    return [a / b for a, b in pairs]


def ratio(sides: dict[str, Side], way: str, to: str = "plain", warm: int = WARM) -> float:
    return statistics.median(ratios(sides, way, to, warm))


def interval(ordered: list[float], doubt: float = 0.1) -> tuple[float, float]:
    """Where the median of what `ordered` is a sample of lies, but for `doubt`: two of its values (the sign test)."""
    count, nth = len(ordered), 1
    outside = 2 * (1 + count) / 2**count  # the chance that the median is not even between the second from each end
    while outside <= doubt:
        nth += 1
        outside += 2 * math.comb(count, nth) / 2**count
    return ordered[nth - 1], ordered[count - nth]


def figures(side: Side, steps: int) -> Row:
    s = side.final["stats"]
    return {
        "out (MiB/step)": round(s["moved_out_bytes"] / steps / MIB),
        "in (MiB/step)": round(s["moved_in_bytes"] / steps / MIB),
        "waited (s/step)": round(s["wait_seconds"] / steps, 3),
        "planned": f"{s['planned_iterations']} of {s['iterations']}",
        "late": s["late_arrivals"],
    }


def unlimited() -> None:
    """B3: plan and reactive policy beside plain torch, no limit on the link.

    Of two processes that do the same one may be faster all its life (which of its memory got huge pages): there are two
    of each kind, and how much those differ says what a difference between the kinds means.
    """
    rows, steps = [], 14
    peaks = {name: measure_peak(name) for name in THREE}
    for name, share in itertools.product(THREE, (0.75, 0.5, 0.35, 0.25)):
        budget = {"budget": int(peaks[name] * share)}
        lru = {**budget, "policy": "lru"}
        # In this order neither kind starts earlier than the other: what memory is left may count, too.
        ways = {"plain": None, "plan": budget, "lru": lru, "lru again": lru, "plan again": budget}
        sides = race(name, ways, steps)
        digests = {side.final["digest"] for side in sides.values()}
        first, again = (ratios(sides, f"plan{nth}", f"lru{nth}") for nth in ("", " again"))
        both = sorted(math.sqrt(a * b) for a, b in zip(first, again, strict=True))
        low, high = interval(both)
        rows.append({
            "model": name, "budget": f"{share:.0%}", "plan / plain": round(ratio(sides, "plan"), 3),
            "lru / plain": round(ratio(sides, "lru"), 3), "plan / lru": round(statistics.median(both), 3),
            "so for 90 %": f"{low:.3f} to {high:.3f}", "plan / plan": round(ratio(sides, "plan again", "plan"), 3),
            "lru / lru": round(ratio(sides, "lru again", "lru"), 3), **figures(sides["plan"], steps),
            "lru: out, in (MiB/step)": "{out (MiB/step)}, {in (MiB/step)}".format(**figures(sides["lru"], steps)),
            "identical": "yes" if len(digests) == 1 else "NO",
        })  # fmt: skip
        print(rows[-1], flush=True)
    write(
        "planned",
        rows,
        "No limit on the link (B3), two processes of each kind: goal, 1.08 of plain at 50 %, never slower than LRU.",
    )


def promised(name: str, options: dict[str, Any], steps: int = 11) -> Row:
    """What a plan promised before it ran, and what was measured."""
    side = race(name, {"plan": options}, steps)["plan"]
    s = side.final["stats"]
    measured = statistics.median(side.seconds[WARM:])
    return {
        "predicted (s)": round(s["predicted_step_seconds"], 3), "measured (s)": round(measured, 3),
        "predicted / measured": round(s["predicted_step_seconds"] / measured, 3),
        "predicted peak (chunks)": s["predicted_bytes"] // s["chunk_bytes"],
        "measured peak (chunks)": s["used_bytes.peak"] // s["chunk_bytes"],
        "budget (chunks)": s["budget_bytes"] // s["chunk_bytes"], **figures(side, steps),
    }  # fmt: skip


def accuracy(links: tuple[float, ...] = (0.5e9, 1e9, 3e9), names: tuple[str, ...] = ("resnet50",)) -> None:
    """B2: the simulator against reality.

    Between promise and measurement the machine may get faster or slower: each case is run three times, and the run in
    the middle shown.
    """
    rows, runs = [], 3
    for name in names:
        peak = measure_peak(name)
        for link, share in itertools.product(links, (0.75, 0.5, 0.35)):
            options = {"budget": int(peak * share), "link": f"{link / 1e6:.0f}MB/s"}
            found = sorted((promised(name, options) for _ in range(runs)), key=lambda run: run["predicted / measured"])
            same = sum(run["predicted peak (chunks)"] == run["measured peak (chunks)"] for run in found)
            rows.append({
                "model": name, "link": options["link"], "budget": f"{share:.0%}", **found[runs // 2],
                "lowest and highest": f"{found[0]['predicted / measured']}, {found[-1]['predicted / measured']}",
                "peaks the same": f"{same} of {runs}",
            })  # fmt: skip
            print(rows[-1], flush=True)
    write("accuracy", rows, "The simulator against reality (B2): goal, within 10 %, and the same peak of chunks.")


def ablation(link: float, names: tuple[str, ...] = THREE) -> None:
    """B5: reservation and mapping switched off, one at a time; plans made offline from the recorded traces."""
    variants = {
        "all": lgm.Switches(),
        "no reservation": lgm.Switches(reservation="none"),
        "no mapping": lgm.Switches(mapping="none"),
        "no settling": lgm.Switches(settling="none"),
        "on demand": lgm.Switches(timing="on_demand"),
    }
    rows, steps = [], 11
    for name in names:
        peak = measure_peak(name)
        trace = lgm.load_trace(TRACES / f"{name}.npz")
        chunks = int(peak * 0.5) // trace.chunk_bytes
        with tempfile.TemporaryDirectory() as scratch:
            ways: dict[str, dict[str, Any] | None] = {"plain": None}
            plans = {}
            for way, switches in variants.items():
                plans[way] = lgm.analyze(trace, lgm.Device(chunks, link, link, switch=8e-6), switches)
                lgm.save_plan(plans[way], Path(scratch) / f"{way}.npz")
                common = {"budget": chunks * trace.chunk_bytes, "link": f"{link / 1e6:.0f}MB/s"}
                ways[way] = {**common, "plan": str(Path(scratch) / f"{way}.npz")}
            sides = race(name, ways, steps)
        for way, plan in plans.items():
            rows.append({
                "model": name, "variant": way, "reservation (chunks)": plan.reservation,
                "simulated / computing": round(plan.prediction.step_seconds / trace.seconds, 3),
                "measured / plain": round(ratio(sides, way), 3),
                "remaps / step": round(sides[way].final["stats"]["remaps"] / steps), **figures(sides[way], steps),
            })  # fmt: skip
            print(rows[-1], flush=True)
    write("ablation", rows, f"Reservation, mapping and early copies switched off (B5), 50 %, {link / 1e6:.0f} MB/s.")


def mean_row(rows: list[Row]) -> Row:
    """Geometric means of the columns of ratios."""
    mean: Row = {"model": "geometric mean", "budget": ""}
    for column in rows[0]:
        values = [row[column] for row in rows if isinstance(row[column], float)]
        if values:
            mean[column] = round(math.exp(statistics.fmean(math.log(v) for v in values)), 3)
    return mean


def simulated() -> None:
    """B4 in the simulator: six models, three budgets, every baseline.

    At the link by the speed each trace was made at, and at that of the machine for which R5's goals were written.
    """
    traces = {name: lgm.load_trace(TRACES / f"{name}.npz") for name in WORKLOADS}
    rows: list[Row] = []
    for links in (
        {name: link_for(float(trace.meta["flop_per_second"])) for name, trace in traces.items()},
        LINKS_OF_GOALS,
    ):
        alike = list(simulated_at(traces, links))
        rows += [*alike, mean_row(alike)]
    write("edge_simulated", rows, "B4 in the simulator. Speed-ups over the run named; bounds: see lgm.bounds.")


def simulated_at(traces: dict[str, lgm.Trace], links: dict[str, float]) -> Iterator[Row]:
    """A row for each model, at its link, and budget."""
    for name, trace in traces.items():
        link = links[name]
        life = analyze_lifetimes(trace)
        for share in (0.75, 0.5, 0.35):
            chunks = max(int(life.peak * share), int(life.needed.max()))
            device = lgm.Device(chunks, link, link, switch=8e-6)
            best = lgm.analyze(trace, device)
            both = lgm.analyze(trace, device, recompute="auto").prediction.step_seconds
            whole = lgm.analyze(trace, device, lgm.Switches(granularity="tensor")).prediction.step_seconds
            bound = least_seconds(trace, device, moves_of_plan(best)[1])
            windows = least_seconds_in_windows(trace, device, life)
            chunk_lru = run_on_demand(trace, device).step_seconds
            tensor_lru = run_on_demand(trace, device, whole=True).step_seconds
            plan = best.prediction.step_seconds
            beaten_by_none = least_seconds_of_any_mix(trace, device)
            yield {
                "model": name, "budget": f"{share:.0%}", "link (MB/s)": round(link / 1e6),
                "plan / computing": round(plan / trace.seconds, 3), "both / computing": round(both / trace.seconds, 3),
                "no plan beats / computing": round(beaten_by_none / trace.seconds, 3),
                "plan vs tensor LRU": round(tensor_lru / plan, 3), "plan vs tensor plan": round(whole / plan, 3),
                "chunks alone (LRU)": round(tensor_lru / chunk_lru, 3), "plan / bound": round(plan / bound, 3),
                "plan / bound by windows": round(plan / windows, 3),
                "reservation": best.reservation,
            }  # fmt: skip


def edge(link: float, shares: tuple[float, ...] = (0.75, 0.5, 0.35), names: tuple[str, ...] = tuple(WORKLOADS)) -> None:
    """B4: the paper's experiment at a link that is to this processor what an edge GPU's is to it.

    Plans come from the recorded traces, so that they are followed from the second iteration on.
    """
    rows, steps, warm = [], 9, 3
    text = f"{link / 1e6:.0f}MB/s"
    for name in names:
        peak = measure_peak(name)
        for share in shares:
            with tempfile.TemporaryDirectory() as scratch:
                trace = lgm.load_trace(TRACES / f"{name}.npz")
                # Where one operation alone needs more than the share, what it needs.
                chunks = max(int(peak * share) // trace.chunk_bytes, int(analyze_lifetimes(trace).needed.max()))
                common = {"budget": chunks * trace.chunk_bytes, "link": text}
                device = lgm.Device(chunks, link, link, switch=8e-6)
                ways: dict[str, dict[str, Any] | None] = {
                    "plain": None,
                    "chunk LRU": {**common, "policy": "lru"},
                    "tensor LRU": {**common, "policy": "lru", "granularity": "tensor"},
                }
                best = lgm.analyze(trace, device)
                for way, plan in (
                    ("chunk plan", best),
                    ("tensor plan", lgm.analyze(trace, device, lgm.Switches(granularity="tensor"))),
                ):
                    file = Path(scratch) / f"{way}.npz"
                    lgm.save_plan(plan, file)
                    ways[way] = {**common, "plan": str(file)}
                sides = race(name, ways, steps)
                _, moves = moves_of_plan(best)
                bound = least_seconds(trace, device, moves) / trace.seconds
                windows = least_seconds_in_windows(trace, device, analyze_lifetimes(trace)) / trace.seconds
            measured = ratio(sides, "chunk plan", warm=warm)
            digests = {side.final["digest"] for side in sides.values()}
            row: Row = {"model": name, "budget": f"{share:.0%}"}
            row |= {f"{way} / plain": round(ratio(sides, way, warm=warm), 3) for way in ways if way != "plain"}
            row |= {
                "plan vs tensor LRU": round(1 / ratio(sides, "chunk plan", "tensor LRU", warm), 3),
                "plan vs tensor plan": round(1 / ratio(sides, "chunk plan", "tensor plan", warm), 3),
                "chunks alone (LRU)": round(1 / ratio(sides, "chunk LRU", "tensor LRU", warm), 3),
                "simulated / bound": round(best.prediction.step_seconds / trace.seconds / bound, 3),
                "measured / bound": round(measured / bound, 3),
                "measured / bound by windows": round(measured / windows, 3),
                "planned": figures(sides["chunk plan"], steps)["planned"],
                "identical": "yes" if len(digests) == 1 else "NO",
            }
            rows.append(row)
            print(row, flush=True)
    write(
        "edge", [*rows, mean_row(rows)],
        f"The paper's experiment (B4) at {text} each way. Speed-ups over the run named; bound: see lgm.bounds.",
    )  # fmt: skip
