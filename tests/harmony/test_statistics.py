"""Buffers that layers change, written past autograd, shared, and under the program's own checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vtensor
from vtensor import HarmonyError
from vtensor.harmony.buffers.memories import memories_of


class Moving(nn.Linear):
    """Takes away the mean of what it has seen so far."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, mean: torch.Tensor | None = None) -> None:
        super().__init__(8, 8, bias=False)
        self.register_buffer("mean", torch.zeros(8) if mean is None else mean)
        self.register_buffer("variance", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)  # VQ codebooks do so: the version stays
        return super().forward(x - self.mean.clone())


class Functional(Moving):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = nn.functional.batch_norm(x, self.mean, self.variance, training=True)
        return nn.Linear.forward(self, normed + self.mean.clone())


class Normed(nn.Sequential):
    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__(nn.Linear(8, 8), norm or nn.BatchNorm1d(8), nn.Tanh())


class Checkpointed(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=False))
        return x


class Outside(nn.Module):
    """A layer's norm runs once more, outside of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Normed() for _ in range(4))
        self.norm = self.layers[0][1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def sharing_a_norm() -> nn.Module:
    norm = nn.BatchNorm1d(8)
    return nn.Sequential(*(Normed(norm) for _ in range(4)))


def sharing_a_buffer() -> nn.Module:
    mean = torch.zeros(8)
    return nn.Sequential(*(Moving(mean) for _ in range(4)))


def sharing_by_views() -> nn.Module:
    both = torch.zeros(2, 8)
    return nn.Sequential(*(Moving(both[0]) for _ in range(2)), *(Moving(both.view(16)[:8]) for _ in range(2)))


class Counting(Moving):
    """Whole numbers, as the counts of classes are."""

    counts: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.ones(8, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts.data.add_((x > 0).sum(0))
        return nn.Linear.forward(self, x / self.counts.clone())


class Twins(nn.Module):
    """Two modules of one layer have one buffer."""

    def __init__(self) -> None:
        super().__init__()
        mean = torch.zeros(8)
        self.one, self.two = Moving(mean), Moving(mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


class Apart(Twins):
    """They have views of one memory."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(12)
        self.one.mean, self.two.mean = memory[:8], memory[4:]


class Histogram(nn.Linear):
    """A large table of whole numbers, of which NumPy writes a part."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("table", torch.ones(1 << 17, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table.numpy()[:8] += (x > 0).sum(0).numpy()
        return super().forward(x / self.table[:8].clone())


class Aliased(nn.Linear):
    """One memory, of which autograd counts writes twice, or is read conjugated."""

    one: torch.Tensor
    two: torch.Tensor

    def __init__(self, conjugated: bool = False) -> None:
        super().__init__(8, 8)
        self.register_buffer("one", torch.ones(1 << 17, dtype=torch.complex64 if conjugated else torch.int64))
        self.register_buffer("two", self.one.conj() if conjugated else self.one.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.one[:8].add_((x > 0).sum(0))
        return super().forward(x / self.two[:8].clone().real)


class Passing(nn.Linear):
    """A hook sets what another takes away; a buffer is made when it is first needed."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("made", None)
        self.register_forward_pre_hook(lambda module, _: setattr(module, "passing", module.scale * 2))
        self.register_forward_hook(lambda module, *_: delattr(module, "passing"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.made is None:
            self.made = torch.ones(8)
        return super().forward(x * self.passing * self.made)  # type: ignore[operator]


class Scaled(nn.Linear):
    """The graph keeps what each forward updates: counted by autograd, or past it."""

    scale: torch.Tensor

    def __init__(self, counted: bool) -> None:
        super().__init__(8, 8)
        self.register_buffer("scale", torch.ones(8))
        self.counted = counted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        with torch.no_grad():
            (self.scale if self.counted else self.scale.data).mul_(0.9).add_(y.abs().amax(0), alpha=0.1)
        return y / self.scale


class Lazy(nn.Linear):
    """A large table begins as what it saw first, and moves past autograd from then on."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("table", torch.zeros(1 << 18))
        self.begun = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.begun:
            self.table.data[:8].mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        else:
            self.table[:8].copy_(x.detach().mean(0))
            self.begun = True
        return super().forward(x - self.table[:8])


class LeavingOut(nn.Module):
    """Of the first microbatch of all, one of the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Large() for _ in range(4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for k, layer in enumerate(self.layers):
            x = x if k == 1 and self.calls == 1 else layer(x)
        return x


class Table(nn.Linear):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(8, 8)
        self.register_buffer("table", table)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(x)) * self.table  # type: ignore[operator]


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Checkpointed(Moving),
        lambda: Checkpointed(Functional),
        lambda: Checkpointed(Normed),
        sharing_a_norm,
        sharing_a_buffer,
        sharing_by_views,
        lambda: Checkpointed(Counting),
        Outside,
        lambda: nn.Sequential(*(Scaled(counted=True) for _ in range(4))),
        lambda: nn.Sequential(*(Scaled(counted=False) for _ in range(4))),
    ],
    ids=[
        "past autograd",
        "by a function",
        "batch norm",
        "a shared norm",
        "shared",
        "by views",
        "counts",
        "outside too",
        "kept",
        "kept past autograd",
    ],
)
def test_statistics_are_those_of_the_ordinary_loop(make: Callable[[], nn.Module]) -> None:
    check(make)


