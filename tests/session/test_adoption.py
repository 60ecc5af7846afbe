"""Tensors that are older than the session: they are named, and can be moved in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vtensor
from vtensor import ConfigError, native
from vtensor.addresses import storage_of
from vtensor.session.adoption import Owner

from ..warm import python
from .interrupts import Point, interrupted, points_of


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """With tied weights, a gradient, states, and a buffer that is a part of another."""
    first, second = nn.Linear(256, 256), nn.Linear(256, 256, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    whole = torch.randn(256, 512)
    model.register_buffer("left", whole[:, :256])
    model.register_buffer("right", whole[:, 256:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_what_is_older_moves_in_with_its_values_and_ties() -> None:
    model, optimizer = model_and_optimizer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(model.parameters())
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        moved = vtensor.adopt(model, optimizer)
        weight = model.get_parameter("0.weight")
        assert moved == 4 * (4 << 16) + (8 << 16)  # weight, gradient, two states; both halves of a buffer
        assert next(iter(model.parameters())) is parameters[0]
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert vtensor.residency(weight).managed
        assert weight is model.get_parameter("1.weight")
        left, right = model.get_buffer("left"), model.get_buffer("right")
        left.fill_(1)
        assert right.untyped_storage().data_ptr() == left.untyped_storage().data_ptr()
        assert vtensor.adopt(model, optimizer) == 0
        model(torch.randn(4, 256)).sum().backward()
        optimizer.step()
    assert not torch.equal(model.get_parameter("0.weight"), before["0.weight"])


def test_training_goes_on_as_if_it_had_always_been_there() -> None:
    def train(adopts: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model, optimizer = model_and_optimizer()
        with vtensor.enabled("400KiB", chunk=4096, min_size=4096, device="cpu"):
            if adopts:
                vtensor.adopt(model, optimizer)
            for _ in range(3):
                model(torch.randn(4, 256)).sum().backward()
                optimizer.step()
            assert vtensor.memory_stats()["evictions"] > 0 or not adopts
        return model.get_parameter("0.weight").detach().clone()

    assert torch.equal(train(True), train(False))


Update = Callable[[], None]


def flat_parameter(model: nn.Module) -> nn.Parameter:
    """What the model's parameters, and their gradients, are views of from now on."""
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    begin = 0
    for p in parameters:
        end = begin + p.numel()
        p.data, p.grad = flat.data[begin:end].view_as(p), flat.grad[begin:end].view_as(p)
        begin = end
    return flat


def a_flat_optimizer(model: nn.Module) -> tuple[list[Owner], Update]:
    optimizer = torch.optim.AdamW([flat_parameter(model)])

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return [optimizer], update


def values_without_a_graph(model: nn.Module) -> tuple[list[Owner], Update]:
    values = [p.detach() for p in model.parameters()]

    def update() -> None:
        for value, p in zip(values, model.parameters(), strict=True):
            value.sub_(p.grad, alpha=0.5)
            p.grad = None

    return [*values], update


def gradients_in_one_buffer(model: nn.Module) -> tuple[list[Owner], Update]:
    buffer = flat_parameter(model).grad
    assert buffer is not None
    for p in model.parameters():
        p.data = p.data.clone()

    def update() -> None:
        buffer.mul_(0.5)
        for p in model.parameters():
            p.data.sub_(p.grad)

    return [buffer], update


