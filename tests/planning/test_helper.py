"""Plans made in a process beside the program: the same ones, and it goes on whatever becomes of that process."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lgm
import vtensor
from lgm.helper import framed
from lgm.iteration import analyze_lifetimes
from lgm.placing.orders import orders
from vtensor import planning
from vtensor.planning import helper as module
from vtensor.planning import speeds, stages, traces

from ..lgm.random_traces import CHUNK, build
from ..lgm.test_chain import handed_through
from ..lgm.test_relief import device, rush

TRACE = Path(__file__).resolve().parent.parent.parent / "traces" / "unet.npz"


def question(share: float = 0.5) -> tuple[lgm.Trace, lgm.Device]:
    trace = lgm.load_trace(TRACE)
    life = analyze_lifetimes(trace)
    return trace, lgm.Device(max(int(life.peak * share), 1), 2e9, 2e9)


@pytest.fixture(autouse=True)
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("VTENSOR_ANALYSIS", raising=False)
    before, module._helper = module._helper, module._Helper()
    yield module._helper
    module._helper.end()
    module._helper = before


def pid(helper: Any) -> int:
    assert helper._process is not None
    return int(helper._process.pid)


def test_a_plan_is_the_one_that_would_be_made_here(helper: Any) -> None:
    helper._aside = False
    trace, device = question()
    plan = module.analyze(trace, device, "never")
    lgm.validate(plan)
    first = pid(helper)
    here = lgm.analyze(trace, device)
    assert plan.out_chunks > 0
    assert plan.prediction.step_seconds == pytest.approx(here.prediction.step_seconds, rel=0.05)
    again = module.analyze(trace, device, "auto")
    lgm.validate(again)
    assert pid(helper) == first  # one process for all


@pytest.mark.parametrize("works", [True, False], ids=["beside", "here"])
def test_seats_are_given_out_beside_the_program(helper: Any, works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 0)
    helper.works = works
    trace, device = question()
    plan = lgm.analyze(trace, device)
    given, here = module.orders(plan, device.budget_chunks), orders(plan, device.budget_chunks)
    assert (helper._process is not None) == works
    assert np.array_equal(given.seat_chunk, here.seat_chunk)
    assert np.array_equal(given.arrivals.op, here.arrivals.op)
    process = helper._process
    module.orders(plan, None)
    module.abandon()
    with pytest.raises(module.Abandoned):
        module.orders(plan, None)
    assert helper._process is process  # without seats there is nothing to ask for


def test_the_process_needs_no_torch(helper: Any) -> None:
    """Loading it takes a second, and 200 MB."""
    with vtensor.enabled("64MiB", chunk=4096, min_size=1):
        vtensor.record()
        net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            net(torch.ones(256, 256)).sum().backward()
            optimizer.step()
        recorded = traces.recorded_trace()
        module.analyze(recorded, lgm.Device(int(analyze_lifetimes(recorded).peak * 0.8), 1e9, 1e9), "never")
    assert "torch" not in Path(f"/proc/{pid(helper)}/maps").read_text()


def test_what_cannot_be_planned_is_said_as_here() -> None:
    trace, device = question(0.01)
    with pytest.raises(lgm.InfeasibleError, match="The smallest budget that works is") as found:
        module.analyze(trace, device, "auto")
    assert found.value.needed > found.value.budget
    with pytest.raises(RuntimeError, match="recompute='nonsense' is unknown"):
        module.analyze(trace, device, "nonsense")  # type: ignore[arg-type]


def test_one_that_was_killed_is_begun_again(helper: Any) -> None:
    trace, device = question()
    module.analyze(trace, device, "never")
    first = pid(helper)
    os.kill(first, signal.SIGKILL)
    lgm.validate(module.analyze(trace, device, "never"))
    assert pid(helper) != first


def test_without_a_process_the_thread_does_it(
    helper: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    trace, device = question()
    lgm.validate(module.analyze(trace, device, "never"))
    assert helper._process is None
    assert not helper.works
    monkeypatch.setenv("VTENSOR_ANALYSIS", "here")
    assert not module._Helper().works
    monkeypatch.setenv("VTENSOR_ANALYSIS", "Here")
    assert module._Helper().works and "VTENSOR_ANALYSIS=Here is unknown; there is 'here' only" in caplog.text


def test_nobody_waits_for_a_plan_that_nobody_wants(helper: Any) -> None:
    trace, device = question()
    helper._aside = False
    module.analyze(trace, device, "never")
    os.kill(pid(helper), signal.SIGSTOP)  # it would never answer
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            module.analyze(trace, device, "auto")
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not helper._asking.locked():
        time.sleep(0.01)
    module.abandon()
    thread.join(60)
    assert [type(error) for error in caught] == [module.Abandoned]
    with pytest.raises(module.Abandoned):
        module.analyze(trace, device, "never")
    module.begin()
    lgm.validate(module.analyze(trace, device, "never"))


def test_a_plan_that_only_copies_comes_first_and_the_other_if_it_is_better() -> None:
    trace, device = question()
    slow = lgm.Device(device.budget_chunks, 2e8, 2e8)
    first, better = stages.plans(trace, slow, "auto")
    assert first.remaking is None
    assert better.remaking is not None
    assert better.prediction.step_seconds < first.prediction.step_seconds
    assert len(list(stages.plans(trace, slow, "never"))) == 1
    roomy = lgm.Device(analyze_lifetimes(trace).peak, 2e8, 2e8)
    assert len(list(stages.plans(trace, roomy, "auto"))) == 1


def test_without_copies_a_plan_is_for_hardly_more_than_the_smallest_budget_that_has_one() -> None:
    trace, _ = question()
    (plan,) = stages.plans(trace, lgm.Device(1, 2e9, 2e9), "only")
    lgm.validate(plan)
    assert plan.out_chunks == plan.in_chunks == 0
    (roomy,) = stages.plans(trace, lgm.Device(1, 2e9, 2e9), "only", beside=plan.device.budget_chunks + 9)
    assert roomy.device.budget_chunks == plan.device.budget_chunks + 10
    assert roomy.prediction.step_seconds <= plan.prediction.step_seconds
    needed = plan.device.budget_chunks * 100 // 103
    for fewer in (needed // 12, needed // 6):
        with pytest.raises(lgm.InfeasibleError) as caught:
            lgm.analyze(trace, replace(plan.device, budget_chunks=needed - fewer), recompute="only")
        assert caught.value.needed == pytest.approx(needed * trace.chunk_bytes, rel=0.05)  # however small the budget is


def chain(layers: int) -> lgm.Trace:
    """Forward and back, each made of the one before: with few of them kept the same are recomputed again and again."""
    uses = [(k, of, 0, 1, int(of == k)) for k in range(layers) for of in (k - 1, k) if of >= 0]
    uses += [(layers + k, layers - 1 - k, 0, 1, 0) for k in range(layers)]
    trace = build(2 * layers, [(CHUNK, k, 2 * layers - 1 - k) for k in range(layers)], uses)
    every = np.arange(layers)
    return replace(trace, call_first=every, call_last=every, call_again=np.ones_like(every))


def test_without_copies_a_plan_that_takes_much_longer_is_for_the_patient() -> None:
    trace, device = chain(32), lgm.Device(4, 2e9, 2e9)
    held, *_ = stages.plans(trace, device, "only", patient=True)
    assert held.device == device and held.trace.seconds > 3 * trace.seconds
    plan, *_ = stages.plans(trace, device, "only")
    assert device.budget_chunks < plan.device.budget_chunks < analyze_lifetimes(trace).peak
    assert plan.trace.seconds <= 2 * trace.seconds


def test_what_the_thread_makes_in_haste_is_followed_by_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room before a rush, and a way to drop that costs less, are looked for beside the program."""
    rushes, trace = rush(), handed_through(48)
    monkeypatch.setattr(stages, "FEW", max(rushes.operations, trace.operations))
    copying, better = stages.plans(rushes, device(), "never")
    assert better.prediction.step_seconds < copying.prediction.step_seconds
    first, best = stages.plans(trace, lgm.Device(12, 1e6, 1e6), "only", patient=True)
    assert best.trace.seconds < first.trace.seconds
    for plan in (copying, better, first, best):
        lgm.validate(plan)


