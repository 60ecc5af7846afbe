"""L1: batches each of another length, beside batches of one length."""

from __future__ import annotations

from vtensor.demo.processes import measure_peak

from .plans import race, ratio
from .record import Row, write

_PAIRS = {"gpt2": "gpt2_lengths", "bert": "bert_lengths"}
_WARM = 10


def run(steps: int = 40) -> None:
    """Under half of what the longest needs. Of lengths that differ only sums can be compared, of fixed ones too."""
    rows: list[Row] = []
    for fixed, varied in _PAIRS.items():
        budget = {"budget": measure_peak(fixed) // 2}
        ways = {"plain": None, "plan": budget, "lru": {**budget, "policy": "lru"}}
        cost = {}
        for name in (fixed, varied):
            sides = race(name, ways, steps if name == varied else steps // 2)
            plain, plan, lru = (sum(sides[way].seconds[_WARM:]) for way in ways)
            stats = sides["plan"].final["stats"]
            cost[name] = plan / plain
            digests = {side.final["digest"] for side in sides.values()}
            rows.append({
                "batches": name, "plan / plain": round(plan / plain, 3), "lru / plain": round(lru / plain, 3),
                "median of pairs": round(ratio(sides, "plan", warm=_WARM), 3),
                "beside fixed": round(cost[name] / cost[fixed], 3),
                "planned": f"{stats['planned_iterations']} of {stats['iterations']}", "plans": stats["plans"],
                "identical": "yes" if len(digests) == 1 else "NO",
            })  # fmt: skip
            print(rows[-1], flush=True)
    write(
        "lengths",
        rows,
        "Batches of another length each step (L1), half of the longest one's peak, sums of the steps after the tenth: "
        "goal, at most 1.1 of what the fixed length costs.",
    )