@pytest.mark.parametrize("sharing", [a_flat_optimizer, values_without_a_graph, gradients_in_one_buffer])
@pytest.mark.parametrize("given", [False, True])
def test_what_others_share_stays_shared(
    sharing: Callable[[nn.Module], tuple[list[Owner], Update]], given: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Moved alone, the model would go on with other memory than who updates it, and train differently."""

    def train(adopts: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3)))
        others, update = sharing(model)
        losses = []
        with vtensor.enabled("256KiB", chunk=4096, min_size=4096, device="cpu"):
            if adopts:
                vtensor.adopt(model, *others * given)
            for _ in range(4):
                loss = (model(torch.randn(16, 128)) - 1).square().mean()
                loss.backward()
                update()
                losses.append(loss.detach())
        return losses

    assert all(map(torch.equal, train(True), train(False)))
    known = given or sharing is gradients_in_one_buffer  # a view knows what it is a view of
    assert ("shared with what adopt() was not given" in caplog.text) == (not known)


def of_numpy(_: Path) -> tuple[torch.Tensor, Callable[[], float]]:
    array = np.zeros(1 << 16, dtype=np.float32)
    return torch.from_numpy(array), lambda: float(array[0])


def of_a_buffer(_: Path) -> tuple[torch.Tensor, Callable[[], float]]:
    memory = bytearray(4 << 16)
    return torch.frombuffer(memory, dtype=torch.float32), lambda: float(np.frombuffer(memory, dtype=np.float32)[0])


def seen_by_numpy(_: Path) -> tuple[torch.Tensor, Callable[[], float]]:
    array = (tensor := torch.zeros(1 << 16)).numpy()
    return tensor, lambda: float(array[0])


def seen_by_dlpack(_: Path) -> tuple[torch.Tensor, Callable[[], float]]:
    array = np.from_dlpack(tensor := torch.zeros(1 << 16))
    return tensor, lambda: float(array[0])


def of_a_mapped_array(folder: Path) -> tuple[torch.Tensor, Callable[[], float]]:
    np.zeros(1 << 16, dtype=np.float32).tofile(folder / "array")
    array = np.memmap(folder / "array", dtype=np.float32, mode="c")
    return torch.from_numpy(array), lambda: float(array[0])


def a_weight_seen_by_numpy(_: Path) -> tuple[torch.Tensor, Callable[[], float]]:
    array = (weight := nn.Parameter(torch.zeros(1 << 16))).detach().numpy()
    return weight, lambda: float(array[0])


@pytest.mark.parametrize(
    "made", [of_numpy, of_a_buffer, of_a_mapped_array, seen_by_numpy, seen_by_dlpack, a_weight_seen_by_numpy]
)
def test_what_others_look_at_stays_theirs(
    made: Callable[[Path], tuple[torch.Tensor, Callable[[], float]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Moved, it would leave them with memory that is freed, or old."""
    tensor, look = made(tmp_path)
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        assert vtensor.adopt(tensor) == 0
        assert "shared with what adopt() was not given" in caplog.text
        with torch.no_grad():
            tensor[0] = 7
        assert look() == 7


def test_a_gradient_that_others_look_at_stays_theirs() -> None:
    (weight := nn.Parameter(torch.ones(1 << 16))).sum().backward()
    assert weight.grad is not None
    array = np.from_dlpack(weight.grad)
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        assert vtensor.adopt(weight) == 4 << 16
        weight.grad[0] = 7
        assert array[0] == 7


def a_weight_that_was_drawn(_: Path) -> torch.Tensor:
    weight = nn.Parameter(torch.ones(1 << 16))
    assert weight.detach().numpy().sum() == 1 << 16
    return weight


def a_view_of_it(_: Path) -> torch.Tensor:
    return torch.ones(1 << 17)[1 << 16 :]


def loaded_lazily(folder: Path) -> torch.Tensor:
    torch.save(torch.ones(1 << 16), folder / "weights.pt")
    loaded: torch.Tensor = torch.load(folder / "weights.pt", mmap=True)
    return loaded


@pytest.mark.parametrize("made", [a_weight_that_was_drawn, a_view_of_it, loaded_lazily])
def test_what_nobody_looks_at_any_more_moves(made: Callable[[Path], torch.Tensor], tmp_path: Path) -> None:
    tensor = made(tmp_path)
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        assert vtensor.adopt(tensor) == storage_of(tensor).nbytes()
        assert tensor.sum() == 1 << 16


def test_what_moved_in_is_not_made_again() -> None:
    """Each would need a copy of what it was made of, beside the budget."""
    weights = [torch.ones(1 << 16) for _ in range(8)]
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu", recompute="only"):
        vtensor.adopt(*weights)
        native.load().parts.drop_all()
        assert vtensor.memory_stats()["drops"] == 0
        made = weights[0].relu()
        native.load().parts.drop_all()
        assert vtensor.memory_stats()["drops"] > 0
        assert made.sum() == 1 << 16


class Mine(nn.Parameter):
    """Another name for the same."""


def test_states_in_lists_and_parameters_of_other_classes_move() -> None:
    layer = nn.Linear(256, 256, bias=False)
    layer.weight = Mine(layer.weight.data)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        (loss := (layer(torch.ones(4, 256)) - 1).square().sum()).backward()
        return loss

    optimizer.step(closure)
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        vtensor.adopt(layer, optimizer)
        states = optimizer.state[layer.weight]
        for tensor in (layer.weight, states["prev_flat_grad"], *states["old_dirs"], *states["old_stps"]):
            assert vtensor.residency(tensor).managed


def test_what_a_checkpoint_brought_moves_in_each_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = model_and_optimizer()
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "checkpoint.pt")
    weights, states = torch.load(tmp_path / "checkpoint.pt")
    model.load_state_dict(weights, assign=True)
    optimizer.load_state_dict(states)
    del weights, states
    for _ in range(2):
        with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
            vtensor.adopt(model, optimizer)
            large = [state["exp_avg"] for state in optimizer.state.values() if state["exp_avg"].nbytes >= 4096]
            assert large and all(vtensor.residency(tensor).managed for tensor in large)
            assert vtensor.adopt(model, optimizer) == 0
    assert "shared with" not in caplog.text


