"""The chain of a forward pass, read off a trace, and plans that follow checkpoints on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.checkpoints import best_checkpoints, checkpoints_at, find_chain
from lgm.checkpoints.segments import Checkpoints, ways_of
from lgm.command.cli import main
from lgm.iteration import analyze_lifetimes

from .random_traces import CHUNK, build

TRACES = Path(__file__).resolve().parents[2] / "traces"


def called(tensors: list[tuple[int, ...]], uses: list[tuple[int, ...]], again: list[int]) -> lgm.Trace:
    """Forward and backward of layers, one row each; which of them can be run again."""
    rows = list(range(len(again)))
    names = tuple(f"layer{k}{of}" for of in ("", "_backward") for k in range(len(rows) // 2))
    calls = {"call_first": rows, "call_last": rows, "call_again": again}
    return build(len(rows), tensors, uses, names=names, op_name=rows, **calls)


def chained(layers: int) -> lgm.Trace:
    """Layer k makes a large tensor that only backward reads, and a small one that the next layer reads, too."""
    n = 2 * layers
    tensors = [(4 * CHUNK, k, n - 1 - k) for k in range(layers)] + [(CHUNK, k, n - 1 - k) for k in range(layers)]
    uses = [(n - 1 - k, t, 0, size, 0) for k in range(layers) for t, size in ((k, 4), (layers + k, 1))]
    uses += [(k, layers + k - 1, 0, 1, 0) for k in range(1, layers)]
    return called(tensors, uses, [1] * n)


def test_the_chain_is_what_was_built() -> None:
    chain = find_chain(chained(9))
    assert chain.rows.tolist() == list(range(9)) and chain.end == 9
    assert chain.leaves.tolist() == [5 * CHUNK] * 9
    assert chain.across.tolist() == [CHUNK] * 8 + [0]


def handed_on(sizes: list[int], again: int) -> lgm.Trace:
    """Layer k makes a tensor of so many chunks, which the next layer reads, too. One of them can be run again."""
    n = 2 * len(sizes)
    tensors = [(size * CHUNK, k, n - 1 - k) for k, size in enumerate(sizes)]
    uses = [(n - 1 - k, k, 0, size, 0) for k, size in enumerate(sizes)]
    uses += [(k, k - 1, 0, sizes[k - 1], 0) for k in range(1, len(sizes))]
    return called(tensors, uses, [int(k == again) for k in range(n)])


def peak(way: Checkpoints | None) -> int:
    assert way is not None
    return way.plan.prediction.peak_chunks


@pytest.mark.parametrize("layers", [4, 9, 25, 64])
def test_the_best_are_better_than_every_root(layers: int) -> None:
    trace = chained(layers)
    ways = ways_of(trace)
    best = ways.best
    lgm.validate(best.plan)
    assert peak(ways.least) <= peak(ways.root)
    if layers > 4:
        assert best.plan.prediction.peak_chunks < analyze_lifetimes(trace).peak / 1.5
    assert best.plan.out_chunks == best.plan.in_chunks == 0
    assert best.plan.trace.seconds < 1.5 * trace.seconds  # nothing is run twice


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "bert", "vit", "unet", "mobilenet_v2"])
def test_real_models_need_less_than_by_the_rule_of_the_root(name: str) -> None:
    trace = lgm.load_trace(TRACES / f"{name}.npz")
    ways = ways_of(trace)
    best = ways.best
    lgm.validate(best.plan)
    assert peak(ways.least) <= peak(ways.root)
    assert best.plan.trace.seconds < 1.35 * trace.seconds
    assert best.plan.prediction.peak_chunks < analyze_lifetimes(trace).peak


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(lgm.LgmError, match="record it anew"):
        find_chain(build(2, [(CHUNK, 0, 1)], [(1, 0, 0, 1, 0)]))
    calls = {"call_first": [0], "call_last": [0], "call_again": [1]}
    with pytest.raises(lgm.LgmError, match="no forward and backward"):
        find_chain(build(2, [(CHUNK, 0, 1)], [(1, 0, 0, 1, 0)], **calls))
    alone = chained(1)
    with pytest.raises(lgm.LgmError, match="nothing between"):
        checkpoints_at(alone, find_chain(alone), [0])
    assert np.all(find_chain(alone).leaves == 5 * CHUNK)


def test_nothing_can_be_made_again_by_the_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = handed_on([1, 1, 3, 1], again=2)
    ways = ways_of(trace)
    assert ways.root is None and ways.best is ways.least
    lgm.save_trace(trace, tmp_path / "t.npz")
    assert main(["checkpoints", str(tmp_path / "t.npz")]) == 0
    assert "th layer" not in capsys.readouterr().out


@pytest.mark.parametrize("layers", [9, 25])
def test_the_more_budget_the_less_is_run_again(layers: int) -> None:
    trace = chained(layers)
    peak = analyze_lifetimes(trace).peak
    least = best_checkpoints(trace).plan
    seconds = []
    for budget in range(least.prediction.peak_chunks, peak + 1):
        plan = lgm.analyze(trace, lgm.Device(budget, 1e9, 1e9), recompute="segments")
        lgm.validate(plan)
        assert plan.prediction.peak_chunks <= budget
        assert len(plan.out_op) == 0
        seconds.append(plan.trace.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] <= least.trace.seconds
    assert seconds[-1] == trace.seconds


def test_below_the_checkpoints_the_rest_is_copied() -> None:
    trace = lgm.load_trace(TRACES / "resnet50.npz")
    budget = int(analyze_lifetimes(trace).peak * 0.4)
    plan = lgm.analyze(trace, lgm.Device(budget, 12e9, 12e9), recompute="segments")
    lgm.validate(plan)
    assert plan.prediction.out_chunks > 0
    assert plan.remaking is not None


def test_segments_need_calls() -> None:
    with pytest.raises(lgm.LgmError, match="record it anew"):
        lgm.analyze(build(4, [(2 * CHUNK, 0, 3)], []), lgm.Device(1, 1, 1), recompute="segments")


def handed_through(layers: int) -> lgm.Trace:
    """Layer k makes a chunk, which the next layer and backward read. All of them can be run again."""
    n = 2 * layers
    uses = [(n - 1 - k, k, 0, 1, 0) for k in range(layers)] + [(k, k - 1, 0, 1, 0) for k in range(1, layers)]
    return called([(CHUNK, k, n - 1 - k) for k in range(layers)], uses, [1] * n)


@pytest.mark.parametrize(("budget", "most"), [(5, 2.3), (6, 1.75), (8, 1.55), (10, 1.41)])
def test_layers_are_run_several_times_where_memory_is_short(budget: int, most: float) -> None:
    """48 layers; where each is run once more at most they need 11 chunks."""
    trace = handed_through(48)
    for recompute in ("segments", "only"):  # what is dropped tensor by tensor takes 3.1, 3.0, 2.9, 1.7 here
        plan = lgm.analyze(trace, lgm.Device(budget, 1e9, 1e9), recompute=recompute)
        lgm.validate(plan)
        assert plan.prediction.peak_chunks <= budget
        assert len(plan.out_op) == 0
        assert plan.trace.seconds <= most * trace.seconds


def test_a_budget_that_neither_way_reaches_says_what_is_needed() -> None:
    trace = lgm.load_trace(TRACES / "resnet50.npz")
    peak = analyze_lifetimes(trace).peak
    with pytest.raises(lgm.InfeasibleError, match="making things again alone") as refused:
        lgm.analyze(trace, lgm.Device(peak // 2, 1e9, 1e9), recompute="only")
    enough = -(-refused.value.needed // trace.chunk_bytes)
    assert lgm.analyze(trace, lgm.Device(enough, 1e9, 1e9), recompute="only").prediction.peak_chunks <= enough
