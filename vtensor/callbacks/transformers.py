"""For the ``Trainer`` of transformers.

Covers: adding vtensor's figures to what it logs, for whatever ``report_to`` names. Leaves: which figures (``figures``).
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from .figures import Figures

__all__ = ["VtensorCallback", "add_to"]


class VtensorCallback(TrainerCallback):  # type: ignore[misc]
    """Adds vtensor's figures to each training log. Callbacks that write logs see them if they come after this one."""

    def __init__(self) -> None:
        self._figures, self._step = Figures(), 0

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Counts from here; a resumed training begins later than at 0."""
        self._figures.of(1)
        self._step = state.global_step

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """With the loss of some steps come their figures."""
        if logs is None or "loss" not in logs:
            return
        figures = self._figures.of(state.global_step - self._step)
        self._step = state.global_step
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)


def add_to(trainer: Any) -> None:
    """Add :class:`VtensorCallback` to a ``Trainer``, before the callbacks that write logs."""
    trainer.callback_handler.callbacks.insert(0, VtensorCallback())