def test_adopting_may_be_interrupted_anywhere() -> None:
    """What shared memory does so still, moved or not."""
    points: list[Point] | None = None
    while points is None or points:
        base = torch.ones(1 << 12)
        values = base.detach()
        with vtensor.enabled("1MiB", chunk=4096, min_size=4096, device="cpu"):
            if points is None:
                points = [point for point in points_of(partial(vtensor.adopt, base, values)) if "adopt" in point.file]
                assert len(points) > 100
                continue
            assert interrupted(partial(vtensor.adopt, base, values), points.pop())
            base.fill_(2)
            assert values.sum() == 2 << 12
            native.load().open_eyes()


def test_mistakes() -> None:
    with pytest.raises(vtensor.NotEnabledError):
        vtensor.adopt(nn.Linear(2, 2))
    with vtensor.enabled("1MiB", chunk=4096, device="cpu"):
        assert vtensor.adopt(nn.Linear(2, 2)) == 0  # too small
        with pytest.raises(ConfigError, match="not a int"):
            vtensor.adopt(3)  # type: ignore[arg-type]


def test_enable_names_a_model_that_is_older() -> None:
    script = (
        "import torch, vtensor\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.inner = torch.nn.Linear(1024, 1024)\n"
        "model, gone = Mine(), torch.nn.Sequential(torch.nn.Linear(600, 600))\n"
        "gone.itself = [gone]; del gone\n"  # unreachable, but not collected yet
        "vtensor.enable('16MiB', device='cpu')\n"
        "vtensor.disable(); vtensor.enable('16MiB', device='cpu')\n"
        "outlived = torch.nn.Sequential(torch.nn.Linear(512, 512))\n"
        "vtensor.disable(); vtensor.enable('16MiB', device='cpu')\n"
    )
    done = subprocess.run([python(), "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.count("4.00 MiB of Mine were made before enable()") == 1
    assert done.stderr.count("were made before enable()") == 2
    assert done.stderr.count("1.00 MiB of Sequential were made before enable()") == 1


def test_what_outlived_a_session_is_older_than_the_next() -> None:
    with vtensor.enabled("64MiB", chunk=4096, min_size=4096, device="cpu"):
        model, optimizer = model_and_optimizer()
        weight = model.get_parameter("0.weight")
        before = weight.detach().clone()
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        assert vtensor.adopt(model, optimizer) == 4 * (4 << 16) + (8 << 16)
        assert vtensor.memory_stats()["tensor_bytes.current"] == 4 * (4 << 16) + (8 << 16)
        assert torch.equal(weight, before)
        assert vtensor.adopt(model, optimizer) == 0
    with vtensor.enabled("16MiB", chunk=4096, min_size=4096, device="cpu"):
        assert vtensor.adopt(model, optimizer) == 4 * (4 << 16) + (8 << 16)
