"""Whose steps end iterations."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable

import pytest
import torch

import vtensor
from vtensor.planning.marker import Marker, Rank


class Optimizer:
    """Anything that can be referred to."""


def ended(marker: Marker, steps: Iterable[Optimizer]) -> list[bool]:
    return [marker.ends(who) for who in steps]


def in_another_thread(marker: Marker, who: Optimizer) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(marker.ends(who)))
    thread.start()
    thread.join()
    return found[0]


def test_one_optimizer_ends_each() -> None:
    only = Optimizer()
    assert ended(Marker(), [only] * 5) == [True] * 5


@pytest.mark.parametrize("others", [1, 3, 8])
def test_of_several_that_take_turns_the_first_does(others: int) -> None:
    first, second = Optimizer(), Optimizer()
    turn = [first] + [second] * others
    assert ended(Marker(), turn * 20) == ([True] + [False] * others) * 20


def test_one_that_stops_is_followed_by_another() -> None:
    """A second trainer, while the first is still there: its first eight steps ended nothing, whatever was before."""
    first, second = Optimizer(), Optimizer()
    marker = Marker()
    assert ended(marker, [first] * 12 + [second] * 4) == [True] * 12 + [False, True, True, True]
    assert ended(marker, [first] * 3) == [False] * 3  # of the second nothing is known yet
    taking_turns = Marker()
    assert ended(taking_turns, [first] * 4) == [True] * 4
    assert ended(taking_turns, [second, second, first] * 8) == [False, False, True] * 8
    assert ended(taking_turns, [second] * 7) == [False] * 5 + [True, True]


def test_of_one_that_just_began_nothing_is_known() -> None:
    first, second = Optimizer(), Optimizer()
    assert ended(Marker(), [first] * 3 + [second] * 9) == [True] * 3 + [False] * 8 + [True]


def test_one_that_is_gone_leaves_it_to_the_next_of_its_thread() -> None:
    marker, first = Marker(), Optimizer()
    assert marker.ends(first)
    del first
    gc.collect()
    other = Optimizer()
    assert not in_another_thread(marker, other)
    assert marker.ends(Optimizer())


def test_threads_come_in_no_order() -> None:
    marker, here, there = Marker(), Optimizer(), Optimizer()
    assert all(ended(marker, [here] * 10))
    assert [in_another_thread(marker, there) for _ in range(8)] == [False] * 8
    assert in_another_thread(marker, there)


def test_what_says_that_it_is_a_whole_one_comes_before_optimizers() -> None:
    marker, optimizer, trainer = Marker(), Optimizer(), Optimizer()
    assert all(ended(marker, [optimizer] * 3))
    assert marker.ends(trainer, Rank.WHOLE)
    assert ended(marker, [optimizer] * 8) == [False] * 8
    assert marker.ends(trainer, Rank.WHOLE)


def passes(marker: Marker, thread: Optimizer, count: int, rank: Rank = Rank.BACKWARD) -> list[bool]:
    return [marker.ends(thread, rank) for _ in range(count)]


def test_where_no_optimizer_is_heard_backward_passes_end_them() -> None:
    assert passes(Marker(), Optimizer(), 12) == [False] * 8 + [True] * 4


def test_where_a_step_was_compiled_they_do_at_once_until_one_is_heard() -> None:
    marker, thread, other = Marker(), Optimizer(), Optimizer()
    assert passes(marker, thread, 1) == [False]
    marker.steps_are_compiled()
    assert passes(marker, thread, 3) == [True] * 3
    assert marker.ends(other)
    assert passes(marker, thread, 3) == [False] * 3


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_step_is_known_when_it_is_compiled() -> None:
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    with vtensor.enabled("1MiB", chunk=4096, min_size=1):
        vtensor.record()
        for _ in range(4):
            layer(torch.ones(8, 64)).sum().backward()
            step()
        assert vtensor.memory_stats()["iterations"] >= 2


def test_passes_before_the_first_step_mean_nothing() -> None:
    """Gradients are accumulated."""
    marker, thread, optimizer = Marker(), Optimizer(), Optimizer()
    for _ in range(5):
        assert passes(marker, thread, 8) == [False] * 8
        assert marker.ends(optimizer)


def test_an_optimizer_takes_over_from_passes() -> None:
    marker, thread = Marker(), Optimizer()
    assert passes(marker, thread, 10)[-1]
    optimizer = Optimizer()
    assert marker.ends(optimizer)
    assert passes(marker, thread, 30) == [False] * 30
    del optimizer
    gc.collect()
    assert passes(marker, thread, 12) == [False] * 8 + [True] * 4


def test_gradients_end_one_where_nothing_is_accumulated() -> None:
    marker, thread = Marker(), Optimizer()
    assert passes(marker, thread, 12, Rank.GRADIENTS) == [False] * 8 + [True] * 4
    for _ in range(8):  # both in each from now on: it is differentiated twice
        passes(marker, thread, 1, Rank.GRADIENTS)
        passes(marker, thread, 1)
    ended = [(marker.ends(thread, Rank.GRADIENTS), marker.ends(thread, Rank.BACKWARD)) for _ in range(4)]
    assert ended == [(False, True)] * 4


def test_many_that_step_within_a_pass_end_one_together() -> None:
    """One for each parameter, also where gradients are accumulated over passes without a step."""
    marker, thread = Marker(), Optimizer()
    for _ in range(5):
        assert not marker.ends(thread, marker.rank_of_pass(True))
        for _ in range(20):
            marker.steps_within_a_pass()
        assert marker.ends(thread, marker.rank_of_pass(True))
