"""What ``make gpu-check`` does on any machine: rows that say what happened, and going on where a call ended."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import compare, training
from benchmarks.gpu_check.kept import Kept
from benchmarks.gpu_check.models import BLOCKS
from benchmarks.gpu_check.ways import PEERS, NotSupportedError, Way


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[GPT2Block() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> Any:
        return argparse.Namespace(loss=self.blocks(x).square().mean())


def make() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Net(), {"x": torch.randn(512, 64)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps, and a tiny model in the place of each."""
    for module in (training, compare):
        monkeypatch.setattr(module, "WARM", 1)
        monkeypatch.setattr(module, "TIMED", 1)
    monkeypatch.setattr(command, "models", lambda _small: dict.fromkeys(BLOCKS, make))


def check(folder: Path, rows: int = sys.maxsize) -> None:
    given = argparse.Namespace(
        part=["models"], device="cpu", small=True, model=["gpt2"], dtype=["fp32"], seconds=600.0, rows=rows,
        results=folder,
    )  # fmt: skip
    assert command.Check(given).run() == 0


def kept(folder: Path) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads((folder / "gpu_models_dry.partial.json").read_text())["rows"]
    return rows


def test_the_next_call_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(PEERS, "torch.compile, its memory budget")  # which takes half a minute
    check(tmp_path, rows=3)
    first = kept(tmp_path)
    assert list(first) == [
        f"gpt2 fp32 {each}"
        for each in ("100% plain torch", "100% vtensor, room to spare", "50% vtensor plan",
                     "50% checkpoint per block", "50% checkpoint per block, rest on the host")
    ]  # fmt: skip
    assert "call again" in capsys.readouterr().out
    check(tmp_path, rows=4)
    second = kept(tmp_path)
    assert {key: second[key] for key in first if "100%" not in key} == {
        key: row for key, row in first.items() if "100%" not in key
    }
    assert len(second) == len(first) + 4
    check(tmp_path)
    assert "all is there" in capsys.readouterr().out
    assert not (tmp_path / "gpu_models_dry.partial.json").exists()
    (result,) = tmp_path.glob("gpu_models_dry_*.json")
    rows = json.loads(result.read_text())["rows"]
    assert len(rows) == 2 + 3 * (2 + len(PEERS))
    by_way = {row["way"]: row for row in rows}
    assert by_way["vtensor plan"]["identical"] == by_way["checkpoint per block"]["identical"] == "yes"
    assert by_way["TRL OffloadActivations"]["step ratio"].startswith("not supported: ")


def test_what_another_commit_found_does_not_count(tmp_path: Path) -> None:
    rows = Kept("case", "", tmp_path)
    rows.add("a", {"figure": 1})
    assert "a" in Kept("case", "", tmp_path)
    content = json.loads(rows.path.read_text())
    content["found_by"]["commit"] = "another"
    rows.path.write_text(json.dumps(content))
    assert "a" not in Kept("case", "", tmp_path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "does not fit"),
        (ValueError("Net does not support\n gradient checkpointing"), "not supported: Net does not support gradient"),
        (NotSupportedError("not installed: trl"), "not supported: not installed: trl"),
    ],
)
def test_a_row_says_what_happened(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any) -> nn.Module:
        raise error

    monkeypatch.setitem(PEERS, "refusing", Way(refuse))
    one = compare.Comparison(Kept("case", "", tmp_path), "gpt2", make, "cpu", "fp32", "64KiB", lambda: True)
    one.measure()
    assert one.peer(0.5, "refusing")["step ratio"].startswith(words)


def test_other_errors_end_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: Any) -> nn.Module:
        raise RuntimeError("a fault of ours")

    monkeypatch.setitem(PEERS, "failing", Way(fail))
    one = compare.Comparison(Kept("case", "", tmp_path), "gpt2", make, "cpu", "fp32", "64KiB", lambda: True)
    one.measure()
    with pytest.raises(RuntimeError, match="a fault of ours"):
        one.peer(0.5, "failing")


def test_the_most_valuable_comes_first() -> None:
    found = command.order(list(BLOCKS), ["fp32", "bf16"])
    assert [one[:3] for one in found[:2]] == [("resnet50", "fp32", 0.5), ("gpt2", "fp32", 0.5)]
    assert found[0][3][0] == "vtensor plan"
    places = [(*one, way) for *one, ways in found for way in ways]
    assert len(places) == len(set(places)) == 4 * 2 * 3 * len(compare.all_ways())
    assert [one[2] for one in command.order(["vit"], ["bf16"])] == [0.5, 0.35, 0.75] * 2


def test_make_calls_what_is_there() -> None:
    """``make gpu-check`` is called where a GPU is, which is rarely: its words are read here."""
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "gpu-check", "PART=costs", f"PYTHON={sys.executable}"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    command, _, arguments = printed.strip().partition(" -m ")
    assert command == sys.executable
    module, *options = arguments.split()
    assert importlib.util.find_spec(f"{module}.__main__") is not None
    assert options == ["--part", "costs"]
