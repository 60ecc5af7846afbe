"""vtensor's figures in the logs of the real libraries, which take ten seconds to import: only who runs a test does."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor.callbacks.figures import Figures

SETTINGS: dict[str, Any] = {"chunk": 1 << 16, "min_size": 1 << 14, "device": "cpu"}
NAMES = {"budget_mib", "held_mib", "moved_out_mib", "moved_in_mib", "recomputed_mib", "waited_seconds", "planned"}


def test_figures_are_of_the_steps_since_the_last() -> None:
    figures = Figures()
    assert figures.of(1) == {}
    with vtensor.enabled("1MiB", **SETTINGS):
        first = figures.of(1)
        assert {name.removeprefix("vtensor/") for name in first} == NAMES
        assert first["vtensor/moved_out_mib"] == 0
        kept = [torch.ones(1 << 16) for _ in range(8)]  # 2 MiB
        assert figures.of(4)["vtensor/moved_out_mib"] == pytest.approx(1 / 4, abs=0.1)
        assert figures.of(4)["vtensor/moved_out_mib"] == 0
        assert figures.of(4)["vtensor/budget_mib"] == 1
    with vtensor.enabled("1MiB", chunk=4096, min_size=1):
        assert min(figures.of(4).values()) >= 0  # counted anew
        del kept


def test_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the trainer's own history, and in what TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from vtensor.callbacks.transformers import add_to

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(32)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=8, logging_steps=4, per_device_train_batch_size=4, report_to="tensorboard",
        disable_tqdm=True, save_strategy="no", use_cpu=True,
    )  # fmt: skip
    with vtensor.enabled("6MiB", **SETTINGS):
        model = GPT2LMHeadModel(
            GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=300, bos_token_id=0, eos_token_id=0)
        )
        trainer = Trainer(model, arguments, train_dataset=rows)
        add_to(trainer)
        trainer.train()
    told = [row for row in trainer.state.log_history if "loss" in row]
    assert len(told) == 2
    assert all(row["vtensor/moved_out_mib"] > 0 and row["vtensor/held_mib"] <= 6 for row in told)
    (folder,) = {file.parent for file in (tmp_path / "logs").rglob("events*")}
    read = EventAccumulator(str(folder))
    read.Reload()
    swapped = [event.value for event in read.Scalars("train/vtensor/moved_out_mib")]
    assert swapped == pytest.approx([row["vtensor/moved_out_mib"] for row in told])


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning(tmp_path: Path) -> None:
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    from vtensor.callbacks.lightning import VtensorCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            loss: torch.Tensor = self.layers(batch[0]).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 512)), batch_size=4)
    logger = CSVLogger(tmp_path)
    with vtensor.enabled("6MiB", **SETTINGS):
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=logger, log_every_n_steps=4, callbacks=[VtensorCallback()],
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(Module(), data)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [4, 8]
    assert all(float(row["vtensor/moved_out_mib"]) > 0 for row in rows)
