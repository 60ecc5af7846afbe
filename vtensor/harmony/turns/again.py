"""A layer's forward once more in its backward, instead of keeping what it leaves behind.

Covers: running layers under ``torch.utils.checkpoint`` while microbatches are woven; checkpoints of the program's own
around them.
Leaves: buffers as in the first run (``buffers``); making single tensors again, which the engine does for any program
(``kernels/engine/remake.h``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

from ...errors import HarmonyError
from ..buffers.copies import BufferCopies
from ..buffers.memories import Constants
from ..buffers.snapshots import BufferSnapshot
from ..forwards import Forwards, in_backward

__all__ = ["Again", "explained"]


class Again:
    """Layers whose forward runs again in backward, until :meth:`remove`."""

    def __init__(self, layers: Sequence[nn.Module], constants: Constants | None = None) -> None:
        self._forwards = Forwards()
        for layer in layers:
            self._forwards.exchange(layer, _twice(layer, layer.forward, constants))

    def remove(self) -> None:
        """The model is as it was."""
        self._forwards.put_back()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Around a backward in which layers run again.

    Raises
    ------
    HarmonyError
        With what may be done, if one did something else than in its first run.
    """
    try:
        yield
    except CheckpointError as error:
        raise HarmonyError(
            "with recompute=True a layer did something else when it ran again than at first, as those of transformers "
            "do that fill a cache: let loss= call the model with use_cache=False, leave such layers out of layers=, or "
            "do without recompute=True"
        ) from error


def _twice(layer: nn.Module, forward: Callable[..., Any], constants: Constants | None) -> Callable[..., Any]:
    snapshot: BufferSnapshot | None = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal snapshot
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if snapshot is None:
            snapshot = BufferSnapshot(layer, [layer], constants)
        elif in_backward() and snapshot.changed():
            raise HarmonyError(
                f"a {type(layer).__name__} changes its buffers, and the program's own checkpoints run it again, which "
                "would end early, within recompute=True: leave one of the two out"
            )
        before = BufferCopies(layer, constants)
        named = functools.partial(forward, **kwargs)  # some may have the names of the checkpoint's own
        return checkpoint(named, *args, use_reentrant=False, context_fn=lambda: (before.first(), before))

    return run
