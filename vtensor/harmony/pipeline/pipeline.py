"""What a trainer needs of a pipeline: who the first process is, steps on either side, clipping.

Covers: beginning and ending a step in all processes, failures of the first, gradients' norm over all.
Leaves: the step itself (``calls``, ``worker``), gathering weights (``whole``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import HarmonyError
from ..generators import generator_state, set_generator_state
from ..processes.mail import Mail
from ..processes.whole import gather, share
from ..turns.weave import Weave
from .calls import Callee, Calls, Known
from .look import Look
from .orders import Began, End, Failed
from .placement import place
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
        self._failed = False  # what was under way then may arrive in the place of what is sent later
        share(self._mail, model)

    def check(self) -> None:
        """Before a step.

        Raises
        ------
        HarmonyError
            If one failed.
        """
        if self._failed:
            raise HarmonyError("an earlier step of this pipeline failed: start its processes anew, from a checkpoint")

    def here(self, layer: nn.Module) -> bool:
        """Whether the layer lives in this process."""
        return self._owners.get(layer, 0) == self._mail.rank

    @property
    def placed(self) -> bool:
        """Whether it has been decided where layers live."""
        return bool(self._owners)

    # --- the first process --------------------------------------------------------------------------------------

    def look(self) -> Look:
        """Around one run of the program as a whole, before layers are placed."""
        return Look(self._model, self._layers)

    def place(self, packs: Sequence[Sequence[nn.Module]], look: Look) -> None:
        """Decide where layers live, once."""
        self._known.draws_between = look.draws_between
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
        self._say_to_all(End(loss.item(), tuple(loss.shape), loss.dtype, generator_state().numpy().tobytes()))
        self._mail.settle()

    def fail(self, error: BaseException) -> None:
        """The others end, too; there is no other step."""
        self._failed = True
        for other in range(1, self.size):
            with contextlib.suppress(HarmonyError):  # it may have ended already
                self._mail.say(Failed(f"{type(error).__name__}: {error}"), other)

    def _say_to_all(self, message: Any) -> None:
        for other in range(1, self.size):
            self._mail.say(message, other)

    # --- the others ---------------------------------------------------------------------------------------------

    def serve(self, step: Callable[[int, Worker], End]) -> torch.Tensor:
        """Wait for the first process to begin a step, and take part in it; its loss.

        `step` is given the number of microbatches, and who does what is said.
        """
        try:
            end = step(*self._await_step())
        except BaseException:
            self._failed = True
            raise
        set_generator_state(torch.frombuffer(bytearray(end.state), dtype=torch.uint8))
        self._mail.settle()
        return torch.full(end.shape, end.loss, dtype=end.dtype)

    def _await_step(self) -> tuple[int, Worker]:
        began = self._mail.hear(0)
        if isinstance(began, Failed):
            raise HarmonyError(f"the first process failed: {began.why}")
        self._owners = dict(zip(self._layers, began.owners, strict=True))
        return began.microbatches, self._worker

    # --- all ----------------------------------------------------------------------------------------------------

    def clip(self, parameters: Iterable[torch.Tensor], limit: float) -> None:
        """Clip the norm of all processes' gradients, as ``clip_grad_norm_`` does in one."""
        parameters = list(parameters)
        mine = [p for p in parameters if p.grad is not None]
        found = torch._foreach_norm([p.grad for p in mine if p.grad is not None]) if mine else []
        norms = dict(zip(mine, found, strict=True))
        row = [norms[p].double().cpu() if p in norms else torch.zeros((), dtype=torch.double) for p in parameters]
        has = torch.tensor([float(p in norms) for p in parameters])
        everywhere, used = self._mail.sum(torch.stack(row)), self._mail.sum(has) > 0
        dtypes = [p.dtype for p, there in zip(parameters, used.tolist(), strict=True) if there]
        dtype = functools.reduce(torch.promote_types, dtypes, torch.bfloat16 if not dtypes else dtypes[0])
        total = torch.linalg.vector_norm(everywhere[used].to(dtype))
        nn.utils.clip_grads_with_norm_(mine, limit, total)

    def gather(self, optimizer: torch.optim.Optimizer) -> None:
        """All processes get all weights, buffers and optimizer states."""
        self.check()
        gather(self._mail, self._model, optimizer, self._owners)
