"""Updates computed in the host's memory, where optimizer states wait anyway.

Weights and states lie there; the optimizer of the user runs on them with the host's processor, and the device's weights
have what lies there for their content (``kernels/engine/lending.h``): they are read when they are needed, and never
copied out. What crosses the link is gradients once and weights as often as they are read; states never. Several
processes of one machine share one copy of the weights, and each updates a part of them.

Covers: what is updated there, around the optimizer's step; states that were loaded; weights that were written since.
Leaves: that memory (``host_memory``, ``neighbours``), when a pack is updated (``updates``).

Source: Harmony (arXiv 2202.01306) reads weights from one copy in shared host memory; updating there is from
ZeRO-Offload (Ren et al., USENIX ATC 2021).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

import torch

from ... import native
from ...addresses import address_of, storage_of
from ...errors import ConfigError, HarmonyError
from ...logs import log
from ...session.lifecycle import active_config, is_enabled
from ...settings.sizes import format_bytes
from ..packs import COPIES
from ..processes.whole import share_state
from .host_memory import HostMemory
from .neighbours import Neighbours

__all__ = ["Hosted", "Where", "where_to_update"]

Where = Literal["auto", "device", "host"]


class Hosted:
    """What of an optimizer is updated in the host's memory.

    Parameters
    ----------
    optimizer
        Its dense parameters that are managed, each in a storage of its own; others are updated where they are.
    group
        Of processes that have the same weights, each to call the same: a process group, or True for all; False for
        this process alone.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: Any = False) -> None:
        self._optimizer = optimizer
        everything = [p for parameters in optimizer.param_groups for p in parameters["params"]]
        possible = [_possible(p) for p in everything]
        self._neighbours = Neighbours(group) if group else None
        if self._neighbours is not None:
            possible = self._neighbours.agree(possible)
        parameters = [p for p, can in zip(everything, possible, strict=True) if can]
        pinned = any(p.device.type == "cuda" for p in parameters)
        memory = self._neighbours.memory(parameters, pinned=pinned) if self._neighbours else None
        if memory is None:
            self._neighbours = None
            memory = HostMemory(parameters, pinned=pinned)
        self._memory = memory
        self._homes = dict(zip(parameters, memory.places, strict=True))
        size, rank = (self._neighbours.mail.size, self._neighbours.mail.rank) if self._neighbours else (1, 0)
        self._owners = {p: index % size for index, p in enumerate(parameters)}
        self._mine = {p for p, owner in self._owners.items() if owner == rank}
        log.info(
            "Harmony updates %s of weights in the host's memory%s",
            format_bytes(sum(p.nbytes for p in parameters)),
            f", one copy for {size} processes" if size > 1 else "",
        )

    def check(self) -> None:
        """Before a step.

        Raises
        ------
        HarmonyError
            If a parameter is not what it was, as after ``model.double()``: it has no room in the host's memory.
        """
        for p, home in self._homes.items():
            if p.dtype != home.dtype or p.shape != home.shape:
                raise HarmonyError(
                    f"a parameter of {tuple(home.shape)} and {home.dtype} has become one of {tuple(p.shape)} and "
                    f"{p.dtype} since the trainer was made, which updates it in the host's memory: make another "
                    "trainer, or pass optimizer_on='device'"
                )

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Around a step of the optimizer: what has a gradient is in the host's memory, if it can be.

        Raises
        ------
        HarmonyError
            If another process could not update its part.
        """
        kept = [(p, p.data, p.grad) for p in self._homes if p.grad is not None and p.grad.layout == torch.strided]
        moved: list[torch.Tensor] = []
        with _unmanaged():
            try:
                for p, _, gradient in kept:
                    p.grad = None
                    if p in self._mine:
                        self._move(p, gradient)
                        moved.append(p)
                    else:
                        self._optimizer.state.pop(p, None)  # loaded; its owner has it
                yield
            except BaseException:
                self._put_back(kept)
                for p in moved:  # as far as the optimizer came, and not a part of each
                    self._lend(p)
                self._all_came(so_far=False)  # the others wait for this one's part
                raise
            else:
                self._put_back(kept)
        complete = self._all_came(so_far=True)
        for p, _, _ in kept:
            self._lend(p)
        if not complete:
            raise HarmonyError("another process failed in its part of an update; what it printed says why")

    def _all_came(self, *, so_far: bool) -> bool:
        return self._neighbours is None or self._neighbours.agree([so_far])[0]

    @staticmethod
    def _put_back(kept: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
        for p, data, gradient in kept:
            p.grad = None
            p.data = data
            p.grad = gradient

    def gather(self) -> None:
        """All processes get the states of all. A collective: all must call it."""
        if self._neighbours is None:
            return
        with _unmanaged():
            for group in self._optimizer.param_groups:
                for p in group["params"]:
                    if p in self._owners:
                        share_state(self._neighbours.mail, self._optimizer, p, self._owners[p])
                    elif (state := self._optimizer.state.pop(p, None)) is not None:  # in the order of one process
                        self._optimizer.state[p] = state

    def _move(self, p: torch.Tensor, gradient: torch.Tensor) -> None:
        home, there = self._homes[p], torch.device("cpu")
        # Not the first time, when another one had them meanwhile, or when the program wrote it.
        if not _alike(p, home) or not native.load().lent(address_of(p), home.data_ptr(), home.nbytes):
            home.copy_(p.data)
        gradient = gradient.to(there)
        p.data = home
        p.grad = gradient
        for name, value in self._optimizer.state.get(p, {}).items():
            if isinstance(value, torch.Tensor) and (value.device != there or _is_managed(value)):
                self._optimizer.state[p][name] = value.to(there, copy=True)  # it was loaded

    def _lend(self, p: torch.Tensor) -> None:
        home = self._homes[p]
        torch.autograd.graph.increment_version(p)  # who kept it for a backward is told
        if not _alike(p, home) or not native.load().lend(address_of(p), home.data_ptr(), home.nbytes):
            p.data.copy_(home)  # it lies otherwise by now (channels_last), or somebody has its address


@contextlib.contextmanager
def _unmanaged() -> Iterator[None]:
    """What this thread makes in the host's memory counts to no budget."""
    core = native.load()
    core.manage("none")
    try:
        yield
    finally:
        core.manage("large")


