"""For the ``Trainer`` of Lightning.

Covers: logging vtensor's figures with each step, by whatever logger the trainer has. Leaves: which (``figures``).
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from .figures import Figures

__all__ = ["VtensorCallback"]


class VtensorCallback(Callback):
    """Logs vtensor's figures every so many steps as the trainer logs its own (``log_every_n_steps``)."""

    def __init__(self) -> None:
        self._figures, self._step = Figures(), 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts from here; a resumed training begins later than at 0."""
        self._figures.of(1)
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer's step that is to be logged."""
        steps, every = trainer.global_step - self._step, trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not every or steps < every:  # 0: never
            return
        self._step = trainer.global_step
        figures = self._figures.of(steps)
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.global_step)
