"""Models far larger than four small GPUs behind one switch: Harmony's schedules beside swapping device by device (V7).

Covers: throughput and bytes swapped of a step, by the event simulation of ``lgm.harmony``; nothing is run.

The machine is the paper's: four GTX 1080 Ti of which 10 GiB are used, 11.5 GiB/s between the host and all of them
together, 8.2 GiB/s from one to another, weights updated on the host. What layers take is what its authors measured
(``profiles/``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lgm.harmony import Measured, load_measured
from lgm.harmony.search import Found, find_schedule
from lgm.harmony.tasks import Machine, Mode

from .record import Row, write

GIB = 2**30
MACHINE = Machine(devices=4, budget=10 * GIB, link=11.5 * GIB, peer=8.2 * GIB, optimizer_on="host", between=0.04)
_MEMORY = 484e9 * 0.65  # bytes a second of such a device's memory
PROFILES = Path(__file__).resolve().parent.parent / "profiles"


@dataclass(frozen=True)
class Model:
    """And the samples of a step."""

    title: str
    profile: str
    batch: int


MODELS = (
    Model("BERT-Large", "bert_large", 64),
    Model("GPT-2 XL", "gpt2_xl", 32),
    Model("GPT, 10 billion", "gpt2_10b", 32),
)


@dataclass(frozen=True)
class Alone:
    """A step where each device swaps for itself."""

    hidden: float
    """Seconds, if all copies hide behind computing."""
    on_demand: float
    """Seconds, if computing waits for all that comes in."""
    swapped: float
    """Bytes of all devices."""


def device_by_device(profile: Measured, batch: int, samples: int) -> Alone:
    """An ordinary loop over microbatches on each device, which swaps nothing but what it must.

    Weights in for forward and for backward, gradients in and out; then weights, gradients and states for the update, on
    the device. It runs layers again as Harmony does, or it would swap what they leave behind, too.
    """
    weights, states = float(profile.weights.sum()), float(profile.states.sum())
    times = batch // MACHINE.devices // samples
    inward = (3 * times - 1) * weights + 2 * weights + states
    outward = times * weights + weights + states
    update = (4 * weights + 2 * states) / _MEMORY
    computing = times * float((2 * profile.forward(samples) + profile.backward(samples)).sum()) + update
    return Alone(
        hidden=max(computing, inward / MACHINE.lane, outward / MACHINE.lane),
        on_demand=computing + inward / MACHINE.lane,
        swapped=MACHINE.devices * (inward + outward),
    )


def run() -> None:
    """Each model, three ways."""
    rows: list[Row] = []
    for model in MODELS:
        profile = load_measured(PROFILES / f"{model.profile}.npz")
        found: dict[Mode, Found] = {
            mode: find_schedule(profile, MACHINE, model.batch, mode) for mode in ("pipeline", "data")
        }
        alone = device_by_device(profile, model.batch, found["data"].schedule.backward_samples)
        row: Row = {
            "model": model.title,
            "weights, gradients, states (GiB)": round(float(2 * profile.weights.sum() + profile.states.sum()) / GIB, 1),
            "samples": model.batch,
            "each for itself: all hidden, on demand (s)": f"{alone.hidden:.2f}, {alone.on_demand:.2f}",
            "swapped (GiB)": round(alone.swapped / GIB),
        }
        for mode, each in found.items():
            out, name = each.outcome, {"pipeline": "vPP", "data": "vDP"}[mode]
            swapped = out.swapped_in + out.swapped_out
            row |= {
                f"{name} (s)": round(out.seconds, 2),
                f"{name} computing": f"{out.computing / out.seconds:.0%}",
                f"{name} swapped (GiB)": round(swapped / GIB),
                f"{name}: times as fast as hidden, on demand; times less swapped": f"{alone.hidden / out.seconds:.2f}, "
                f"{alone.on_demand / out.seconds:.2f}; {alone.swapped / swapped:.1f}",
            }
        rows.append(row)
        print(row, flush=True)
    write(
        "packs",
        rows,
        "4 GTX 1080 Ti (10 GiB used of each) behind one switch, simulated on the layers Harmony's authors measured; "
        "microbatches and packs searched.",
    )


if __name__ == "__main__":
    run()
