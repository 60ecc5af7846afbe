"""The loops of other people's libraries at 40 % of their peak: the same bits, and their iterations planned."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import vtensor
from benchmarks.ecosystem.libraries import words
from vtensor import planning

from ..identity import check_identity

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
STEPS = 16


@pytest.fixture(autouse=True)
def plans_are_waited_for() -> Iterator[None]:
    """As if iterations took long enough for a plan to be made during one."""
    handle = register_optimizer_step_post_hook(lambda *_: planning.wait_for_plan())
    yield
    handle.remove()


def language_model() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=300, n_positions=32, bos_token_id=0, eos_token_id=0)
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def rows(count: int = 4 * STEPS) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    tokens = torch.randint(0, 300, (count, 32))
    return [{"input_ids": row, "labels": row} for row in tokens]


# --- transformers, accelerate, peft -------------------------------------------------------------------------------


def trained(folder: str, model: nn.Module, resume: bool = False, **options: Any) -> Any:
    settings = {"max_steps": STEPS, "per_device_train_batch_size": 4, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True, logging_steps=4, **settings
    )
    trainer = Trainer(model, arguments, train_dataset=rows(), eval_dataset=rows(8))
    trainer.train(resume_from_checkpoint=resume)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, model.state_dict(), trainer.optimizer.state_dict()["state"]


def trainer() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return trained(folder, language_model())


def trainer_accumulates() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return trained(folder, language_model(), gradient_accumulation_steps=2, per_device_train_batch_size=2)


def trainer_checkpoints_evaluates_and_resumes() -> Any:
    often = {"save_strategy": "steps", "save_steps": 8, "eval_strategy": "steps", "eval_steps": 8}
    with tempfile.TemporaryDirectory() as folder:
        first = trained(folder, language_model(), **often)
        return first, trained(folder, language_model(), resume=True, **{**often, "max_steps": 2 * STEPS})


def trainer_recomputes() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return trained(folder, language_model(), gradient_checkpointing=True)


def lora() -> Any:
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    with tempfile.TemporaryDirectory() as folder:
        return trained(folder, peft.get_peft_model(language_model(), config))


def accelerate() -> Any:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    loader = torch.utils.data.DataLoader(rows(), batch_size=2)  # type: ignore[arg-type]
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, model.state_dict(), optimizer.state_dict()["state"]


def trl_pads() -> Any:
    """Each batch padded to its longest text: few of its lengths come twice."""
    import datasets
    import trl

    torch.manual_seed(1)
    lengths = torch.randint(20, 31, (4 * STEPS,)).tolist()
    texts = datasets.Dataset.from_dict({"input_ids": [torch.randint(2, 300, (k,)).tolist() for k in lengths]})
    model = language_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl.SFTConfig(
            output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True, max_steps=STEPS, save_strategy="no",
            per_device_train_batch_size=4, max_length=32, bf16=False, gradient_checkpointing=False,
            eos_token="<|end|>", pad_token="<|pad|>",
        )  # fmt: skip
        trl.SFTTrainer(model, args=arguments, train_dataset=texts, processing_class=words(300)).train()
    return model.state_dict()


# --- torch.compile ------------------------------------------------------------------------------------------------


def compiled(step_too: bool = False) -> Any:
    """On one thread: with two, what inductor compiles of an embedding's gradient differs from itself."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compiled_on_one(step_too)
    finally:
        torch.set_num_threads(threads)


def compiled_on_one(step_too: bool) -> Any:
    torch.compiler.reset()
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if step_too:
        optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]
    called = torch.compile(model)
    losses = []
    for tokens in torch.stack([row["labels"] for row in rows()]).split(4):
        optimizer.zero_grad()
        loss = called(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def compiled_with_optimizer() -> Any:
    return compiled(step_too=True)


# --- Lightning ----------------------------------------------------------------------------------------------------


def of_lightning(name: str) -> Callable[[], Any]:
    """A loop of ``lightning_loops``."""

    def run() -> Any:
        return getattr(importlib.import_module(".lightning_loops", __package__), name)()

    return run


# How many iterations have an evaluation in them, or come after a resumption: those cannot be like the others.
PROGRAMS: dict[str, tuple[Callable[[], Any], int]] = {
    "trainer": (trainer, 0),
    "trainer_accumulates": (trainer_accumulates, 0),
    "trainer_recomputes": (trainer_recomputes, 0),
    "trainer_checkpoints_evaluates_and_resumes": (trainer_checkpoints_evaluates_and_resumes, 4),
    "accelerate": (accelerate, 0),
    "lora": (lora, 0),
    "trl_pads": (trl_pads, 0),
    "compiled": (compiled, 0),
    "compiled_with_optimizer": (compiled_with_optimizer, 0),
    "lightning_validates": (of_lightning("validates"), 4),
    "lightning_averages_weights": (of_lightning("averages_weights"), 5),
    "lightning_two_optimizers": (of_lightning("two_optimizers"), 4),
    "lightning_resumes": (of_lightning("resumes"), 8),
}
SHARES = {"trl_pads": 0.75}  # what it looks at beside the loss needs two thirds at once
QUICK = ("trainer", "lightning_validates")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PROGRAMS]
)
def test_loops_of_libraries(name: str) -> None:
    program, interrupted = PROGRAMS[name]
    (run,) = check_identity(program, (SHARES.get(name, 0.4),), min_size=1 << 12)
    assert run["evictions"] + run["drops"] > 0
    assert run["planned_iterations"] >= 0.8 * (run["iterations"] - 5 - interrupted), run["planned_iterations"]


def test_libraries_that_try_smaller_batches_know_that_memory_is_full() -> None:
    """They go by the words of torch's errors."""
    from lightning.pytorch.utilities.memory import is_oom_error

    tried = []

    @find_executable_batch_size(starting_batch_size=4096)
    def train(batch: int) -> None:
        tried.append(batch)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        model(torch.randn(batch, 64)).sum().backward()

    with vtensor.enabled("1MiB", chunk=4096, min_size=4096, host="2MiB"):
        train()
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(4 << 20)
    assert tried[0] == 4096 and len(tried) > 1
    assert is_oom_error(caught.value)
