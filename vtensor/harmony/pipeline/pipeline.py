"""What a trainer needs of a pipeline: who the first process is, steps on either side, clipping.

Covers: beginning and ending a step in all processes, failures of the first, gradients' norm over all.
Leaves: the step itself (``calls``, ``worker``), gathering weights (``whole``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import HarmonyError
from ..microbatches import generator_state, set_generator_state
from ..weave import Weave
from .calls import Callee, Calls, Known
from .mail import Mail
from .orders import Began, End, Failed
from .placement import place
from .whole import gather, share
from .worker import Worker

__all__ = ["Pipeline"]


class Pipeline:
    """The processes of a group, each with a part of a model's layers. To be made by all of them.

    Parameters
    ----------
    model
        The same in all; its weights and buffers become those of the first process.
    layers
        What may live elsewhere.
    group
        A process group; True for the default one.

    Raises
    ------
    ConfigError
        If ``torch.distributed`` is not begun.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module], group: Any) -> None:
        self._mail = Mail(group)
        self._model, self._layers = model, list(layers)
        self._names = {module: name for name, module in model.named_modules()}
        self._owners: dict[nn.Module, int] = {}
        self._known = Known()
        self._worker = Worker(self._mail, self._layers, [self._names[layer] for layer in self._layers])
        self.size = self._mail.size
        self.first = self._mail.rank == 0
        """Whether this process is the one in which the program runs."""
        share(self._mail, model)

    def here(self, layer: nn.Module) -> bool:
        """Whether the layer lives in this process."""
        return self._owners.get(layer, 0) == self._mail.rank

    @property
    def placed(self) -> bool:
        """Whether it has been decided where layers live."""
        return bool(self._owners)

    # --- the first process --------------------------------------------------------------------------------------

    def place(self, packs: Sequence[Sequence[nn.Module]]) -> None:
        """Decide where layers live, once."""
        found = place(self._model, packs, self.size)
        self._owners = {layer: found.get(layer, 0) for layer in self._layers}

    def begin(self, microbatches: int, packs: Sequence[Sequence[nn.Module]], weave: Weave) -> Calls:
        """All processes begin a step; what calls layers that live elsewhere."""
        self._say_to_all(Began(microbatches, tuple(self._owners.values())))
        ranks = {layer: (k + 1, 2 * len(packs) - k + 1) for k, layers in enumerate(packs) for layer in layers}
        callees = [
            Callee(layer, index, owner, self._names[layer], ranks.get(layer, (0, 0)))
            for index, (layer, owner) in enumerate(self._owners.items())
        ]
        return Calls(self._mail, callees, weave, self._known)

    def end(self, loss: torch.Tensor) -> None:
        """All processes end the step, with this loss and the state of the generators."""
        self._say_to_all(End(loss.item(), generator_state().numpy().tobytes()))
        self._mail.settle()

    def fail(self, error: BaseException) -> None:
        """The others end, too."""
        with contextlib.suppress(HarmonyError):  # some may have ended already
            self._say_to_all(Failed(f"{type(error).__name__}: {error}"))

    def _say_to_all(self, message: Any) -> None:
        for other in range(1, self.size):
            self._mail.say(message, other)

    # --- the others ---------------------------------------------------------------------------------------------

    def await_step(self) -> tuple[int, Worker]:
        """Wait for the first process to begin a step; the number of microbatches, and who does what is said."""
        began = self._mail.hear(0)
        if isinstance(began, Failed):
            raise HarmonyError(f"the first process failed: {began.why}")
        self._owners = dict(zip(self._layers, began.owners, strict=True))
        return began.microbatches, self._worker

    def leave(self, end: End) -> torch.Tensor:
        """The step is over; its loss."""
        set_generator_state(torch.frombuffer(bytearray(end.state), dtype=torch.uint8))
        self._mail.settle()
        return torch.tensor(end.loss)

    # --- all ----------------------------------------------------------------------------------------------------

    def clip(self, parameters: Iterable[torch.Tensor], limit: float) -> None:
        """Clip the norm of all processes' gradients, as ``clip_grad_norm_`` does in one."""
        parameters = list(parameters)
        mine = [p for p in parameters if p.grad is not None]
        norms = dict(zip(mine, torch._foreach_norm([p.grad for p in mine if p.grad is not None]), strict=True))
        row = torch.stack([norms[p].float().cpu() if p in norms else torch.zeros(()) for p in parameters])
        has = torch.tensor([float(p in norms) for p in parameters])
        everywhere, used = self._mail.sum(row), self._mail.sum(has)
        total = torch.linalg.vector_norm(everywhere[used > 0])
        nn.utils.clip_grads_with_norm_(mine, limit, total)

    def gather(self, optimizer: torch.optim.Optimizer) -> None:
        """All processes get all weights, buffers and optimizer states."""
        gather(self._mail, self._model, optimizer, self._owners)