def _alike(p: torch.Tensor, home: torch.Tensor) -> bool:
    """Whether the same bytes are the same values."""
    return p.stride() == home.stride() and p.storage_offset() == 0


def _is_managed(tensor: torch.Tensor) -> bool:
    return bool(native.load().manages(address_of(tensor)))


def _possible(p: torch.Tensor) -> bool:
    if not p.requires_grad or type(p.data) is not torch.Tensor or p.layout != torch.strided or not p.numel():
        return False
    alone = p.storage_offset() == 0 and storage_of(p).nbytes() == p.nbytes
    return alone and _is_dense(p) and _is_managed(p)


def _is_dense(p: torch.Tensor) -> bool:
    reach = 1
    for size, step in sorted(zip(p.shape, p.stride(), strict=True), key=lambda d: (d[1], d[0])):
        if size != 1:
            if step != reach:
                return False
            reach *= size
    return True


def where_to_update(asked: Where, parameters: Iterable[torch.Tensor], *, shared: bool = False) -> Where:
    """Where an optimizer's step is computed; "auto" decided.

    It never changes bits: the host's processor adds in another order than a GPU, so a GPU's updates go there only if
    they are asked to. Where the device is the host's processor itself, they do when weights, gradients and states do
    not fit the budget and wait in memory; not on a disk, which is there to save memory, or behind a link that is
    there to be measured; nor in several processes (`shared`), each of which would have a part of the states.

    Raises
    ------
    ConfigError
        If it cannot be as asked.
    """
    if asked not in get_args(Where):
        raise ConfigError(f"optimizer_on={asked!r} is unknown; choose one of {', '.join(get_args(Where))}")
    if not is_enabled():
        if asked == "host":
            raise ConfigError("optimizer_on='host' needs vtensor.enable() first: without it weights stay on the device")
        return "device"
    if asked != "auto":
        return asked
    config = active_config()
    matters = shared or config.device != "cpu" or config.spill_dir or config.link
    fits = COPIES * sum(p.nbytes for p in parameters if p.requires_grad) <= config.budget
    return "device" if matters or fits else "host"
