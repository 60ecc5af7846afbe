"""Loops of Lightning; ``test_ecosystem`` runs them. Importing it takes 3 s: only who runs them does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            *(part for _ in range(4) for part in (nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()))
        )

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        loss: torch.Tensor = (self.layers(batch[0]) - batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("validation", self.layers(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class TwoOptimizers(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, _index: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            loss = (self.layers(batch[0]) - batch[0]).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        halves = list(self.layers[:6].parameters()), list(self.layers[6:].parameters())
        return [torch.optim.SGD(half, lr=0.1, momentum=0.9) for half in halves]


def fit(module: lightning.LightningModule, epochs: int = 4, resume: Any = None, **options: Any) -> Any:
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(4 * 32, 128))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    options = {"enable_checkpointing": False, **options}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **quiet, **options)
    trainer.fit(module, loader, loader, ckpt_path=resume)
    return module.state_dict(), [optimizer.state_dict()["state"] for optimizer in trainer.optimizers]


def validates() -> Any:
    return fit(Module())


def averages_weights() -> Any:
    return fit(Module(), callbacks=[StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=2)])


def two_optimizers() -> Any:
    return fit(TwoOptimizers())


def resumes() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(folder, save_last=True)
        first = fit(Module(), enable_checkpointing=True, callbacks=[keep], default_root_dir=folder)
        return first, fit(Module(), epochs=8, resume=Path(folder) / "last.ckpt", default_root_dir=folder)
