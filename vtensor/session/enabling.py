"""What a user says: turning vtensor on and off, and taking in tensors that are older.

Covers: what ``enable`` twice, ``disable`` with live tensors, nested contexts, and ``vtensor fit`` around a script that
says them itself mean.
Leaves: how a session begins and ends (``lifecycle``), moving older tensors (``adoption``), checking arguments
(``settings``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import NotEnabledError
from ..logs import log, set_log_level
from ..settings.environment import is_set
from ..settings.options import Device, Granularity, Oversize, Policy, Recompute
from ..settings.which_device import named
from . import lifecycle
from .adoption import Owner, move_in

__all__ = ["adopt", "disable", "enable", "enabled", "keeping_the_session"]

_is_kept = False  # 'vtensor fit' runs a script: its own words about budgets are not what is asked


def enable(
    budget: int | float | str | None = None,
    *,
    device: Device | torch.device | None = None,
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
    """Train in `budget` bytes: data that does not fit is evicted to host memory, and is back before it is read.

    From now on every tensor of at least `min_size` lives in memory that vtensor manages. Tensors made before stay as
    they are. Results do not change by a single bit.

    Parameters
    ----------
    budget
        Bytes of device memory, a text such as ``"4GiB"``, or a fraction of the device's memory such as ``0.5``.
        Default: the environment variable ``VTENSOR_BUDGET``. Without it, what is free minus a reserve of a tenth or of
        512 MiB, whichever is more; on the CPU also a `spill_dir` for temporary files, if there is one on a disk. Such a
        budget is lowered when unmanaged memory grows into the reserve.
    device
        ``"cpu"``: torch's CPU tensors. ``"cuda"``: those of the current CUDA device, or, in a process of torchrun that
        has chosen none yet, of the device of its rank. A ``torch.device`` says the same. Default: ``"auto"``, the GPU
        if torch sees one, else the CPU.
    chunk
        Bytes of one vTensor, the unit in which tensors are moved; a power of two. Default: ``"2MiB"`` on the CPU, or
        more if a budget would be more chunks than Linux has mappings for (usually from 64 GiB on); on a GPU, where
        mapping a chunk costs more, a thousandth of the budget: ``"2MiB"`` to ``"16MiB"``.
    min_size
        The smallest allocation that is managed, at most the budget. Default: half a chunk. Smaller ones are torch's,
        and are counted separately (``unmanaged_bytes`` in :func:`vtensor.memory_stats`).
    host
        Bytes that evicted data may take. Default: four fifths of RAM, or, if addresses are limited (``ulimit -v``), a
        quarter to a third of those that are left, if that is less; with a `spill_dir`, what is free in it; without a
        `budget` and a disk, what the budget leaves.
    spill_dir
        A directory: evicted data is kept in a file there instead of in RAM, so that a model larger than RAM trains.
    policy
        What is evicted. ``"plan"``, the default: two iterations are recorded, a plan is made in the background, and
        later iterations follow it, with copies hidden behind computing where other threads or the device can copy.
        Before that, and whenever an iteration differs, the least recently used data is evicted.
        ``"lru"``: always the least recently used. ``"size_staleness"``: always the largest bytes x time unused (the
        filter of DELTA, arXiv 2203.15980). ``"delta"``: the same, and each tensor is copied or dropped, whichever was
        measured to be faster; what was missing when an iteration came the second time is fetched in advance from then
        on.
    granularity
        ``"chunk"``, the default: exactly as many vTensors of a tensor are evicted as are needed. ``"tensor"``: the
        whole tensor, the baseline of the vTensor paper.
    oversize
        What happens when a single operation needs more than the budget. ``"borrow"``, the default: the part that does
        not fit is used directly in host memory, slowly; on a GPU that cannot do that, the operation exceeds the budget
        for as long as it runs (``overdrawn_bytes`` in :func:`vtensor.memory_stats`). ``"raise"``: allocations raise.
    link
        Limits the copies in each direction to so many bytes a second (``"6GB/s"``), to emulate a slow bus.
    recompute
        ``"auto"``, the default: plans may drop what is cheaper to recompute than to copy: the operations that made it
        run once more, bit for bit, when it is needed. ``"never"``: everything evicted is copied. ``"only"``: nothing is
        copied, for devices whose memory is the host's, and for training in less RAM without a disk; what cannot be
        recomputed stays, above the budget if necessary.
        With ``VTENSOR_VERIFY=replay`` nothing is dropped; what would be is recomputed and compared.
    plan
        A plan made by ``lgm analyze``, followed from the first iteration that matches it; it sets the size of chunks.

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
    If vtensor is enabled already, the same settings do nothing, another `budget` takes effect at once (arguments left
    out keep their values), and anything else raises, as does a `plan`. With ``VTENSOR_DISABLE=1`` nothing is done.

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
        "device": named(device),
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


def adopt(*what: Owner) -> int:
    """Move tensors that were made before :func:`vtensor.enable` into managed memory, so that they count and can leave.

    Not while another thread uses them.

    Parameters
    ----------
    what
        Modules (parameters, buffers and gradients), optimizers (parameters, gradients and states), tensors. Tensors
        that share memory share it afterwards; what shares it with others that are not given, or with NumPy, stays
        where it is, and a warning says so. As after ``model.to()``, an address that was taken before (``data_ptr()``,
        of a parameter DLPack) is nobody's any more.

    Returns
    -------
    int
        Bytes moved; none while ``VTENSOR_DISABLE=1`` keeps vtensor off. Tensors smaller than ``min_size``, elsewhere
        than on the session's device, or managed already stay as they are.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    ConfigError
        For anything else than a module, an optimizer or a tensor.

    Examples
    --------
    >>> import torch, vtensor
    >>> model = torch.nn.Linear(1024, 1024)
    >>> with vtensor.enabled("64MiB"):
    ...     vtensor.adopt(model)
    4194304
    """
    if lifecycle.is_kept_off():
        return 0
    if not lifecycle.is_enabled():
        raise NotEnabledError
    return move_in(what, lifecycle.active_config())


@contextlib.contextmanager
def keeping_the_session() -> Iterator[None]:
    """:func:`enable` and :func:`disable` do nothing within it."""
    global _is_kept
    _is_kept = True
    try:
        yield
    finally:
        _is_kept = False
