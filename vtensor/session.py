"""Turning vtensor on and off: the one process-wide session.

Covers: what ``enable`` twice, ``disable`` with live tensors, nested contexts, and an exception between any two lines of
these mean.
Leaves: checking arguments (``config``), the work (``kernels/``), figures (``stats``).

Ctrl-C raises an exception between any two lines. `_begun` is set before anything of a session starts, and forgotten
only after all of it ended, by steps that may run twice, and where their start never came. So the next :func:`disable`
or :func:`enable` ends what an interrupted one left; a change of budget that was interrupted is made again by the next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

import torch

import lgm

from . import native, watchdog
from .adoption import say_what_is_older
from .config import Config, Granularity, Oversize, Policy, Recompute, asked_again, format_bytes
from .cpu import start_cpu, stop_cpu
from .doors import open_doors
from .errors import ConfigError, NotEnabledError
from .foreach import cut_foreach
from .gpu import fit_gpu, resize_gpu, start_gpu, stop_gpu
from .logs import log, set_log_level
from .math_library import settle
from .patches import restore
from .planning import change_budget, start_planner, stop_planner
from .plans import settings
from .reserve import keep_free
from .shelves import keep_shelves

__all__ = [
    "Device",
    "active_config",
    "core",
    "disable",
    "enable",
    "enabled",
    "end",
    "is_enabled",
    "rehearse",
    "resize",
]

Device = Literal["auto", "cpu", "cuda"]

_lock = threading.RLock()
_begun: Config | None = None  # the session that is there in whole or in part, as it is to be
_looked = False  # for tensors that are older: once in a process, as it looks through all there is
_active: Config | None = None  # the same as it is: None while it starts, and from the moment it begins to end
_process = 0  # in which it began
_rehearsing = False  # 'vtensor fit' runs a script: its own words about budgets are not what is asked


def is_enabled() -> bool:
    """Whether large tensors made now, on the session's device, are managed."""
    return _active is not None


def active_config() -> Config:
    """The configuration in force.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    """
    if _active is None:
        raise NotEnabledError("vtensor is not enabled; call vtensor.enable(budget=...) first")
    return _active


def core() -> ModuleType:
    """The native core, for callers that need an enabled session."""
    active_config()
    return native.load()


