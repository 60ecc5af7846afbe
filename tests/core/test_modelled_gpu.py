"""Recorded iterations on a modelled GPU: the engine does what plans foresee, and nothing else takes time.

The device is arithmetic (``kernels/testing/driver_model.h``), so that every figure here is exact, on any machine.
"""

from __future__ import annotations

import pytest

from benchmarks.modelled import H100, MODELS, Costs, like_a_gpu, replay

FREE = Costs()


@pytest.mark.parametrize("share", [0.75, 0.5, 0.35])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_takes_the_time_it_foresees(name: str, share: float) -> None:
    trace, peak, speed = like_a_gpu(name, *MODELS[name])
    run = replay(trace, int(peak * share), speed, FREE, plan=True)
    assert run.planned >= 5
    assert run.timed == pytest.approx(trace.seconds, rel=0.001)  # although it was timed while copies were waited for
    assert run.seconds == pytest.approx(run.predicted, rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_calls_that_cost_what_they_do_leave_most_of_it(name: str) -> None:
    trace, peak, speed = like_a_gpu(name, *MODELS[name])
    plain = replay(trace, 4 * peak, speed, H100, plan=False)
    assert plain.seconds == pytest.approx(trace.seconds, rel=0.01)
    lru = replay(trace, int(peak * 0.75), speed, H100, plan=False)
    planned = replay(trace, int(peak * 0.75), speed, H100, plan=True)
    assert planned.seconds < 1.2 * plain.seconds
    assert planned.seconds < lru.seconds


def test_nobody_waits_where_everything_fits() -> None:
    trace, peak, speed = like_a_gpu("gpt2", *MODELS["gpt2"])
    run = replay(trace, 2 * peak, speed, H100, plan=True)
    assert run.remaps == run.host_waits == 0
