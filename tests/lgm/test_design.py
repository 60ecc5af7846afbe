"""The example of ``lgm/DESIGN.md``, so that what it says stays true."""

from __future__ import annotations

import lgm
from lgm.iteration import analyze_lifetimes
from lgm.placing.mapping import layers
from lgm.timing.moves import moves_of_plan

MS, CHUNK = 1_000_000, 1 << 20
NAMES = ("F1", "F2", "F3", "B3", "B2", "B1")


def example() -> lgm.Trace:
    """Three layers forward and back: W is read by F1 and B1; each Fk makes ak, which the next layer and Bk read."""
    uses = [(1, 1), (2, 2), (3, 3), (4, 2), (5, 1), (0, 0), (5, 0)]  # (operation, tensor)
    uses.sort()
    return lgm.Trace(
        chunk_bytes=CHUNK,
        names=NAMES,
        op_name=range(6),  # type: ignore[arg-type]
        op_ns=[MS] * 6,  # type: ignore[arg-type]
        op_last=range(6),  # type: ignore[arg-type]
        tensor_bytes=[CHUNK] * 4,  # type: ignore[arg-type]
        tensor_born=[-1, 0, 1, 2],  # type: ignore[arg-type]
        tensor_died=[-1, 5, 4, 3],  # type: ignore[arg-type]
        use_op=[u[0] for u in uses],  # type: ignore[arg-type]
        use_tensor=[u[1] for u in uses],  # type: ignore[arg-type]
        use_first=[0] * 7,  # type: ignore[arg-type]
        use_last=[1] * 7,  # type: ignore[arg-type]
        use_write=[0] * 7,  # type: ignore[arg-type]
    )


def test_the_example() -> None:
    trace = example()
    life = analyze_lifetimes(trace)
    assert life.live.tolist() == [2, 3, 4, 4, 3, 2]
    assert life.needed.tolist() == [2, 2, 2, 1, 1, 2]
    columns = (life.gaps.tensor, life.gaps.start, life.gaps.stop, life.gaps.returns)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 1, 5, 1),
        (1, 2, 5, 1),
        (2, 3, 4, 1),
    ]
    plan = lgm.analyze(trace, lgm.Device(3, CHUNK / 1e-3, CHUNK / 1e-3), lgm.Switches(reservation="none"))
    lgm.validate(plan)
    assert list(zip(plan.out_tensor.tolist(), plan.out_op.tolist(), strict=True)) == [(0, 1)]
    arrivals = zip(plan.in_tensor.tolist(), plan.in_op.tolist(), plan.in_need.tolist(), strict=True)
    assert list(arrivals) == [(0, 4, 5)]
    p = plan.prediction
    assert (p.peak_chunks, p.waits_seconds, p.out_chunks, p.in_chunks) == (3, 0.0, 0, 1)
    assert abs(p.step_seconds - 0.006) < 1e-9
    _, moves = moves_of_plan(plan)
    edges = [layer.swapped_by for layer in layers(trace, plan.device, life, moves) if layer.swapped_by]
    assert edges == [(((0, 0), (2, 0)),)]
    tight = lgm.analyze(trace, lgm.Device(2, CHUNK / 1e-3, CHUNK / 1e-3))
    assert sorted(set(tight.out_tensor.tolist())) == [0, 1]
