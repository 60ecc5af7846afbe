"""The one session of a process: how it begins, takes another budget, and ends.

Covers: what an exception between any two lines of these means.
Leaves: what a user says (``enabling``), checking arguments (``settings``), the work (``kernels/``), what happened
(``reports``).

Ctrl-C raises an exception between any two lines. `_begun` is set before anything of a session starts, and forgotten
only after all of it ended, by steps that may run twice, and where their start never came. So the next :func:`end` or
:func:`ask` ends what an interrupted one left; a change of budget that was interrupted is made again by the next.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch

import lgm

from .. import native
from ..devices.math_library import settle
from ..devices.port import port_of
from ..errors import ConfigError, NotEnabledError
from ..hooks.backwards import watch_backwards
from ..hooks.collectives import watch_collectives
from ..hooks.compiled import watch_compiled
from ..hooks.doors import open_doors
from ..hooks.foreach import cut_foreach
from ..hooks.kernels import watch_kernels
from ..hooks.passes import tell_of_passes
from ..hooks.patches import restore
from ..hooks.signals import keep_handler_on_top
from ..hooks.storages import watch_storages
from ..logs import log
from ..native.core import Core
from ..planning.current_planner import current, session_ends, start_planner, stop_planner
from ..planning.plans import config_and_plan
from ..settings.config import Config, asked_again
from ..settings.environment import is_set, is_verifying
from ..settings.options import Options
from ..settings.sizes import format_bytes
from . import watchdog
from .adoption import say_what_is_older
from .reserve import keep_free
from .shelves import keep_shelves

__all__ = [
    "Block",
    "active_config",
    "active_core",
    "ask",
    "end",
    "enter",
    "is_enabled",
    "is_kept_off",
    "leave",
    "resize",
]

_lock = threading.RLock()
_begun: Config | None = None  # the session that is there in whole or in part, as it is to be
_active: Config | None = None  # the same as it is: None while it starts, and from the moment it begins to end
_process = 0  # in which it began
_blocks: WeakSet[Block] = WeakSet()
_numbers = itertools.count()


def _renew_lock() -> None:
    """Whoever holds it is not in a forked child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def is_enabled() -> bool:
    """Whether large tensors made now, on the session's device, are managed; not in a child that was forked since."""
    return _active is not None and os.getpid() == _process


def is_kept_off() -> bool:
    """Whether it is not enabled because ``VTENSOR_DISABLE`` says so: programs run on as if it were not there."""
    return _active is None and is_set("VTENSOR_DISABLE")


def active_config() -> Config:
    """The configuration in force.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    """
    if _active is None:
        raise NotEnabledError
    return _active


def active_core() -> Core:
    """The native core, for callers that need an enabled session."""
    active_config()
    return native.load()


def ask(budget: int | float | str | None, asked: dict[str, Any], plan: str | os.PathLike[str] | None) -> None:
    """Begin a session of these arguments of :func:`vtensor.enable`; the one that is there takes another budget."""
    with _lock:
        if _active is None:
            _end()  # what an interrupted call left
            _begin(*config_and_plan(budget, Options(**asked), plan))
        elif plan is not None:
            raise ConfigError("vtensor is enabled already; a plan= is taken at the first enable() only")
        else:
            _change_budget(_active, asked_again(_active, budget, asked).budget)


def end() -> None:
    """End the session, if there is one; raises as :func:`vtensor.disable`."""
    with _lock:
        if _begun is None:
            return
        if is_enabled():
            session_ends()
        _end()
    log.info("disabled")


class Block:
    """A ``with`` block that somebody is in; gone with its frame, whatever ended that."""

    outer: Config | None = None
    """Of the session around it; None: it ends the session."""
    number = 0


def enter(block: Block, begin: Callable[[], None]) -> None:
    """`begin` asks for what the block wants."""
    with _lock:
        block.outer, block.number = _active, next(_numbers)  # also that of a process that forked this one
        _blocks.add(block)
        begin()


