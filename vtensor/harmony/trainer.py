"""What users call: a training step in Harmony's order.

Covers: the arguments, in which process a step is made, clipping and scaling.
Leaves: one step (``step``), everything else to the rooms named in the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError
from ..logs import log
from ..planning.current_planner import as_one_iteration
from .arguments import check
from .hosting.hosted import Hosted, Where, where_to_update
from .layers import find_layers, layers_named
from .leftovers import Leftovers
from .microbatches import cut, total
from .packing import Packing
from .pipeline import End, Pipeline, Worker
from .processes.replicas import Replicas
from .rehearsal import rehearse
from .step import Means, Step
from .turns.again import Again
from .updates import Update, Updates, when_to_update

__all__ = ["Harmony"]


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
        Names of the modules that take turns, as of ``model.named_modules()``; default: found. What runs more than once
        in the first microbatch takes none, nor what runs before something that changes its buffers runs again.
    recompute
        True: a layer keeps its input only, and runs again in backward (as by ``torch.utils.checkpoint``; layers must do
        the same when run twice, so pass ``use_cache=False`` to transformers' models). False: what is kept, copied or
        recomputed is the engine's business (``enable(recompute=...)``).
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
    pipeline
        True, or a process group: packs are wrapped around its processes. All of them make the same model and optimizer
        and call :meth:`step`; the loss is computed in the first, whose batch it is. Each updates the layers it has:
        :meth:`gather` brings all of them to all, to be saved or evaluated. Layers must be picklable in what they are
        given and return, tensors apart, and must not write into it. A gradient that several layers and processes add
        to, or with layers left out at random, may differ in the last bit.
    optimizer_on
        Where updates are computed. ``"host"``: weights and states lie in the host's memory and are updated by its
        processor; the device only reads weights. With `data_parallel` the processes of one machine share one copy of
        the weights, and each has the states of a part: :meth:`gather` brings them to all. A GPU's arithmetic gives
        other last bits. ``"device"``: where the model is. ``"auto"``: on the host only where that changes no bit and no
        state is elsewhere.
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
        pipeline: Any = False,
        optimizer_on: Where = "auto",
        split: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        check(
            model,
            microbatches=microbatches,
            packs=packs,
            recompute=recompute,
            scaler=scaler,
            data_parallel=data_parallel,
            pipeline=pipeline,
        )
        self.model, self.optimizer = model, optimizer
        self._loss, self._microbatches, self._recompute = loss, microbatches, recompute
        self._clip_norm, self._scaler, self._split = clip_norm, scaler, split
        self._update = when_to_update(update, optimizer, clip_norm, scaler, spread=bool(pipeline))
        found = find_layers(model) if layers is None else layers_named(model, layers)
        self._pipeline = Pipeline(model, found, pipeline) if pipeline else None
        self._replicas = Replicas(model, data_parallel) if data_parallel else None
        on_host = where_to_update(optimizer_on, model.parameters(), shared=bool(data_parallel)) == "host"
        self._hosted = Hosted(optimizer, data_parallel) if on_host else None
        processes = 1 if self._pipeline is None else self._pipeline.size
        self._packing = Packing(found, optimizer, packs, processes, states=not on_host)
        self._means = Means(
            model=model,
            loss=loss,
            packing=self._packing,
            recompute=recompute,
            scaler=scaler,
            by_packs=self._update == "packs",
            replicas=self._replicas,
            pipeline=self._pipeline,
        )
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._leftovers = Leftovers(model, optimizer)
        self.seeds: list[int] = []
        """Microbatch k > 0 of the last step began as after ``torch.manual_seed(seeds[k - 1])``."""
        if not found:
            log.warning("Harmony found no layers in %s, so none takes turns; layers= names them", type(model).__name__)

    @property
    def packs(self) -> list[list[nn.Module]]:
        """The layers of each pack, as the next step takes them."""
        return self._packing.packs()

    def step(self, batch: Any) -> torch.Tensor:
        """Train by one batch.

        Returns
        -------
        torch.Tensor
            The mean loss of the microbatches, without a gradient; of those of this process, if `data_parallel`.

        Raises
        ------
        ConfigError
            If the batch cannot be cut.
        HarmonyError
            If the loss goes backward more than once, or for what could not be as in the ordinary loop.
        """
        if self._hosted is not None:
            self._hosted.check()
        with self._leftovers:
            if self._pipeline is None:
                return self._train(batch)
            self._pipeline.check()
            if not self._pipeline.first:
                with as_one_iteration(self):
                    return self._serve(self._pipeline)
            try:
                return self._train(batch)
            except BaseException as error:
                self._pipeline.fail(error)
                raise

    def gather(self) -> None:
        """Bring all weights, buffers and optimizer states to all processes, where each has a part; all must call it."""
        if self._hosted is not None:
            self._hosted.gather()
        if self._pipeline is not None:
            self._pipeline.gather(self.optimizer)

    def _train(self, batch: Any) -> torch.Tensor:
        batches = cut(batch, self._microbatches) if self._split is None else list(self._split(batch))
        if not batches:
            raise ConfigError("split= returned no microbatch")
        if self._pipeline is not None and not self._pipeline.placed:
            rehearse(self._pipeline, self._packing, self.model, lambda: self._loss(self.model, batches[0]))
        with as_one_iteration(self):
            return self._step(batches)

    def _serve(self, pipeline: Pipeline) -> torch.Tensor:
        """What another process than the first does in a step of a pipeline."""

        def step(count: int, worker: Worker) -> End:
            updates = Updates(self.optimizer, self._names, count, worker.current, hosted=self._hosted, ordered=False)
            again = Again(list(filter(pipeline.here, self._packing.layers)) if self._recompute else [])
            try:
                end = worker.serve(updates.update_complete if self._update == "packs" else lambda: None)
            finally:
                again.remove()
                updates.remove()
            self._update_all(updates)
            return end

        return pipeline.serve(step)

    def _step(self, batches: list[Any]) -> torch.Tensor:
        def updates(current: Callable[[], int | None]) -> Updates:
            replicas, hosted, ordered = self._replicas, self._hosted, self._pipeline is None
            return Updates(
                self.optimizer, self._names, len(batches), current, replicas=replicas, hosted=hosted, ordered=ordered
            )

        step = Step(self._means, batches, updates)
        self.seeds = step.seeds
        loss = total(step.run())
        if self._pipeline is not None:
            self._pipeline.end(loss)
        self._update_all(step.updates)
        return loss

    def _update_all(self, updates: Updates) -> None:
        if self._update == "packs":
            updates.update_rest()
            return
        updates.rest()
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        if self._clip_norm is not None:
            clip = nn.utils.clip_grad_norm_ if self._pipeline is None else self._pipeline.clip
            clip(self.model.parameters(), self._clip_norm)
        with updates.where():
            if self._scaler is not None:
                self._scaler.step(self.optimizer)
            else:
                self.optimizer.step()
        if self._scaler is not None:
            self._scaler.update()
        self.optimizer.zero_grad()
