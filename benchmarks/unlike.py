"""L2: iterations of which no two are alike, or few."""

from __future__ import annotations

from vtensor.demo.processes import measure_peak

from .plans import race
from .record import Row, write

_NAMES = ("experts", "layerdrop")
_WARM = 8


def run(link: float, steps: int = 28) -> None:
    """Under half of the peak, over that link and where copies cost nothing but the threads' time; sums of steps."""
    rows: list[Row] = []
    for name in _NAMES:
        budget = {"budget": measure_peak(name) // 2}
        for speed, linked in (("none", {}), (f"{link / 1e9:.2f} GB/s", {"link": link})):
            plan = {**budget, **linked}
            ways = {"plain": None, "plan": plan, "lru": {**plan, "policy": "lru"}}
            sides = race(name, ways, steps)
            plain, planned, lru = (sum(sides[way].seconds[_WARM:]) for way in ways)
            stats = sides["plan"].final["stats"]
            digests = {side.final["digest"] for side in sides.values()}
            rows.append({
                "model": name, "link": speed,
                "plan / plain": round(planned / plain, 3), "lru / plain": round(lru / plain, 3),
                "planned": f"{stats['planned_iterations']} of {stats['iterations']}", "plans": stats["plans"],
                "of operations": f"{stats['planned_operations'] / max(stats['operations'], 1):.0%}",
                "came back": stats["rejoined"], "identical": "yes" if len(digests) == 1 else "NO",
            })  # fmt: skip
            print(rows[-1], flush=True)
    write(
        "unlike",
        rows,
        "Iterations that differ (L2), half of the peak, sums of the steps after the eighth: `planned` from end to end, "
        "`of operations` in part; an iteration that left its plan comes back where it does again what was planned.",
    )
