"""Which loops there are, and which bare one each is held against."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from . import libraries, loops

__all__ = ["LOOPS"]

Loop = Callable[[], nn.Module]

# The loop, how many processes it takes, and which bare one it is held against.
LOOPS: dict[str, tuple[Loop, int, str]] = {
    "bare": (loops.bare, 1, ""),
    "lightning": (libraries.lightning, 1, "bare"),
    "lightning, validation": (libraries.lightning_validates, 1, "bare"),
    "lightning, resumed": (libraries.lightning_resumes, 1, "bare"),
    "lightning, SWA": (libraries.lightning_averages_weights, 1, "bare"),
    "torch.compile(model)": (loops.compiled, 1, "bare"),
    "torch.compile(model, optimizer)": (loops.compiled_optimizer, 1, "bare"),
    "DDP, 2 processes": (loops.replicated, 2, "bare"),
    "FSDP2, 2 processes": (loops.sharded, 2, "bare"),
    "bare, clipping": (loops.bare_clipping, 1, ""),
    "trainer": (libraries.trainer, 1, "bare, clipping"),
    "trainer, evaluation": (libraries.trainer_evaluates, 1, "bare, clipping"),
    "trainer, resumed": (libraries.trainer_resumes, 1, "bare, clipping"),
    "accelerate": (libraries.accelerate, 1, "bare, clipping"),
    "bare, accumulation": (loops.bare_accumulating, 1, ""),
    "trainer, accumulation": (libraries.trainer_accumulates, 1, "bare, accumulation"),
    "bare, checkpointing": (loops.bare_recomputing, 1, ""),
    "trainer, checkpointing": (libraries.trainer_recomputes, 1, "bare, checkpointing"),
    "bare, two optimizers": (loops.bare_two_optimizers, 1, ""),
    "lightning, two optimizers": (libraries.lightning_two_optimizers, 1, "bare, two optimizers"),
    "bare, LoRA": (libraries.bare_lora, 1, ""),
    "peft, LoRA": (libraries.lora, 1, "bare, LoRA"),
    "bare, lengths": (loops.bare_lengths, 1, ""),
    "TRL, lengths": (libraries.trl_lengths, 1, "bare, lengths"),
}
