"""What a user says: turning vtensor on and off.

Covers: what ``enable`` twice, ``disable`` with live tensors, nested contexts, and ``vtensor fit`` around a script that
says them itself mean.
Leaves: how a session begins and ends (``lifecycle``), checking arguments (``settings``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ..logs import log, set_log_level
from ..settings.environment import is_set
from ..settings.options import Device, Granularity, Oversize, Policy, Recompute
from . import lifecycle

__all__ = ["disable", "enable", "enabled", "keeping_the_session"]

_is_kept = False  # 'vtensor fit' runs a script: its own words about budgets are not what is asked


def enable(
    budget: int | float | str | None = None,
    *,
    device: Device | None = None,
    chunk: int | str | None = None,
    min_size: int | str | None = None,
    host: int | str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
    granularity: Granularity | None = None,
    oversize: Oversize | None = None,
    link: float | str | None = None,
    recompute: Recompute | None = None,
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
        chosen none yet, the one of its rank. Default: ``"auto"``, the GPU where torch sees one, else the CPU.
    chunk
        Bytes of one vTensor, the unit in which tensors move; a power of two. Default: ``"2MiB"`` on the CPU, more
        where a budget would be more chunks than Linux has mappings for (from 64 GiB on, as it is usually set);
        on a GPU, where mapping one costs more, a thousandth of the budget: ``"2MiB"`` to ``"16MiB"``.
    min_size
        The smallest allocation that is managed, at most the budget. Default: half a chunk. Smaller ones are torch's,
        and are counted (``unmanaged_bytes`` in :func:`vtensor.memory_stats`).
    host
        Bytes the host store may take. Default: four fifths of RAM, or a quarter to a third of the addresses that are
        left where they are limited (``ulimit -v``) and that is less; what is free in `spill_dir`; where no `budget` is
        given and there is no disk, what that leaves.
    spill_dir
        A directory: absent vTensors live in a file there instead of in RAM, so that a model larger than RAM trains.
    policy
        ``"plan"``, the default: two iterations are recorded, a plan is made in the background, and later iterations
        follow it, with copies hidden behind computing where copies have lanes of their own. Until then, and whenever an
        iteration differs, the longest unused leave.
        ``"lru"``: they always do. ``"size_staleness"``: always the largest bytes x staleness (the filter of DELTA,
        arXiv 2203.15980). ``"delta"``: the same, and each is copied or dropped by what either takes as measured; what
        was found away when an iteration came the second time is brought back in time from then on.
    granularity
        ``"chunk"``, the default: exactly as many vTensors of a victim leave as are needed. ``"tensor"``: the whole
        victim, the baseline of the vTensor paper.
    oversize
        What happens when one operation needs more than the budget. ``"borrow"``, the default: what does not fit is used
        in place in the host store, slowly; a GPU that cannot do that gets more than the budget for as long as the
        operation runs (``overdrawn_bytes`` in :func:`vtensor.memory_stats`). ``"raise"``: allocations raise instead.
    link
        Limits the copies of each direction to so many bytes a second (``"6GB/s"``), to emulate a slow bus.
    recompute
        ``"auto"``, the default: plans may drop what is cheaper to make again than to copy: the operations that made it
        run once more, bit for bit, when it is needed. ``"never"``: all that leaves is copied. ``"only"``: nothing is
        copied, for devices whose memory is the host's, and for training in less RAM with no disk: what cannot be made
        again stays, above the budget if need be.
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
    Enabled already: the same settings do nothing, another `budget` takes effect at once (arguments left out keep what
    is in force), anything else raises, and so does a `plan`. ``VTENSOR_DISABLE=1`` makes this call do nothing.

    Examples
    --------
    >>> import vtensor
    >>> vtensor.enable(budget="1GiB")
    >>> vtensor.is_enabled()
    True
    >>> vtensor.disable()
    """
    if is_set("VTENSOR_DISABLE"):
        log.warning("VTENSOR_DISABLE is set: vtensor.enable() does nothing")
        return
    if _is_kept:
        log.warning("'vtensor fit' runs the script without a budget: its vtensor.enable() does nothing")
        return
    set_log_level()
    asked = {
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
    lifecycle.ask(budget, {name: value for name, value in asked.items() if value is not None}, plan)


def disable() -> None:
    """Stop managing. Live tensors stay valid and keep their data; new ones are torch's again. Idempotent.

    Raises
    ------
    torch.OutOfMemoryError
        On a GPU, if it has no room for live tensors that wait in the host store; then vtensor stays enabled.
    """
    if not _is_kept:
        lifecycle.end()


@contextlib.contextmanager
def enabled(budget: int | float | str | None = None, **options: Any) -> Iterator[None]:
    """:func:`enable` for the length of a ``with`` block.

    Nested in an enabled session it changes the budget for the block and puts the old one back after it. Of blocks of
    several threads, the last to leave ends the session that the first began.

    Parameters
    ----------
    budget, options
        As those of :func:`enable`.

    Raises
    ------
    ConfigError, UnsupportedDeviceError, BuildError, torch.OutOfMemoryError
        As :func:`enable`; out of memory also when the block ends, if the old budget cannot be reached.
    """
    block = lifecycle.Block()
    try:
        lifecycle.enter(block, lambda: enable(budget, **options))
        yield
    finally:
        lifecycle.leave(block, back=enable, end=disable)


@contextlib.contextmanager
def keeping_the_session() -> Iterator[None]:
    """:func:`enable` and :func:`disable` do nothing within it."""
    global _is_kept
    _is_kept = True
    try:
        yield
    finally:
        _is_kept = False
