"""Harmony's scheduler against what its authors published: their measured layers, their schedules, their times."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lgm
from lgm.command.cli import main
from lgm.harmony import Machine, Measured, Schedule, find_schedule, load_measured, packing, search, simulate
from lgm.harmony.packing import Fits, Packs

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
PUBLISHED: list[dict[str, Any]] = json.loads((PROFILES / "schedules.json").read_text())
CHOSEN = [each for each in PUBLISHED if each["samples"] == 32]  # the others are the ten best of one model
GIB = 2**30


def machine_of(row: dict[str, Any]) -> Machine:
    """Its authors' constants; 40 ms is what they found a task to take besides."""
    return Machine(
        devices=row["devices"],
        budget=10 * GIB,
        link=11.5 * GIB,
        peer=8.2 * GIB,
        optimizer_on="host",
        overlap=row["overlap"],
        between=0.04,
    )


def schedule_of(row: dict[str, Any]) -> Schedule:
    forward, backward = (tuple(itertools.pairwise(row[way])) for way in ("forward", "backward"))
    return Schedule(row["mode"], row["samples"], row["forward_samples"], forward, row["backward_samples"], backward)


def title(row: dict[str, Any]) -> str:
    return f"{row['profile']}-{row['mode']}-{row['seconds']}"


@pytest.mark.parametrize("row", PUBLISHED, ids=title)
def test_their_times(row: dict[str, Any]) -> None:
    """Within 2 % (the best is 0.02 %); 10 % are asked for."""
    outcome = simulate(load_measured(PROFILES / f"{row['profile']}.npz"), schedule_of(row), machine_of(row))
    assert outcome.seconds == pytest.approx(row["seconds"], rel=0.02)


@pytest.mark.parametrize("row", CHOSEN, ids=title)
def test_their_choices(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the packs that Harmony tries, in the fewest that fit, the same are the fastest, in the same microbatches."""
    every = packing.packings

    def theirs(sizes: tuple[np.ndarray, np.ndarray], fits: Fits, n: int) -> set[Packs]:
        of_equal_times = row["profile"] != "bert_large"  # the label of their result: balanced by time, or all ways
        return every(sizes[1:], fits, n) - {packing.greedy(fits, n)} if of_equal_times else every(sizes, fits, n)

    monkeypatch.setattr(packing, "_counts", lambda _n: [])
    monkeypatch.setattr(search, "packings", theirs)
    monkeypatch.setattr(search, "_BEST", 10**9)
    monkeypatch.setattr(search, "_STEPS", 0)
    profile = load_measured(PROFILES / f"{row['profile']}.npz")
    found = find_schedule(profile, machine_of(row), row["samples"], row["mode"])
    assert found.tried > 10
    assert found.schedule == schedule_of(row)


@pytest.mark.parametrize(
    "row",
    [row if row["profile"] != "vgg416" else pytest.param(row, marks=pytest.mark.long, id=title(row)) for row in CHOSEN]
    + [pytest.param(PUBLISHED[10], marks=pytest.mark.long, id=title(PUBLISHED[10]))],
    ids=title,
)  # those in the long profile take a quarter of a minute each
def test_ours_are_as_fast(row: dict[str, Any]) -> None:
    """With more ways to make packs, by the same arithmetic."""
    profile, machine = load_measured(PROFILES / f"{row['profile']}.npz"), machine_of(row)
    theirs = simulate(profile, schedule_of(row), machine).seconds
    found = find_schedule(profile, machine, row["samples"], row["mode"])
    assert found.outcome.seconds <= theirs * (1 + 1e-12)
    assert max(profile.bytes_backward(*pack, found.schedule.backward_samples) for pack in found.schedule.backward) <= (
        machine.budget
    )


def small(**changed: Any) -> Measured:
    """Two layers, measured with 1 and 3 samples."""
    table = np.array([[1.0, 2.0], [3.0, 8.0]])
    rows = dict.fromkeys(("weights", "states", "update"), np.ones(2))
    tables = dict.fromkeys(("forward_seconds", "forward_bytes", "inputs"), table)
    again = {"again_seconds": 4 * table, "again_bytes": 5 * table}
    return Measured(**{"sizes": np.array([1, 3]), **rows, **tables, **again, **changed})


def test_between_two_sizes_and_beyond() -> None:
    profile = small()
    assert profile.forward(2).tolist() == [2.0, 5.0]
    assert profile.backward(2).tolist() == [6.0, 15.0]
    assert profile.given(3).tolist() == [3.0, 8.0]
    assert profile.bytes_forward(0, 2, 1) == 1.0  # what the second is given is counted once
    assert profile.bytes_backward(0, 2, 1) == 13.0
    assert profile.bytes_forward(0, 1, 4) == profile.bytes_backward(1, 2, 4) == np.inf
    assert np.isinf(profile.forward(4)).all() and np.isinf(profile.backward(4)).all()
    out_of_memory = small(again_bytes=np.array([[5.0, 10.0], [np.inf, np.inf]]))
    assert out_of_memory.bytes_backward(0, 1, 2) == out_of_memory.bytes_backward(0, 2, 3) == np.inf


def test_what_is_no_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(lgm.LgmError, match="ascend from 1"):
        small(sizes=np.array([2, 3]))
    with pytest.raises(lgm.LgmError, match="a column for each layer"):
        small(weights=np.ones(3))
    with pytest.raises(lgm.LgmError, match="negative, or none"):
        small(update=np.array([np.nan, 1.0]))
    with pytest.raises(lgm.LgmError, match="knows all of one sample"):
        small(again_bytes=np.array([[np.inf, 1.0], [1.0, 1.0]]))
    odd = tmp_path / "odd.npz"
    with np.load(PROFILES / "gpt2_10b.npz") as arrays:
        np.savez(odd, **{**arrays, "sizes": arrays["sizes"] + 0.5})
    with pytest.raises(lgm.LgmError, match="not whole numbers of samples"):
        load_measured(odd)
    with pytest.raises(lgm.LgmError, match="not a measured profile"):
        load_measured(PROFILES / "schedules.json")
    half = tmp_path / "half.npz"
    np.savez(half, again_seconds=np.ones((1, 1)))
    assert main(["harmony", str(half), "--budget", "1GiB", "--minibatch", "4"]) == 2
    assert "half.npz is not a measured profile" in capsys.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["harmony", str(PROFILES / "gpt2_xl.npz"), "--budget", "10GiB", "--devices", "2"]
    assert main(arguments) == 2
    assert "need --minibatch" in capsys.readouterr().err
    seconds = []
    for more in ([], ["--no-overlap"]):
        assert main([*arguments, "--minibatch", "8", "--optimizer-on", "host", *more]) == 0
        seconds.append(capsys.readouterr().out)
    assert seconds[0] != seconds[1]
    trace = str(PROFILES.parent / "traces" / "unet.npz")
    assert main(["harmony", trace, "--budget", "10GiB"]) == 2
    assert "a trace needs --samples" in capsys.readouterr().err
    on_host = ["harmony", trace, "--samples", "4", "--budget", "1GiB", "--gpu", "h100", "--optimizer-on", "host"]
    assert main(on_host) == 0
    assert "packs" in capsys.readouterr().out
