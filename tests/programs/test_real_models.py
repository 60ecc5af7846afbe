"""The long profile: the three models of the acceptance list at their real sizes, eight steps, four budgets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vtensor import planning
from vtensor.demo.workloads import WORKLOADS

from ..identity import check_identity
from .test_programs import OPTIMIZERS, training

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def resnet50() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    inputs = {"pixel_values": torch.randn(4, 3, 160, 160), "labels": torch.randint(0, 2, (4,))}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig()), inputs


def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(n_layer=12, n_embd=384, n_head=6, vocab_size=16384, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(0, 16384, (2, 256))
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def bert_base() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    tokens = torch.randint(0, 30522, (4, 64))
    return transformers.BertForMaskedLM(transformers.BertConfig()), {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", [resnet50, gpt2, bert_base])
def test_real_model(model: Any, optimizer: str) -> None:
    runs = check_identity(
        lambda: training(model, OPTIMIZERS[optimizer], steps=8),
        (0.75, 0.5, 0.35, 0.25),
        chunk=2 << 20,
        min_size=1 << 20,
        host=12 << 30,
        ample=8 << 30,
    )
    for run in runs:
        figures = {name: run[f"{name}_bytes"] >> 20 for name in ("budget", "moved_out")}
        figures |= {"held_peak": run["held_bytes.peak"] >> 20, "faults": run["faults"], "oversize": run["oversize"]}
        print(model.__name__, optimizer, figures)
    assert runs[-1]["evictions"] > 0
    # Where iterations were never pressed (the peak was the comparison's copy of everything) none needs a plan.
    assert all(run["planned_iterations"] > 0 for run in runs if run["iterations"] > 0)
    assert runs[-1]["planned_iterations"] > 0


def made_again(name: str, fractions: tuple[float, ...], **options: Any) -> list[dict[str, Any]]:
    """Over a link so slow that much is recomputed: dropout, running statistics, the optimizer's state, generators."""

    def program() -> Any:
        torch.manual_seed(0)
        model, batch = WORKLOADS[name].make(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        model.train()
        losses = []
        for step in range(8):
            optimizer.zero_grad()
            loss = model(**batch(step)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            planning.wait_for_plan()
        return losses, model.state_dict(), optimizer.state_dict(), torch.get_rng_state()

    settings = {"chunk": 2 << 20, "min_size": 1 << 20, "host": 12 << 30, "ample": 8 << 30, "link": "800MB/s"}
    runs = check_identity(program, fractions, **settings, **options)
    for run in runs:
        figures = {key: run[key] >> 20 for key in ("budget_bytes", "moved_out_bytes", "made_bytes")}
        print(name, options, figures, run["planned_iterations"], run["plans"])
    return runs


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_real_models_that_are_made_again(name: str) -> None:
    runs = made_again(name, (0.75, 0.5, 0.35, 0.25))
    assert all(run["planned_iterations"] >= 3 for run in runs if run["plans"])  # U-Net at 25 % must borrow
    assert sum(run["made_bytes"] for run in runs) > 0


@pytest.mark.parametrize(
    ("name", "fractions"),  # of the peak, as far as weights, gradients and states alone, which cannot leave, are below
    [
        ("mobilenet_v2", (0.75, 0.5, 0.35, 0.25)),
        ("unet", (0.75, 0.5, 0.35)),
        ("gpt2", (0.75, 0.5, 0.35)),
        ("resnet50", (0.75, 0.5)),
        ("vit", (0.75,)),
        ("bert", (0.75,)),
    ],
)
def test_real_models_without_copies(name: str, fractions: tuple[float, ...]) -> None:
    runs = made_again(name, fractions, recompute="only")
    assert all(run["moved_out_bytes"] == 0 for run in runs)
    assert all(run["drops"] > 0 for run in runs)


@pytest.mark.parametrize("late", [True], ids=["in place"], indirect=True)
@pytest.mark.parametrize("recompute", ["auto", "only"])
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_real_models_made_again_on_an_ordered_device(name: str, recompute: str, late: bool) -> None:
    fraction = 0.75 if recompute == "only" and name in ("bert", "vit") else 0.5
    (run,) = made_again(name, (fraction,), recompute=recompute)
    assert recompute == "auto" or (run["drops"] > 0 and run["moved_out_bytes"] == 0)
