"""What users call: a training step in Harmony's order.

Covers: the arguments, one step, packs by measured bytes, clipping and scaling, models without layers.
Leaves: everything else to the rooms named in the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import nn

from .. import native
from ..config import format_bytes
from ..errors import ConfigError
from ..logs import log
from ..planning import as_one_iteration
from ..session import active_config, is_enabled
from .again import Again
from .layers import find_layers, layers_named
from .microbatches import Generators, cut
from .packs import cut_evenly, pack
from .replicas import Replicas
from .stops import Order, Stops
from .updates import Updates, looks_at_all
from .weave import Weave

__all__ = ["Harmony"]

Update = Literal["auto", "packs", "together"]

# Of the budget, what weights, gradients and optimizer states of a pack may take: the next one's arrive while it
# computes, and activations need their room.
_PART = 1 / 4
_COPIES = 4  # weights, gradients, two states: until states are there to be measured


class Harmony:
    """Trains a model by microbatches, in an order that reads each weight as seldom as can be.

    Losses, parameters, buffers and optimizer states are those of the ordinary loop, bit for bit::

        for microbatch in microbatches:
            (loss(model, microbatch) / len(microbatches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    Random numbers (dropout): each microbatch has generator states of its own; :attr:`seeds` are those of all but the
    first.

    Parameters
    ----------
    model
        Any module. Layers are found in its ``ModuleList`` and ``Sequential``; without any it runs as it is.
    optimizer
        Any optimizer that leaves parameters without a gradient alone, and treats each by itself. Its hooks run once for
        each pack; if it draws random numbers, from a generator of its own.
    loss
        Called with the model and a microbatch; returns a scalar. Microbatches take turns in the middle of it: what it
        or a layer keeps on the model, sets for the whole process (``model.eval()``, backends' flags) or reads there is
        that of several.
    microbatches
        Into how many parts a batch is cut.
    packs
        How many packs; default: as few as the budget of :func:`vtensor.enable` allows, of about the same size. Without
        a budget each layer is one.
    layers
        Names of the modules that take turns, as of ``model.named_modules()``; default: found.
    recompute
        True: a layer keeps its input only, and runs again in backward (as by ``torch.utils.checkpoint``; layers must do
        the same when run twice, so pass ``use_cache=False`` to transformers' models). False: what is kept, copied or
        made again is the engine's business (``enable(recompute=...)``).
    update
        ``"packs"``: each right after its backward. ``"together"``: all after the last backward, as optimizers need that
        look at all gradients; then gradients of the whole model are held. ``"auto"``: together for clipping, scaling
        and optimizers known to need it.
    clip_norm
        Clip the norm of all gradients to this.
    scaler
        A ``torch.amp.GradScaler``, which then scales, steps and updates.
    data_parallel
        True, or a process group: each process calls :meth:`step` with its share of a batch, and gradients are averaged
        pack by pack, as ``DistributedDataParallel`` does for the whole model. Pass the model itself, not wrapped.
    split
        Cuts a batch into a list of microbatches; default: tensors along their first dimension.

    Raises
    ------
    ConfigError
        For arguments that cannot work together.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: Callable[[nn.Module, Any], torch.Tensor],
        microbatches: int,
        packs: int | None = None,
        layers: Iterable[str] | None = None,
        recompute: bool = False,
        update: Update = "auto",
        clip_norm: float | None = None,
        scaler: Any = None,
        data_parallel: Any = False,
        split: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        if microbatches < 1:
            raise ConfigError(f"microbatches={microbatches}: at least 1")
        if packs is not None and packs < 1:
            raise ConfigError(f"packs={packs}: at least 1")
        self.model, self.optimizer = model, optimizer
        self._loss, self._microbatches, self._recompute = loss, microbatches, recompute
        self._clip_norm, self._scaler, self._split = clip_norm, scaler, split
        self._packs = packs
        self._update = _when(update, optimizer, clip_norm, scaler)
        self._layers = find_layers(model) if layers is None else layers_named(model, layers)
        self._ordered = False  # whether the layers are in the order in which they run
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        if recompute and hasattr(model, "_orig_mod"):
            raise ConfigError(
                "recompute=True cannot be with a compiled model: compile its layers, or pass recompute=False"
            )
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise ConfigError("pass the module itself instead of DistributedDataParallel, and data_parallel=True")
        self._replicas = Replicas(model, data_parallel) if data_parallel else None
        self.seeds: list[int] = []
        """Of the last step: microbatch k > 0 began as after ``torch.manual_seed(seeds[k - 1])``."""
        if not self._layers:
            log.warning(
                "Harmony found no layers in %s: microbatches run one after the other; layers= names them",
                type(model).__name__,
            )

    @property
    def packs(self) -> list[list[nn.Module]]:
        """The layers of each pack, as the next step takes them."""
        sizes = [self._bytes(layer) for layer in self._layers]
        if not self._layers:
            return []
        if self._packs is not None:
            runs = cut_evenly(sizes, self._packs)
        elif is_enabled():
            runs = pack(sizes, active_config().budget * _PART)
        else:
            runs = [range(k, k + 1) for k in range(len(sizes))]
        return [[self._layers[k] for k in run] for run in runs]

    def step(self, batch: Any) -> torch.Tensor:
        """Train by one batch.

        Returns
        -------
        torch.Tensor
            The mean loss of the microbatches of this process, without a gradient.

        Raises
        ------
        ConfigError
            If the batch cannot be cut.
        HarmonyError
            If the loss goes backward more than once.
        """
        batches = cut(batch, self._microbatches) if self._split is None else list(self._split(batch))
        if not batches:
            raise ConfigError("split= returned no microbatch")
        with as_one_iteration(self):
            return self._step(batches)

    def _step(self, batches: list[Any]) -> torch.Tensor:
        count = len(batches)
        losses: dict[int, torch.Tensor] = {}
        generators = Generators(count)
        self.seeds = generators.seeds
        weave = Weave(native.load(), generators)
        updates = Updates(self.optimizer, self._names, count, weave.current, self._replicas)
        packs = self.packs
        if self._replicas is not None:
            self._replicas.share_buffers()
        order = Order([] if self._ordered else self._layers, weave)
        stops = Stops(packs, weave)
        again = Again([layer for layers in packs[:-1] for layer in layers] if self._recompute else [])

        def run(index: int) -> None:
            value = self._loss(self.model, batches[index])
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                raise ConfigError(f"loss= must return a scalar tensor, and returned {_what(value)}")
            value = value / count
            losses[index] = value.detach()
            (value if self._scaler is None else self._scaler.scale(value)).backward()

        def between(rank: int) -> None:
            if self._update == "packs" and rank > len(packs):  # backward
                generators.enter(count)
                updates.update_complete()
                generators.leave(count)

        try:
            weave.run(run, count, 2 * len(packs), between)
        finally:
            again.remove()
            stops.remove()
            order.remove()
            updates.remove()
        generators.finish()
        if not self._ordered:
            self._order_by(order)
        self._update_all(updates)
        return _sum([losses[index] for index in range(count)])

    def _update_all(self, updates: Updates) -> None:
        if self._update == "packs":
            updates.update_rest()
            return
        updates.rest()
        if self._scaler is not None and self._clip_norm is not None:
            self._scaler.unscale_(self.optimizer)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        if self._scaler is not None:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def _order_by(self, order: Order) -> None:
        """From now on layers are those that ran once, in the order in which they did."""
        found, self._layers, self._ordered = len(self._layers), order.once(), True
        if found and not self._layers:
            log.warning("Harmony: every layer ran more than once, so none can take turns; layers= names others")
        packs = self.packs
        log.info(
            "Harmony: %d layers in %d packs of at most %s of weights, gradients and states",
            len(self._layers),
            len(packs),
            format_bytes(max((sum(map(self._bytes, layers)) for layers in packs), default=0)),
        )

    def _bytes(self, layer: nn.Module) -> int:
        """Weights, gradients and optimizer states of a layer."""
        total = 0
        for parameter in layer.parameters():
            states = self.optimizer.state.get(parameter)
            copies = _COPIES if parameter.requires_grad else 1
            if states:
                tensors = [s for s in states.values() if isinstance(s, torch.Tensor)]
                total += sum(s.numel() * s.element_size() for s in tensors)
                copies = 2
            total += parameter.numel() * parameter.element_size() * copies
        return total


def _when(update: Update, optimizer: Any, clip_norm: float | None, scaler: Any) -> Update:
    if update not in get_args(Update):
        raise ConfigError(f"update={update!r} is unknown; choose one of {', '.join(get_args(Update))}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates the loss several times in a step: train with its own closure instead")
    reason = looks_at_all(optimizer)
    if clip_norm is not None:
        reason = "clip_norm needs the norm of all gradients"
    if scaler is not None:
        reason = "the scaler looks for infinities in all gradients"
    if update == "packs" and reason:
        raise ConfigError(f"update='packs' cannot be: {reason}; pass update='together'")
    if update == "auto":
        if reason:
            log.info("Harmony updates all packs together: %s", reason)
        return "together" if reason else "packs"
    return update


def _sum(losses: list[torch.Tensor]) -> torch.Tensor:
    total = losses[0].clone()
    for value in losses[1:]:
        total += value
    return total


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
