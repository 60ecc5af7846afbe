"""S1, S2, S3 and M1: whole training steps beside plain torch, in turns. See PLAN.md."""

from __future__ import annotations

import statistics
from typing import Any

from vtensor.demo.processes import Worker, measure_peak

from .record import Row, write

WARM = 2
MIB = 1 << 20
THREE = ("resnet50", "gpt2", "bert")


def compare(
    name: str, options: dict[str, Any] | None, steps: int = 7, checkpointing: bool = False
) -> tuple[float, dict[str, Any], dict[str, Any]]:
    """Median ratio of step times to plain torch, and the final words of (plain, other)."""
    plain, other = Worker(name, steps), Worker(name, steps, options, checkpointing)
    try:
        ratios = []
        for step in range(steps):
            # Take turns in going first, so that neither always finds the caches of the other.
            pair = [plain, other] if step % 2 else [other, plain]
            seconds = {worker: worker.step()["seconds"] for worker in pair}
            if step >= WARM:
                ratios.append(seconds[other] / seconds[plain])
        return statistics.median(ratios), plain.finish(), other.finish()
    finally:
        plain.stop()
        other.stop()


def _row(model: str, what: str, peak: int, options: dict[str, Any], steps: int = 7) -> Row:
    ratio, plain, other = compare(model, options, steps)
    stats = other["stats"]
    return {
        "model": model,
        "what": what,
        "peak wanted (MiB)": peak // MIB,
        "budget (MiB)": stats["budget_bytes"] // MIB,
        "held peak (MiB)": stats["held_bytes.peak"] // MIB,
        "out (MiB/step)": round(stats["moved_out_bytes"] / steps / MIB),
        "in (MiB/step)": round(stats["moved_in_bytes"] / steps / MIB),
        "waited (s/step)": round(stats["wait_seconds"] / steps, 3),
        "step ratio": round(ratio, 3),
        "identical": "yes" if plain["digest"] == other["digest"] else "NO",
    }


def slack() -> None:
    rows = [_row(name, "slack", measure_peak(name), {"budget": 0.6}, steps=14) for name in THREE]
    write("slack", rows, "A budget above the peak (S1): goal, step ratio at most 1.02.")


def reactive() -> None:
    rows = []
    for name in THREE:
        peak = measure_peak(name)
        for fraction in (0.75, 0.5, 0.35, 0.25):
            rows.append(
                _row(name, f"lru chunk {fraction:.0%}", peak, {"budget": int(peak * fraction), "policy": "lru"})
            )
    write(
        "reactive",
        rows,
        "The reactive policy below the peak (S2): goal, a step ratio of at most 1.30 at 50 %.",
    )


def policies(link: float) -> None:
    rows = []
    for name in THREE:
        peak = measure_peak(name)
        half = {"budget": peak // 2, "policy": "lru"}
        rows.append(_row(name, "lru tensor 50%", peak, {**half, "granularity": "tensor"}))
        rows.append(_row(name, "size_staleness chunk 50%", peak, {**half, "policy": "size_staleness"}))
        for policy in ("lru", "delta", "plan"):
            options = {**half, "policy": policy, "link": f"{link / 1e6:.0f}MB/s"}
            rows.append(_row(name, f"{policy} 50%, {options['link']}", peak, options, steps=14))
    write("policies", rows, "Other reactive policies at half of the peak (S4), beside plain torch; by B4's link, too.")


def peers() -> None:
    rows = []
    for name in ("gpt2", "bert"):
        peak, peer_peak = measure_peak(name), measure_peak(name, checkpointing=True)
        ratio, plain, other = compare(name, None, checkpointing=True)
        rows.append(
            {
                "model": name,
                "what": "torch.utils.checkpoint per block",
                "peak wanted (MiB)": peak // MIB,
                "budget (MiB)": "none",
                "held peak (MiB)": peer_peak // MIB,
                "out (MiB/step)": 0,
                "in (MiB/step)": 0,
                "waited (s/step)": 0,
                "step ratio": round(ratio, 3),
                "identical": "yes" if plain["digest"] == other["digest"] else "NO",
            }
        )
        rows.append(_row(name, "vtensor at that peak", peak, {"budget": peer_peak}))
    write("peers", rows, "A peer on the CPU beside vtensor at the same number of bytes (S3).")


def spill(directory: str = "/var/tmp") -> None:
    rows = []
    for name in THREE:
        peak = measure_peak(name)
        options = {"budget": peak // 2, "spill_dir": directory, "chunk": "512KiB"}
        _, plain, other = compare(name, options, steps=4)
        absent = other["stats"]["absent_bytes.peak"]
        saved = plain["peak_rss"] - other["peak_rss"]
        rows.append(
            {
                "model": name,
                "peak wanted (MiB)": peak // MIB,
                "budget (MiB)": other["stats"]["budget_bytes"] // MIB,
                "absent at peak (MiB)": absent // MIB,
                "plain peak RSS (MiB)": plain["peak_rss"] // MIB,
                "vtensor peak RSS (MiB)": other["peak_rss"] // MIB,
                "saved / absent": round(saved / absent, 3),
                "identical": "yes" if plain["digest"] == other["digest"] else "NO",
            }
        )
    write(
        "spill",
        rows,
        "Absent data in a file (M1): goal, real memory lower by 80 % of the bytes absent at peak.",
    )