def enable(
    budget: int | float | str | None = None,
    *,
    device: Device = "auto",
    chunk: int | str | None = None,
    min_size: int | str | None = None,
    host: int | str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    policy: Policy = "plan",
    granularity: Granularity = "chunk",
    oversize: Oversize = "borrow",
    link: float | str | None = None,
    recompute: Recompute = "auto",
    plan: str | os.PathLike[str] | None = None,
) -> None:
    """Train in `budget` bytes: what does not fit waits in host memory, and is back before it is read.

    From now on every tensor of at least `min_size` lives in memory that vtensor manages. Tensors made before stay as
    they are. Results do not change by a single bit.

    Parameters
    ----------
    budget
        Bytes of device memory, a text such as ``"4GiB"``, or a fraction of the device such as ``0.5``.
        Default: the environment variable ``VTENSOR_BUDGET``; without it what is free less a reserve of a tenth, or of
        512 MiB where that is more, and on the CPU a `spill_dir` for temporary files, where one is on a disk. Such a
        budget is lowered where what is not managed grows into the reserve.
    device
        ``"cpu"``: torch's CPU tensors. ``"cuda"``: those of the current CUDA device; in a process of torchrun that has
        chosen none yet, the one of its rank. ``"auto"``: the GPU where torch sees one, else the CPU.
    chunk
        Bytes of one vTensor, the unit in which tensors move; a power of two. Default: ``"2MiB"`` on the CPU;
        on a GPU, where mapping one costs more, a thousandth of the budget: ``"2MiB"`` to ``"16MiB"``.
    min_size
        The smallest allocation that is managed. Default: half a chunk. Smaller ones are torch's, and are counted
        (``unmanaged_bytes`` in :func:`vtensor.memory_stats`).
    host
        Bytes the host store may take. Default: four fifths of RAM, or what is free in `spill_dir`.
    spill_dir
        A directory: absent vTensors live in a file there instead of in RAM, so that a model larger than RAM trains.
    policy
        ``"plan"``: two iterations are recorded, a plan is made in the background, and later iterations follow it, with
        copies hidden behind computing where copies have lanes of their own. Until then, and whenever an iteration
        differs, the longest unused leave.
        ``"lru"``: they always do. ``"size_staleness"``: always the largest bytes x staleness (the filter of DELTA,
        arXiv 2203.15980). ``"delta"``: the same, and each is copied or dropped by what either takes as measured;
        what was found away when an iteration came the second time is brought back in time from then on.
    granularity
        ``"chunk"``: exactly as many vTensors of a victim leave as are needed. ``"tensor"``: the whole victim, the
        baseline of the vTensor paper.
    oversize
        What happens when one operation needs more than the budget. ``"borrow"``: it uses what does not fit in place
        in the host store, slowly. ``"raise"``: allocations raise instead.
    link
        Limits the copies of each direction to so many bytes a second (``"6GB/s"``), to emulate a slow bus.
    recompute
        ``"auto"``: plans may drop what is cheaper to make again than to copy: the operations that made it run once
        more, bit for bit, when it is needed. ``"never"``: all that leaves is copied. ``"only"``: nothing is copied,
        for devices whose memory is the host's, and for training in less RAM with no disk: what cannot be made again
        stays, above the budget if need be.
        With ``VTENSOR_VERIFY=replay`` nothing is dropped; what would be is made again and compared.
    plan
        A plan made by ``lgm analyze``, followed from the first iteration that fits it; chunks are as large as it says.

    Raises
    ------
    ConfigError
        For an argument that cannot work, and when vtensor is enabled already with other settings.
    UnsupportedDeviceError
        For a device that is not there or that this version cannot manage.
    BuildError
        If the native core cannot be compiled (first use only).
    torch.OutOfMemoryError
        If a smaller budget than before cannot be reached now.

    Notes
    -----
    Enabled already: the same settings do nothing, another `budget` takes effect at once (arguments left at their
    defaults keep what is in force), anything else raises. ``VTENSOR_DISABLE=1`` makes this call do nothing.

    Examples
    --------
    >>> import vtensor
    >>> vtensor.enable(budget="1GiB")
    >>> vtensor.is_enabled()
    True
    >>> vtensor.disable()
    """
    if os.environ.get("VTENSOR_DISABLE", "").lower() in ("1", "true", "yes"):
        log.warning("VTENSOR_DISABLE is set: vtensor.enable() does nothing")
        return
    if _rehearsing:
        log.warning("'vtensor fit' runs the script without a budget: its vtensor.enable() does nothing")
        return
    set_log_level()
    given: dict[str, Any] = {
        "device": device,
        "chunk": chunk,
        "min_size": min_size,
        "host": host,
        "spill_dir": spill_dir,
        "policy": policy,
        "granularity": granularity,
        "oversize": oversize,
        "link": link,
        "recompute": recompute,
    }
    with _lock:
        if _active is None:
            _end()  # what an interrupted call left
            _begin(*settings(budget, given, plan))
        elif plan is not None:
            raise ConfigError("vtensor is enabled already; a plan= is taken at the first enable() only")
        else:
            _change_budget(_active, asked_again(_active, budget, given).budget)


def disable() -> None:
    """Stop managing. Live tensors stay valid and keep their data; new ones are torch's again. Idempotent.

    Raises
    ------
    torch.OutOfMemoryError
        On a GPU, if it has no room for live tensors that wait in the host store; then vtensor stays enabled.
    """
    if not _rehearsing:
        end()


def end() -> None:
    """:func:`disable`, whoever runs the script."""
    global _rehearsing
    _rehearsing = False
    with _lock:
        if _begun is None:
            return
        _end()
    log.info("disabled")