def leave(block: Block, back: Callable[[int], None], end: Callable[[], None]) -> None:
    """`back` asks for the budget around it, or `end` is called; if others are within it still, the oldest does it."""
    with _lock:
        if block not in _blocks:  # interrupted before it was entered: it changed nothing
            return
        _blocks.discard(block)
        within = [each for each in _blocks if each.number > block.number or block.outer is None]
        if within:  # of other threads
            min(within, key=lambda each: each.number).outer = block.outer
        elif block.outer is None:
            end()
        elif is_enabled():
            back(block.outer.budget)


def resize(budget: int) -> None:
    """Another budget takes effect at once, as by :func:`ask`; pre: enabled."""
    with _lock:
        active = active_config()
        _change_budget(active, max(budget // active.chunk, 1) * active.chunk)


def _begin(config: Config, plan: lgm.Plan | None) -> None:
    global _begun, _active, _process
    core = native.load()
    if core.in_forked_child():
        raise ConfigError(
            "this process was forked from one in which vtensor was enabled, and tensors made here are not managed: "
            "start it by 'spawn' (multiprocessing.set_start_method), or fork before the first enable()"
        )
    _process = os.getpid()
    config = port_of(config.device).fit(core, config)
    _begun = config
    try:
        _start(config)
        _watch(config, plan)
    except BaseException:
        _end()
        raise
    _active = config
    say_what_is_older(config)
    if log.isEnabledFor(logging.DEBUG):
        watchdog.start(core)  # for good: tensors outlive the session, and so does what can stand
    log.info(
        "enabled: budget %s in chunks of %s, host store %s in %s, %s by %s", format_bytes(config.budget),
        format_bytes(config.chunk), format_bytes(config.host), config.spill_dir or "RAM", config.policy,
        config.granularity,
    )  # fmt: skip


def _start(config: Config) -> None:
    settle()
    port_of(config.device).start(native.load(), config)


def _watch(config: Config, plan: lgm.Plan | None) -> None:
    """Put what the core has to be told of around torch's functions."""
    core = native.load()
    open_doors(core, config.device)
    watch_backwards(core)
    keep_handler_on_top(core)
    watch_collectives(core)
    watch_storages(core, config.device)
    watch_compiled(core)
    watch_kernels(core)
    cut_foreach(core, _bytes_of_one_call)
    if config.recompute != "never":
        core.see("all" if config.sees_all else "planned", is_verifying())
    tell_of_passes(start_planner(config, plan).pass_ends)
    keep_free(core, config, resize)
    keep_shelves(core, plan)


def _bytes_of_one_call() -> int:
    """Half the budget: the other half is for what the loop around multi-tensor operations keeps in use."""
    config = _begun  # another thread may end the session meanwhile
    return 0 if config is None else config.budget // 2


def _end() -> None:
    """End what there is of a session. On a GPU without room for what is absent it raises, and changes nothing."""
    global _begun, _active
    if _begun is None:
        return
    active, _active = _active, None
    try:
        port_of(_begun.device).stop(native.load())
    except torch.OutOfMemoryError:
        _active = active
        raise
    stop_planner()
    restore()
    _begun = None


def _change_budget(active: Config, budget: int) -> None:
    """Interrupted, it leaves `_begun` and `_active` different, and is made again by the next call."""
    global _begun, _active
    if os.getpid() != _process:
        log.warning(
            "this process was forked while vtensor was enabled: tensors made here are not managed; 'spawn' it instead"
        )
        return
    if budget == active.budget and _begun is active:
        return
    asked, before = replace(active, budget=budget), _begun
    core = native.load()
    _begun = asked
    try:
        core.resize(asked.budget_chunks)
    except core.OutOfMemory as error:
        _begun = before
        raise torch.OutOfMemoryError(str(error)) from None
    port_of(asked.device).resize(core, asked)
    current().change_budget(asked)
    _active = asked
    log.info("budget changed from %s to %s", format_bytes(active.budget), format_bytes(asked.budget))
