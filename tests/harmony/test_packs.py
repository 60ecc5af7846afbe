"""Rooms of vtensor/harmony by themselves: packs, layers, batches."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy
import pytest
import torch
from torch import nn

import vtensor
from vtensor import ConfigError
from vtensor.harmony.generators import Generators
from vtensor.harmony.layers import find_layers, layers_named
from vtensor.harmony.microbatches import cut
from vtensor.harmony.packing import Packing
from vtensor.harmony.packs import cut_evenly, pack

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def cuts(n: int) -> list[list[range]]:
    """All ways to cut n in runs."""
    every = itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n))
    return [[range(a, b) for a, b in itertools.pairwise([0, *inner, n])] for inner in every]


def largest(sizes: list[int], runs: list[range]) -> int:
    return max(sum(sizes[k] for k in run) for run in runs)


@hypothesis.given(SIZES, st.integers(1, 20))
def test_as_few_packs_as_fit_and_as_even_as_can_be(sizes: list[int], limit: int) -> None:
    runs = pack(sizes, limit)
    assert [k for run in runs for k in run] == list(range(len(sizes)))
    fitting = [each for each in cuts(len(sizes)) if largest(sizes, each) <= max(limit, *sizes, 0)]
    alike = [each for each in cuts(len(sizes)) if len(each) <= len(runs)]
    if max(sizes) <= limit:
        assert len(runs) == min(map(len, fitting))
    assert largest(sizes, runs) == min(largest(sizes, each) for each in alike)


@hypothesis.given(SIZES, st.integers(1, 9))
def test_so_many_packs(sizes: list[int], count: int) -> None:
    runs = cut_evenly(sizes, count)
    assert len(runs) == min(count, len(sizes))
    assert [k for run in runs for k in run] == list(range(len(sizes)))


def test_layers_are_found() -> None:
    linear = [nn.Linear(2, 2) for _ in range(6)]
    assert find_layers(nn.Sequential(linear[0], nn.ReLU(), linear[1])) == linear[:2]
    nested = nn.Sequential(nn.Sequential(linear[0], linear[1]), nn.Identity(), nn.ModuleList([linear[2]]))
    assert find_layers(nested) == linear[:3]
    inner = nn.ModuleDict({"a": nn.ModuleList(linear[:3]), "b": linear[3]})
    assert find_layers(inner) == linear[:3]
    shared = nn.ModuleList([linear[0], linear[0], linear[1]])
    assert find_layers(shared) == linear[:2]
    assert find_layers(linear[0]) == find_layers(nn.Sequential(linear[0])) == []


def test_layers_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    assert layers_named(model, ["0", "1"]) == [model[0], model[1]]
    with pytest.raises(ConfigError, match="no layer 'head'"):
        layers_named(model, ["head"])
    with pytest.raises(ConfigError, match="a part of the layer '1'"):
        layers_named(model, ["1", "1.0"])


Pair = namedtuple("Pair", "x y")


def test_batches_are_cut() -> None:
    x, y = torch.arange(7), torch.arange(14).view(7, 2)
    parts = cut(Pair(x, {"y": [y], "name": "seven", "scale": torch.tensor(2.0)}), 3)
    assert [part.x.tolist() for part in parts] == [[0, 1, 2], [3, 4], [5, 6]]
    assert torch.equal(torch.cat([part.y["y"][0] for part in parts]), y)
    assert all(isinstance(part, Pair) and part.y["name"] == "seven" and part.y["scale"] == 2 for part in parts)


class Encoding(UserDict[str, Any]):
    """Entries are attributes, too, as of transformers' BatchEncoding."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.mark.parametrize("kind", [Encoding, OrderedDict, MappingProxyType])
def test_mappings_are_cut(kind: Any) -> None:
    whole = kind({"ids": torch.arange(4)})
    parts = cut(whole, 2)
    assert [part["ids"].tolist() for part in parts] == [[0, 1], [2, 3]]
    assert len(whole["ids"]) == 4
    assert all(type(part) is (dict if kind is MappingProxyType else kind) for part in parts)
    assert kind is not Encoding or parts[1].ids is parts[1]["ids"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("text", "no tensor"),
        ((torch.zeros(4), torch.zeros(5)), "4, 5 rows"),
        (torch.zeros(2), "pass microbatches=2"),
    ],
)
def test_what_cannot_be_cut(batch: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cut(batch, 3)


def test_each_microbatch_draws_from_generators_of_its_own() -> None:
    before = torch.get_rng_state()
    generators = Generators(3)
    for k in range(4):
        generators.enter(k)
        generators.leave(k)
    generators.finish()
    assert torch.equal(torch.get_rng_state(), before)
    drawn = []
    for k in range(3):
        generators.enter(k)
        drawn.append((torch.rand(3).tolist(), random.random(), numpy.random.rand()))
        generators.leave(k)
    torch.manual_seed(generators.seeds[1])
    assert torch.rand(3).tolist() == drawn[2][0]
    assert len({str(each) for each in drawn}) == 3
    generators.finish()  # where the first one left them
    after = (torch.rand(3).tolist(), random.random(), numpy.random.rand())
    torch.set_rng_state(before)
    assert torch.rand(6).tolist() == drawn[0][0] + after[0]


def test_packs_of_the_process_that_has_the_least() -> None:
    layers = [nn.Linear(64, 64) for _ in range(8)]
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
    with vtensor.enabled("64MiB", device="cpu", chunk=4096):
        packing = Packing(layers, optimizer, None, 1)
        assert len(packing.packs()) == 1
        packing.budget = 1 << 20
        assert len(packing.packs()) > 1


def test_where_one_process_has_no_session_all_have_the_same_packs() -> None:
    """They count collectives: those that have a budget must not cut by it."""
    layers = [nn.Linear(8, 8) for _ in range(6)]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], 0.1)
    packing = Packing(layers, optimizer, None, 1)
    packing.budget = 0
    without = packing.packs()
    with vtensor.enabled("64MiB", chunk=4096, min_size=1):
        assert len(Packing(layers, optimizer, None, 1).packs()) == 1
        assert packing.packs() == without == [[layer] for layer in layers]