def test_a_plan_that_is_hardly_faster_takes_the_place_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, device = question()
    first = lgm.analyze(trace, replace(device, in_speed=2e8, out_speed=2e8))
    seconds = first.prediction.step_seconds
    for faster, followed in ((0.004, 1), (0.02, 2)):
        better = replace(first, prediction=replace(first.prediction, step_seconds=seconds * (1 - faster)))
        answers = iter([first, better])
        monkeypatch.setattr(stages, "analyze", lambda *_, answers=answers, **__: next(answers))
        assert len(list(stages.plans(trace, device, "auto"))) == followed


def test_no_better_plan_is_looked_for_where_cores_are_busy_and_nothing_waits(helper: Any) -> None:
    """Steps of ResNet-50 took 1.14 times as long for half a minute, and then as long as before."""
    trace, device = question()
    helper._aside = False
    computes = replace(device, in_speed=1e12, out_speed=1e12, tax=2e-10)
    assert len(list(stages.plans(trace, computes, "auto"))) == 1
    waits = replace(device, in_speed=2e8, out_speed=2e8)
    assert len(list(stages.plans(trace, waits, "auto"))) == 2


def test_a_thread_of_the_program_makes_nothing_but_a_first_plan_of_few_operations(
    helper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search of 0.4 s took one from a step of 40 ms, for every size of a batch of graphs."""
    here: list[str] = []

    def noted(_trace: lgm.Trace, _device: lgm.Device, recompute: lgm.Recompute, *, hasty: bool) -> lgm.Plan:
        here.append(recompute)
        return lgm.analyze(_trace, _device, recompute=recompute, hasty=hasty)

    trace, device = question()
    monkeypatch.setattr(stages, "FEW", trace.operations)
    monkeypatch.setattr(stages, "analyze_here", noted)
    computes = replace(device, in_speed=1e12, out_speed=1e12, tax=2e-10)
    assert [plan.remaking is None for plan in stages.plans(trace, computes, "auto")] == [True]
    assert helper._process is None  # nor is one begun for what nobody would wait for
    waits = replace(device, in_speed=2e8, out_speed=2e8)
    assert [plan.remaking is None for plan in stages.plans(trace, waits, "auto")] == [True, False]
    assert here == ["never", "never"]
    assert len(list(stages.plans(trace, waits, "auto", first=False))) == 2
    assert len(list(stages.plans(trace, waits, "auto", first=False, in_haste=False))) == 1
    assert here == ["never", "never"]


def test_a_forked_child_has_one_of_its_own(helper: Any) -> None:
    trace, device = question()
    module.analyze(trace, device, "never")
    theirs = pid(helper)
    child = os.fork()
    if child == 0:
        try:
            lgm.validate(module.analyze(trace, device, "never"))
            mine = pid(module._helper)
            module._helper.end()
            os._exit(0 if mine != theirs else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lgm.validate(module.analyze(trace, device, "never"))
    assert pid(helper) == theirs


def test_where_no_core_is_ever_idle_it_takes_turns(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, device = question()
    monkeypatch.setattr("vtensor.planning.helper._WHILE", 0.0)
    spent = itertools.count(0.0, -1.0)
    monkeypatch.setattr("vtensor.planning.helper._seconds", lambda _pid: next(spent))
    lgm.validate(module.analyze(trace, device, "never", priority=module.Priority.BETTER))
    assert not helper._aside
    assert os.sched_getscheduler(pid(helper)) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, pid(helper)) > os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(module.Busy):
        module.analyze(trace, device, "never", priority=module.Priority.IDLE)


def test_the_first_plan_waits_for_no_idle_core(helper: Any) -> None:
    """For most of a second it was looked whether one is, and then begun again: six steps of a small GPT-2."""
    trace, device = question()
    lgm.validate(module.analyze(trace, device, "never", priority=module.Priority.BETTER))
    gives_way = pid(helper)
    lgm.validate(module.analyze(trace, device, "never"))
    assert pid(helper) != gives_way
    assert os.sched_getscheduler(pid(helper)) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, pid(helper)) == os.getpriority(os.PRIO_PROCESS, 0)


def test_the_process_is_there_before_it_is_asked(helper: Any) -> None:
    module.prepare(module.FEW)
    deadline = time.monotonic() + 60
    while helper._process is None or helper._asking.locked():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first = pid(helper)
    trace, device = question()
    lgm.validate(module.analyze(trace, device, "never"))
    assert pid(helper) == first


@pytest.mark.parametrize(
    ("budget", "first", "expected"),
    [("1MiB", 256, 1), ("4MiB", 8, 1), ("64MiB", 256, 0)],
    ids=["something leaves", "in the second iteration", "all fits"],
)
def test_it_is_begun_where_something_leaves(
    budget: str, first: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(planning.planner, "prepare", begun.append)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    with vtensor.enabled(budget, chunk="16KiB", min_size="4KiB", host="64MiB"):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for rows in (first, 1024, 1024, 1024):
            model(torch.randn(rows, 256)).square().mean().backward()
            optimizer.step()
    assert len(begun) == expected  # once, however many iterations go on leaving
    assert all(10 < allocations < 100 for allocations in begun)  # of one iteration


def test_none_is_begun_for_a_moments_work(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: begun.append(thread.name))
    module.prepare(module.FEW // 2)
    assert not begun
    module.prepare(module.FEW)
    assert begun == ["vtensor-helper"]
    helper.works = False
    module.prepare(module.FEW)
    assert len(begun) == 1


def test_a_question_larger_than_a_pipe_waits_for_no_reader(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood for as long as no core was idle: 13 of the 16 seconds until the first plan of a small Llama."""
    trace = lgm.load_trace(TRACE.with_name("bert.npz"))
    device = lgm.Device(analyze_lifetimes(trace).peak // 2, 2e9, 2e9)
    assert len(framed(trace)) > 1 << 16
    begin, stopped = helper._begin, []

    def begin_one_that_never_reads(*how: Any) -> Any:
        process = begin(*how)
        if not stopped:
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append(process.pid)
        return process

    monkeypatch.setattr(helper, "_begin", begin_one_that_never_reads)
    lgm.validate(module.analyze(trace, device, "never", priority=module.Priority.BETTER))
    assert not helper._aside
    assert pid(helper) not in stopped


def test_it_runs_where_cores_are_idle(helper: Any) -> None:
    trace, device = question()
    lgm.validate(module.analyze(trace, device, "never", priority=module.Priority.BETTER))
    if helper._aside:  # this machine may be busy
        assert os.sched_getscheduler(pid(helper)) == os.SCHED_IDLE
    assert 0 < module._seconds(pid(helper)) < 60
    assert module._seconds(2**30) == float("inf")


def test_it_ends_with_who_asked(helper: Any) -> None:
    trace, device = question()
    module.analyze(trace, device, "never")
    process = helper._process
    process.stdin.close()
    assert process.wait(60) == 0


def test_a_program_that_ends_meanwhile_ends_at_once_and_without_a_word() -> None:
    script = """
import threading, time, lgm
from vtensor.planning import helper as module
trace = lgm.load_trace({trace!r})
def ask():
    try:
        module.analyze(trace, lgm.Device(200, 1e8, 1e8), "auto")
    except module.Abandoned:
        pass
threading.Thread(target=ask, daemon=True).start()
while module._helper._process is None:
    time.sleep(0.01)
time.sleep(0.2)
print("ends")
"""
    command = [sys.executable, "-c", script.format(trace=str(TRACE))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)])
    with vtensor.enabled("1MiB", chunk="16KiB", min_size="4KiB", host="64MiB"):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(256, 256)).square().mean().backward()
            optimizer.step()
            planning.wait_for_plan()
        assert vtensor.memory_stats()["planned_iterations"] > 0


