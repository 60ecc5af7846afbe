"""Each pack's update when its gradients are complete, by the user's own optimizer.

Covers: which parameters have got the gradients of all microbatches; calling the optimizer for these alone; whether
that can be.
Leaves: when it is called (``trainer``).

A parameter is complete when every microbatch's backward has added to its gradient: autograd adds once in each, after
all uses of the parameter in it, tied ones among them. The optimizer sees the others without a gradient, so it skips
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch

from ..errors import ConfigError, HarmonyError
from ..logs import log
from .hosting.hosted import Hosted
from .processes.replicas import Replicas

__all__ = ["Update", "Updates", "when_to_update"]

Update = Literal["auto", "packs", "together"]


class Updates:
    """Updates of one step; `current` says which microbatch runs. With `replicas` all processes call the same.

    What is `hosted` is updated in the host's memory. If `ordered`, gradients must come in the order of microbatches.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[Any, str],
        microbatches: int,
        current: Callable[[], int | None],
        *,
        replicas: Replicas | None = None,
        hosted: Hosted | None = None,
        ordered: bool = True,
    ) -> None:
        self._optimizer, self._names, self._current, self._replicas = optimizer, names, current, replicas
        self._hosted = hosted
        self._all = [p for group in optimizer.param_groups for p in group["params"]]
        self._parameters = [p for p in self._all if p.requires_grad]
        # Some optimizers count their steps in their groups: this is one step, however many calls it takes.
        self._options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self._had_states = set(optimizer.state)
        self._microbatches, self._ordered = microbatches, ordered
        self._had = {p for p in self._parameters if p.grad is not None}
        self._missing = {p: set(range(microbatches)) for p in self._parameters}
        self._complete: list[torch.Tensor] = []
        self._done: set[torch.Tensor] = set()
        self._handles = [p.register_post_accumulate_grad_hook(self._arrived) for p in self._parameters]

    def remove(self) -> None:
        """The parameters are as they were."""
        for handle in self._handles:
            handle.remove()

    def _arrived(self, parameter: torch.Tensor) -> None:
        missing, current = self._missing[parameter], self._current()
        if current not in missing:
            raise HarmonyError(
                f"{self._names.get(parameter, 'a parameter')} got two gradients from one microbatch: the loss, or a "
                "layer, goes backward more than once. By turns these would be added in another order; let loss= return "
                "the sum instead, and torch.utils.checkpoint be called with use_reentrant=False"
            )
        missing.discard(current)
        before = self._microbatches - 1 - len(missing) + (parameter in self._had)
        # The first two of all may come in any order.
        if self._ordered and before > 1 and not missing.issuperset(range(current + 1, self._microbatches)):
            raise HarmonyError(
                f"{self._names.get(parameter, 'a parameter')} got the gradient of microbatch {current} after that of a "
                "later one: the sum would not be that of the ordinary loop. Pass packs=1"
            )
        if not missing:
            self._complete.append(parameter)

    def update_complete(self) -> None:
        """Update what has got all its gradients since the last call."""
        ready = set(self._complete)
        if self._replicas is not None and (waiting := self._waiting()):
            ready = self._replicas.complete_everywhere(waiting, ready)
            self._replicas.average([p for p in waiting if p in ready])
        self._complete = [p for p in self._complete if p not in ready]
        if ready:
            self._update(ready)

    def update_rest(self) -> None:
        """Update all others that have a gradient: those that some microbatch did not use."""
        rest = self.rest()
        frozen = {p for p in self._all if not p.requires_grad and p.grad is not None}  # with one from before
        if rest or frozen or not self._done:
            self._update(rest | frozen)
        self._states_in_order()

    def rest(self) -> set[torch.Tensor]:
        """What has a gradient, and was not updated; the average of all processes' gradients, if there are several."""
        waiting = self._waiting()
        if self._replicas is None or not waiting:
            return {p for p in waiting if p.grad is not None}
        rest = self._replicas.with_gradients(waiting)
        self._replicas.average([p for p in waiting if p in rest])
        return rest

    def _waiting(self) -> list[torch.Tensor]:
        return [p for p in self._parameters if p not in self._done]

    def _states_in_order(self) -> None:
        """As one call for all parameters would have made them: a saved state is the same, byte for byte."""
        states = self._optimizer.state
        if len(states) > len(self._had_states):
            made = {p: states.pop(p) for p in self._all if p in states and p not in self._had_states}
            states.update(made)

    def _update(self, ready: set[torch.Tensor]) -> None:
        hidden = [(p, p.grad) for p in self._all if p.grad is not None and p not in ready]
        for p, _ in hidden:
            p.grad = None
        try:
            if self._done:
                self._reset_options()
            with self.where():
                self._optimizer.step()
        finally:
            for p, gradient in hidden:
                p.grad = gradient
        self._done |= ready
        for p in ready:
            p.grad = None

    def where(self) -> contextlib.AbstractContextManager[None]:
        """Around a step of the optimizer: its tensors are where it is computed."""
        return contextlib.nullcontext() if self._hosted is None else self._hosted.updating()

    def _reset_options(self) -> None:
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            for added in group.keys() - options.keys() - {"params"}:
                del group[added]
            group.update(options)


def _looks_at_all(optimizer: Any) -> str:
    """Why the optimizer needs all gradients at once; empty if it does not, as far as is known."""
    name = type(optimizer).__name__
    if name.startswith(("DAdapt", "Prodigy")):
        return f"{name} adapts its rate to all gradients"
    if getattr(optimizer, "defaults", {}).get("max_grad_norm"):
        return f"{name} clips by the norm of all gradients (max_grad_norm)"
    if "lookahead" in name.lower():
        return f"{name} counts its calls"
    return ""


def when_to_update(
    update: Update, optimizer: Any, clip_norm: float | None, scaler: Any, *, spread: bool = False
) -> Update:
    """Whether each pack's update comes with its gradients, or all together; "auto" decided.

    With `spread`, gradients are in several processes, each with an optimizer of its own.

    Raises
    ------
    ConfigError
        If it cannot be as asked.
    """
    if update not in get_args(Update):
        raise ConfigError(f"update={update!r} is unknown; choose one of {', '.join(get_args(Update))}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates the loss several times in a step: train with its own closure instead")
    reason = _looks_at_all(optimizer)
    if spread and reason:
        raise ConfigError(f"pipeline= is not possible: {reason}, and each process has only those of its own layers")
    if clip_norm is not None:
        reason = "clip_norm needs the norm of all gradients"
    if scaler is not None:
        reason = "the scaler looks for infinities in all gradients"
    if update == "packs" and reason:
        raise ConfigError(f"update='packs' is not possible: {reason}; pass update='together'")
    if update == "auto":
        if reason:
            log.info("Harmony updates all packs together: %s", reason)
        return "together" if reason else "packs"
    return update
