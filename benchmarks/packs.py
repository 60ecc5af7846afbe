"""Models far larger than four small GPUs behind one switch: Harmony's schedules beside swapping device by device (V7).

Covers: throughput and bytes swapped of a step, by the event simulation of ``lgm.harmony``; nothing is run.

The machine is the paper's: four GTX 1080 Ti of which 10 GiB are used, 11.5 GiB/s between the host and all of them
together, 8.2 GiB/s from one to another. What a layer takes is scaled from the profile its authors published: BERT-Large
of 128 tokens, two layers of 101 samples, 104 ms forward and 221 ms backward, 4929 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lgm.harmony.profile import Profile
from lgm.harmony.search import Found, find_schedule
from lgm.harmony.tasks import Machine, Mode

from .record import Row, write

GIB = 2**30
MACHINE = Machine(devices=4, budget=10 * GIB, link=11.5 * GIB, peer=8.2 * GIB)
_TOKENS = 2 * 101 * 128  # of the published profile
_FORWARD, _BACKWARD = 0.104 / _TOKENS, 0.221 / _TOKENS  # seconds of a token in a layer of width 1024
_LEAVES = (4929e6 - 2 * 96e6 - 3 * 50e6) / _TOKENS / 1024  # bytes of a token and a unit of width
_UPDATE = 7 / (484e9 * 0.65)  # seconds of a byte of weights: four rows are read and three written


@dataclass(frozen=True)
class Model:
    """A row of equal layers between an embedding and a head."""

    title: str
    layers: int
    width: int
    tokens: int
    vocabulary: int
    batch: int


MODELS = (
    Model("BERT-Large", 24, 1024, 512, 30522, 64),
    Model("GPT-2 XL", 48, 1600, 1024, 50257, 32),
    Model("GPT, 10 billion", 50, 4096, 1024, 50257, 32),
)


def profile_of(model: Model) -> Profile:
    """By arithmetic: times grow with the square of the width, what is left behind with the width."""
    n, scale = model.layers + 2, (model.width / 1024) ** 2
    inner = np.array([0.0, *[1.0] * model.layers, 0.0])
    ends = 1 - inner
    head = np.array([*[0.0] * (n - 1), 1.0])
    table = 4.0 * model.vocabulary * model.width
    weights = inner * 48 * model.width**2 + ends * table
    share = inner + head * table / (48 * model.width**2)  # the head multiplies by its table once
    return Profile(
        forward=share * _FORWARD * scale * model.tokens,
        backward=share * _BACKWARD * scale * model.tokens,
        update=weights * _UPDATE,
        weights=weights,
        states=2 * weights,
        inputs=np.array([4.0 * model.tokens, *[4.0 * model.tokens * model.width] * (n - 1)]),
        leaves=inner * _LEAVES * model.tokens * model.width + head * 8.0 * model.tokens * model.vocabulary,
    )  # fmt: skip


def device_by_device(model: Model, profile: Profile, samples: int) -> tuple[float, float]:
    """Seconds and bytes of a step where each device swaps for itself, at best: nothing but what it must, all hidden.

    Microbatch by microbatch: weights in forward and in backward, gradients in and out; then weights, gradients and
    states for the update. It runs layers again as Harmony does, or it would swap what they leave behind, too.
    """
    share = model.batch // MACHINE.devices
    weights, states = float(profile.weights.sum()), float(profile.states.sum())
    times = share / samples
    inward = times * 3 * weights + 2 * weights + states
    outward = times * weights + weights + states
    computing = share * float((2 * profile.forward + profile.backward).sum()) + float(profile.update.sum())
    return max(computing, inward / MACHINE.lane, outward / MACHINE.lane), MACHINE.devices * (inward + outward)


def run() -> None:
    """Each model, three ways."""
    rows: list[Row] = []
    for model in MODELS:
        profile = profile_of(model)
        found: dict[Mode, Found] = {
            mode: find_schedule(profile, MACHINE, model.batch, mode) for mode in ("pipeline", "data")
        }
        seconds, moved = device_by_device(model, profile, found["data"].schedule.backward_samples)
        row: Row = {
            "model": model.title,
            "weights, gradients, states (GiB)": round(float(2 * profile.weights.sum() + profile.states.sum()) / GIB, 1),
            "samples": model.batch,
            "computing (s)": round(found["pipeline"].outcome.computing, 2),
            "each for itself, at best (s)": round(seconds, 2),
            "swapped (GiB)": round(moved / GIB),
        }
        for mode, each in found.items():
            swapped = each.outcome.swapped_in + each.outcome.swapped_out
            name = {"pipeline": "vPP", "data": "vDP"}[mode]
            row |= {
                f"{name} (s)": round(each.outcome.seconds, 2),
                f"{name} swapped (GiB)": round(swapped / GIB),
                f"{name}: times as fast, times less": f"{seconds / each.outcome.seconds:.1f}, {moved / swapped:.1f}",
            }
        rows.append(row)
        print(row, flush=True)
    write(
        "packs",
        rows,
        "4 GTX 1080 Ti (10 GiB used of each) behind one switch, simulated; microbatches and packs searched.",
    )


if __name__ == "__main__":
    run()