def test_where_no_thread_can_be_started_either_the_program_makes_plans(
    helper: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(stages, "FEW", 0)
    monkeypatch.setattr(sys, "executable", "")
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        train()
    assert [record.levelname for record in caplog.records if "between two iterations" in record.message] == ["WARNING"]


@pytest.mark.parametrize("few", [0, 400], ids=["many operations", "few"])
def test_training_is_planned_by_it_where_there_is_much_to_do(
    few: int, helper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "FEW", few)
    answers, ask = [], helper._ask  # on a busy machine the process is ended before the last step

    def seen(question: tuple[Any, ...], *how: bool) -> Any:
        answer = ask(question, *how)
        answers.append(answer)
        return answer

    monkeypatch.setattr(helper, "_ask", seen)
    train()
    assert any(isinstance(answer, lgm.Plan) for answer in answers) == (few == 0)


def test_a_process_is_begun_whatever_the_program_is_like(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that are no strings in ``sys.path``, and more descriptors than select() takes."""
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere"), None])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        helper.prepare()
        assert helper.works and pid(helper)
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_process_can_be_begun_it_is_said(
    helper: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    helper.prepare()
    helper.prepare()
    assert not helper.works
    assert [record.levelname for record in caplog.records if "plans" in record.message] == ["WARNING"]


@pytest.mark.parametrize("policy", ["plan", "lru", "size_staleness", "delta"])
def test_who_listens_is_told_whatever_the_policy(policy: str) -> None:
    told = 0

    def listen() -> None:
        nonlocal told
        told += 1

    with vtensor.enabled("64MiB", chunk=4096, min_size=1, policy=policy):
        planning.listen(partial(speeds.found_device, None))  # type: ignore[arg-type]  # it fails
        planning.listen(listen)
        net = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            net(torch.ones(64, 64)).sum().backward()
            optimizer.step()
    assert told == 3


def test_what_is_found_for_a_budget_that_was_is_not_said_of_the_one_that_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with vtensor.enabled("1MiB", chunk=4096, min_size=1, recompute="only"):
        maker = planning.current().maker

        budgets = ["2MiB"]  # one that is asked for meanwhile

        def too_small(*_given: Any) -> None:
            if budgets:
                vtensor.enable(budgets.pop())
            raise lgm.InfeasibleError("an operation", 2, 1, "too small a budget")

        monkeypatch.setattr(planning.maker, "make_recording", too_small)
        for said in ("", "too small a budget"):
            device = lgm.Device(maker.config.budget_chunks, 1e9, 1e9)
            maker.make_of({}, device)
            maker.work.wait()
            assert maker.why_not == said
        assert caplog.text.count("too small a budget") == 1


def test_who_makes_a_plan_stops_when_another_is_wanted(helper: Any) -> None:
    with vtensor.enabled("1MiB", chunk=4096, min_size=1):
        maker = planning.current().maker
        asked = threading.Event()

        def ask() -> None:
            trace, device = question()
            asked.set()
            with pytest.raises(module.Abandoned):
                while True:
                    module.analyze(trace, device, "auto")

        maker.work.start(ask)
        assert asked.wait(60)
        vtensor.enable("2MiB")
        maker.work.wait()
        module.begin()
        lgm.validate(module.analyze(*question(), "never"))


def test_a_plan_that_is_outdated_while_it_is_handed_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with vtensor.enabled("1MiB", chunk=4096, min_size=1):
        planner = planning.current()
        installed = []

        def forget_meanwhile() -> None:
            installed.append(planner.core.plan_counters()["plans"])
            planner.maker.forget()

        device = lgm.Device(planner.config.budget_chunks, 1e9, 1e9)
        before = planner.core.plan_counters()
        assert planner.maker._hand_over(device, lambda: None)
        planner.maker._forgotten_when_begun = planner.maker._forgotten
        forgets = []
        monkeypatch.setattr(planner.core, "forget_plans", lambda: forgets.append(1), raising=False)
        assert not planner.maker._hand_over(device, forget_meanwhile)
        assert installed == [before["plans"]]
        assert len(forgets) == 2  # by who changed the budget, and once more for what came after that
        assert not planner.maker._hand_over(device, lambda: pytest.fail("nobody asks for it"))
