"""What may be asked for is said once, and offered alike by ``enable()`` and by the command line."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

import pytest
import torch

import vtensor
from vtensor.command.cli import _parser
from vtensor.settings.options import Options

USUAL = asdict(Options())


def test_enable_offers_all_and_knows_what_was_left_out() -> None:
    offered = inspect.signature(vtensor.enable).parameters
    assert {name: offered[name].default for name in offered if name not in ("budget", "plan")} == dict.fromkeys(USUAL)


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cpu", 0), "cpu:0"])
def test_a_device_of_torch_says_which(device: Any) -> None:
    with vtensor.enabled("16MiB", device=device):
        assert vtensor.residency(torch.ones(1 << 20)).managed


def test_so_does_the_command_line() -> None:
    asked = vars(_parser().parse_args(["run", "train.py"]))
    assert {name: asked[name] for name in USUAL} == USUAL


@pytest.mark.parametrize(
    ("first", "second"),
    [({"policy": "lru"}, {"policy": "plan"}), ({"oversize": "raise"}, {"oversize": "borrow"})],
)
def test_asking_again_for_what_is_usual_is_asking(first: dict[str, Any], second: dict[str, Any]) -> None:
    with vtensor.enabled("64MiB", device="cpu", **first):
        vtensor.enable("32MiB", **first)
        vtensor.enable("16MiB")  # nothing else is asked for
        with pytest.raises(vtensor.ConfigError, match=rf"other settings \({next(iter(second))}\)"):
            vtensor.enable("16MiB", **second)
        assert vtensor.memory_stats()["budget_bytes"] == 16 << 20


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "tpu"}, "device='tpu' is unknown; choose one of 'auto', 'cpu', 'cuda'"),
        ({"device": "cuda:1"}, r"is not the current GPU: call torch.cuda.set_device\(1\) first"),
        ({"policy": "fifo"}, "policy='fifo' is unknown; choose one of 'plan', 'lru', 'size_staleness', 'delta'"),
        ({"oversize": "fail"}, "oversize='fail' is unknown"),
        ({"recompute": True}, "recompute=True is unknown; choose one of 'auto', 'never', 'only'"),
        ({"policy": "delta", "recompute": "never"}, "leaves it no choice"),
        ({"recompute": "only", "spill_dir": "."}, "copies nothing, so spill_dir= would stay empty"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(vtensor.ConfigError, match=said):
        vtensor.enable("1GiB", **asked)
    assert not vtensor.is_enabled()