def rehearse() -> None:
    """From now on :func:`enable` and :func:`disable` do nothing, until :func:`end`."""
    global _rehearsing
    _rehearsing = True


def resize(budget: int) -> None:
    """Another budget takes effect at once, as by :func:`enable`; pre: enabled."""
    with _lock:
        active = active_config()
        _change_budget(active, max(budget // active.chunk, 1) * active.chunk)


@contextlib.contextmanager
def enabled(budget: int | float | str | None = None, **options: Any) -> Iterator[None]:
    """:func:`enable` for the length of a ``with`` block.

    Nested in an enabled session it changes the budget for the block and puts the old one back after it.
    """
    outer = _active
    try:
        enable(budget, **options)
        yield
    finally:
        if outer is None:
            disable()
        elif _active is not None:
            enable(outer.budget)


def _begin(config: Config, plan: lgm.Plan | None) -> None:
    global _begun, _active, _looked, _process
    module = native.load()
    _process = os.getpid()
    if config.device == "cuda":
        config = fit_gpu(module, config)
    _begun = config
    try:
        _start(config)
        _watch(config, plan)
    except BaseException:
        _end()
        raise
    _active = config
    if not _looked:
        _looked = True
        say_what_is_older(config)
    if log.isEnabledFor(logging.DEBUG):
        watchdog.start(module)  # for good: tensors outlive the session, and so does what can stand
    log.info(
        "enabled: budget %s in chunks of %s, host store %s in %s, %s by %s", format_bytes(config.budget),
        format_bytes(config.chunk), format_bytes(config.host), config.spill_dir or "RAM", config.policy,
        config.granularity,
    )  # fmt: skip


def _start(config: Config) -> None:
    module = native.load()
    settle()
    if config.device == "cuda":
        start_gpu(module, config)
    else:
        start_cpu(module, config)


def _watch(config: Config, plan: lgm.Plan | None) -> None:
    """Put what the core has to be told of around torch's functions."""
    module = native.load()
    open_doors(module, config.device)
    cut_foreach(module, _bytes_of_one_call)
    if config.recompute != "never":
        verify = os.environ.get("VTENSOR_VERIFY") == "replay"
        everything = verify or config.leaving != "copy"  # what no plan names may be dropped, too
        module.see("all" if everything else "planned", verify)
    start_planner(config, plan)
    keep_free(module, config, resize)
    keep_shelves(module, plan)


def _bytes_of_one_call() -> int:
    """Half the budget: the other half is for what the loop around multi-tensor operations keeps in use."""
    config = _begun  # another thread may end the session meanwhile
    return 0 if config is None else config.budget // 2


def _end() -> None:
    """End what there is of a session. On a GPU without room for what is absent it raises, and changes nothing."""
    global _begun, _active
    if _begun is None:
        return
    module = native.load()
    active, _active = _active, None
    if _begun.device == "cuda":
        try:
            stop_gpu(module)
        except torch.OutOfMemoryError:
            _active = active
            raise
    stop_planner()
    restore()
    if _begun.device == "cpu":
        stop_cpu(module)
    _begun = None


def _change_budget(active: Config, budget: int) -> None:
    """Interrupted, it leaves `_begun` and `_active` different, and is made again by the next call."""
    global _begun, _active
    if os.getpid() != _process:
        log.warning(
            "this process was forked while vtensor was enabled: memory made here is torch's; 'spawn' it instead"
        )
        return
    if budget == active.budget and _begun is active:
        return
    asked, before = replace(active, budget=budget), _begun
    module = native.load()
    _begun = asked
    try:
        module.resize(asked.budget_chunks)
    except module.OutOfMemory as error:
        _begun = before
        raise torch.OutOfMemoryError(str(error)) from None
    if asked.device == "cuda":
        resize_gpu(module, asked)
    change_budget(asked)
    _active = asked
    log.info("budget changed from %s to %s", format_bytes(active.budget), format_bytes(asked.budget))