@pytest.mark.parametrize(
    "layer",
    [Moving, Counting, Normed, Twins, Apart, Histogram, Aliased, lambda: Aliased(conjugated=True), Passing, Lazy],
)
def test_they_are_where_layers_run_again(layer: Callable[[], nn.Module]) -> None:
    model = check(lambda: nn.Sequential(*(layer() for _ in range(4))), recompute=True)
    assert not any("passing" in vars(module) for module in model)


@pytest.mark.parametrize("recompute", [False, True])
def test_they_are_where_the_first_microbatch_left_a_layer_out(recompute: bool) -> None:
    check(LeavingOut, recompute=recompute)


def test_arguments_may_have_the_names_of_a_checkpoints_own() -> None:
    class Named(nn.Linear):
        def forward(self, x: torch.Tensor, *, debug: bool = True, use_reentrant: int = 1) -> torch.Tensor:
            return super().forward(x) * (2 if debug else 1) + use_reentrant

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Named(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x, debug=False, use_reentrant=2))
            return x

    check(Calling, recompute=True)


def test_of_what_nobody_changes_no_copies_are_left() -> None:
    """Tables of floats were kept for each layer and microbatch."""

    class Looking(Table):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(nn.Linear.forward(self, x) * self.table[:8])

    size, layers, microbatches = 1 << 20, 4, 8
    with vtensor.enabled("1GiB", chunk=1 << 16, min_size=1 << 16):
        model = nn.Sequential(*(Looking(torch.ones(size // 4)) for _ in range(layers)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=microbatches, packs=2, recompute=True)
        trainer.step(torch.randn(8 * microbatches, 8))
        vtensor.reset_peak_memory_stats()
        trainer.step(torch.randn(8 * microbatches, 8))
        assert vtensor.memory_stats()["wanted_bytes.peak"] < (layers + 4) * size


def check(make: Callable[[], nn.Module], **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    other = make()
    one, two = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    trainer = vtensor.Harmony(model, one, loss=loss, microbatches=4, packs=2, **options)
    for _ in range(3):
        x = torch.randn(16, 8)
        trainer.step(x)
        for part in x.split(4):
            (loss(other, part) / 4).backward()
        two.step()
        two.zero_grad()
    expected = other.state_dict()
    assert [
        name
        for name, value in model.state_dict().items()
        if not torch.equal(value.to_dense(), expected[name].to_dense())
    ] == []
    return model


def test_the_programs_own_checkpoints_within_ours() -> None:
    """They would end early, before statistics are updated once more."""
    model = Checkpointed(Normed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, packs=2, recompute=True)
    with pytest.raises(HarmonyError, match="own checkpoints run it again"):
        trainer.step(torch.randn(8, 8))


@pytest.mark.parametrize("shared", [False, True])
def test_sharing_what_nobody_changes_keeps_nobody_from_taking_turns(shared: bool) -> None:
    table = torch.ones(8)
    model = nn.Sequential(*(Table(table if shared else table.clone()) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, packs=2)
    trainer.step(torch.randn(8, 8))
    assert [len(layers) for layers in trainer.packs] == [2, 2]


def test_pieces_of_one_memory_that_do_not_overlap_are_shared_by_nobody() -> None:
    flat = torch.zeros(4, 8)
    model = nn.Sequential(*(Moving(flat[k]) for k in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, packs=2)
    trainer.step(torch.randn(8, 8))
    assert [len(layers) for layers in trainer.packs] == [2, 2]


class Large(Moving):
    def __init__(self) -> None:
        super().__init__(torch.zeros(1 << 18))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.data[:8].mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return nn.Linear.forward(self, x - self.mean[:8].clone())


@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_written_past_autograd_only_in_another_mode_is_noticed(recompute: bool) -> None:
    """The first microbatch, in which all buffers are compared, does not show it."""
    model = Checkpointed(Large)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, packs=2, recompute=recompute)
    model.eval()
    trainer.step(torch.randn(8, 8))
    model.train()
    with pytest.raises(HarmonyError, match="its buffers"):
        trainer.step(torch.randn(8, 8))


def test_a_buffer_that_is_no_plain_memory_is_one_wherever_it_is() -> None:
    sparse = torch.eye(8).to_sparse()
    one, two = nn.Module(), nn.Module()
    one.register_buffer("it", sparse)
    two.register_buffer("that", sparse)
    assert [len(places) for places in memories_of([one, two])] == [2]


@pytest.mark.parametrize("kind", ["sparse", "of inference"])
def test_buffers_of_other_kinds_where_layers_run_again(kind: str) -> None:
    def layer() -> nn.Module:
        made = Normed()
        with torch.inference_mode():
            of_inference = torch.ones(8)
        made.register_buffer("other", torch.eye(8, dtype=torch.int64).to_sparse() if kind == "sparse" else of_inference)
        return made

    check(lambda: nn.Sequential(*(layer() for _ in range(4))), recompute=True)


def test_large_tables_are_copied_in_the_first_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large, copied = 2 << 20, list[int]()
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self: (copied.append(self.nbytes), clone(self))[1])
    model = Checkpointed(lambda: Table(torch.ones(1 << 16, 8)[:, :]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=lambda m, x: m(x).mean(), microbatches=2, packs=2)
    for many in (4, 0, 0):
        copied.clear()
        trainer.step(torch.randn(2 << 16, 8))
        assert sum(size == large for size in copied) == many


def test_what_checkpoints_choose_to_keep_is_what_the_program_does() -> None:
    """Comparing buffers is none of it; neither are buffers whose shape is not known yet."""

    def keep(*_: object, **__: object) -> torch.utils.checkpoint.CheckpointPolicy:
        return torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE

    def chosen() -> Any:
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(keep)

    class Chosen(Checkpointed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=chosen)
            return x

    check(lambda: Chosen(lambda: Normed(nn.BatchNorm1d(8).eval())))
    check(lambda: nn.Sequential(*(Normed(nn.LazyBatchNorm1d(affine=False)) for _ in range(4))))


def test_a_step_that_cannot_begin_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(Normed() for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, packs=2, recompute=True)

    def fail(_: object) -> None:
        raise torch.OutOfMemoryError

    for _ in range(2):  # before the order is known, and after
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(torch.Tensor, "clone", fail)
            with pytest.raises(torch.OutOfMemoryError):
                trainer.step(torch.randn(8, 8))
        for _ in range(2):
            loss(model, torch.randn(8, 8)).backward()  # a hook left would say that it comes twice
        assert not any("forward" in vars(layer) for layer in model)
        optimizer.zero_grad()
        trainer.step(torch.randn(8, 8))
