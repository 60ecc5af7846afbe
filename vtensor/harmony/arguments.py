"""What a trainer is asked for that can never work.

Covers: refusing it, with words that say what would.
Leaves: what only one room can tell: when and where updates are possible (``updates``, ``hosted``), names of layers
(``layers``).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import ConfigError

__all__ = ["check"]


def check(
    model: nn.Module,
    *,
    microbatches: int,
    packs: int | None,
    recompute: bool,
    scaler: Any,
    data_parallel: Any,
    pipeline: Any,
) -> None:
    """Check arguments of :class:`vtensor.Harmony` beside each other.

    Raises
    ------
    ConfigError
        If they cannot work together.
    """
    if microbatches < 1:
        raise ConfigError(f"microbatches={microbatches}: at least 1")
    if packs is not None and packs < 1:
        raise ConfigError(f"packs={packs}: at least 1")
    if pipeline and data_parallel:
        raise ConfigError("pipeline= and data_parallel= cannot be combined: choose one")
    if pipeline and scaler is not None:
        raise ConfigError("pipeline= cannot be combined with scaler=: use torch.bfloat16, which needs none")
    if recompute and hasattr(model, "_orig_mod"):
        raise ConfigError(
            "recompute=True does not work with a compiled model: compile its layers, or pass recompute=False"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ConfigError("pass the module itself instead of DistributedDataParallel, and data_parallel=True")
