"""All that a script holds is mapped while it is saved, and nothing else is.

Each tensor is larger than the budget is then. One that was not found is in pieces in other places when the system
reads it: torch ends the program.
"""

import enum
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import native
from vtensor.hooks.scripted import tensors_of_scripted

PAGE = 4096
LARGE = 768 * PAGE
ROOM, LITTLE = "64MiB", "2MiB"
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit:DeprecationWarning", "ignore:Lite Interpreter:DeprecationWarning", "ignore:Sparse CSR"
)


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    enable(ROOM)
    yield


def enable(budget: str) -> None:
    vtensor.enable(budget, device="cpu", chunk=PAGE, min_size=1, policy="lru")


def large() -> torch.Tensor:
    return torch.randn(LARGE // 4)


def traced() -> Any:
    constant = large()
    return torch.jit.trace(lambda y: constant * y, torch.ones(()))


class Held(nn.Module):
    """Neither as parameter nor as buffer; the parameter is a constant once it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor = large()
        self.weight = nn.Parameter(large())

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.tensor * self.weight * y


class Containers(nn.Module):
    of_keys: dict[torch.Tensor, int]

    def __init__(self) -> None:
        super().__init__()
        self.of_values = {"x": [(large(), 1)]}
        self.of_keys = {large(): 1}

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        for key in self.of_keys.keys():  # noqa: SIM118  # TorchScript knows no other way
            y = y + key.sum()
        return y * self.of_values["x"][0][0]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Held()

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.inner(y)


class Sparse(nn.Module):
    def __init__(self, compressed: bool) -> None:
        super().__init__()
        matrix = torch.randn(1024, 1024).relu()
        self.register_buffer("matrix", matrix.to_sparse_csr() if compressed else matrix.to_sparse())

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.matrix.to_dense() * y


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.traced = traced()

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.traced(y)


class Forks(Calls):
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return torch.jit.wait(torch.jit.fork(self.traced, y))


class Pair:
    def __init__(self, x: torch.Tensor):
        self.x = x

    def times(self, y: torch.Tensor) -> torch.Tensor:
        return self.x * y


class Object(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(large())

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.pair.times(y)


def calls_a_method() -> Any:
    """Of an object that is made within, with a constant in its code."""
    constant = traced()

    class Caller:
        def __init__(self, times: int):
            self.times = times

        def get(self, y: torch.Tensor) -> torch.Tensor:
            return constant(y) * self.times

    script = torch.jit.script(Caller)

    def of_object(y: torch.Tensor) -> torch.Tensor:
        return script(1).get(y)

    return torch.jit.script(of_object)


HOLDERS: dict[str, Callable[[], Any]] = {
    "attributes": lambda: torch.jit.script(Held()),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Held().eval())),
    "containers": lambda: torch.jit.script(Containers()),
    "modules": lambda: torch.jit.script(Inner()),
    "sparse": lambda: torch.jit.script(Sparse(compressed=False)),
    "compressed": lambda: torch.jit.script(Sparse(compressed=True)),
    "a function": traced,
    "functions": lambda: torch.jit.script(Calls()),
    "forks": lambda: torch.jit.script(Forks()),
    "objects": lambda: torch.jit.script(Object()),
    "methods of objects": calls_a_method,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_all_that_a_script_holds_is_saved(kind: str, tmp_path: Path) -> None:
    script, y = HOLDERS[kind](), torch.tensor(2.0)
    expected = script(y)
    native.load().parts.evict_all()
    enable(LITTLE)
    script.save(str(tmp_path / "m"))
    enable(ROOM)
    assert torch.equal(torch.jit.load(str(tmp_path / "m"))(y), expected)


class Colour(enum.Enum):
    RED = 1


class Enumerated(Held):
    def __init__(self) -> None:
        super().__init__()
        self.colour = Colour.RED

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.tensor * self.weight * y if self.colour == Colour.RED else y


@pytest.mark.parametrize("kind", [Object, Enumerated])
@pytest.mark.parametrize("how", ["save", "_save_for_lite_interpreter"])
def test_what_was_loaded_is_saved_although_python_does_not_know_its_classes(
    kind: type[nn.Module], how: str, tmp_path: Path
) -> None:
    torch.jit.script(kind()).save(str(tmp_path / "first"))
    script, y = torch.jit.load(str(tmp_path / "first")), torch.tensor(2.0)
    expected = script(y)
    native.load().parts.evict_all()
    enable(LITTLE)
    getattr(script, how)(str(tmp_path / "second"), _extra_files={"notes": "some"})
    enable(ROOM)
    notes = {"notes": ""}
    loaded = torch.jit.load(str(tmp_path / "second"), _extra_files=notes)
    assert notes["notes"] in ("some", b"some")
    assert torch.equal(loaded(y), expected)


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    """What nobody wrote leaves without being copied once more."""
    script = torch.jit.script(Held())
    others = [large() for _ in range(6)]
    native.load().parts.evict_all()
    for other in others:
        other.sum()  # there again, as they are in the store
    before = vtensor.memory_stats()["moved_out_bytes"]
    script.save(str(tmp_path / "m"))
    native.load().parts.evict_all()
    assert vtensor.memory_stats()["moved_out_bytes"] - before <= 2 * LARGE


def test_methods_of_modules_within_are_looked_through_once() -> None:
    """With what it calls in it, the code of each module would be as large as that of all in it."""
    script = torch.jit.script(nn.Sequential(*(nn.Sequential(Calls()) for _ in range(3))))
    found = [tensor for tensor in tensors_of_scripted(script._c) if tensor.nbytes == LARGE]
    assert len(found) == 3
