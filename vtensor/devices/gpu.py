"""A session on an NVIDIA GPU: what is checked before it begins, and the pool its chunks come from.

Covers: refusing what cannot work in words, starting and stopping the core on a GPU (``port``).
Leaves: everything a session is on any device (``session``), the pool (``pools``), the device
(``kernels/cuda/driver_cuda.h``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, UnsupportedDeviceError
from ..hooks.strict import be_strict, is_strict
from ..logs import log
from ..native.core import Core, CudaDevice
from ..settings.config import Config
from ..settings.environment import is_set
from ..settings.sizes import format_bytes
from .pools import DevicePool, make_device_pool

__all__ = ["cupy_allocator", "fit", "lent_bytes", "look_at_gpu", "resize", "start", "stop"]

_pool: DevicePool | None = None
_kept: list[DevicePool] = []  # of earlier sessions whose tensors live on
_set_before: tuple[bool, bool] | None = None  # of torch: threads of backward, fused TorchScript; None: not changed


def look_at_gpu(core: Core, ordinal: int) -> CudaDevice:
    """What the core finds out about a GPU.

    Raises
    ------
    UnsupportedDeviceError
        If its memory cannot be managed, saying why.
    """
    if not hasattr(core, "probe_cuda"):
        raise UnsupportedDeviceError(
            "this torch was built without CUDA (AMD's GPUs are not managed yet); install one with it, or pass "
            "device='cpu' to manage CPU tensors"
        )
    try:
        found = core.probe_cuda(ordinal)
    except core.InvalidUse as error:
        raise UnsupportedDeviceError(str(error)) from None
    if not found["virtual_memory"]:
        raise UnsupportedDeviceError(
            f"{found['name']} offers no virtual memory management (cuMemMap); vtensor cannot move its memory"
        )
    return found


def fit(core: Core, config: Config) -> Config:
    """Settings that suit the GPU: where its memory is the processor's, nothing is copied.

    Raises
    ------
    UnsupportedDeviceError
        Where managing memory cannot work or gives nothing, saying why, and what to do.
    """
    found = look_at_gpu(core, config.ordinal)
    if not found["integrated"] or config.recompute == "only" or is_set("VTENSOR_INTEGRATED"):
        return config
    if config.recompute == "never":
        raise UnsupportedDeviceError(
            f"{found['name']} shares one memory with the processor: what is copied would stay in the same chips, and "
            "nothing would be freed. Leave recompute= out, so that what is evicted is recomputed; or set "
            "VTENSOR_INTEGRATED=1 to copy all the same"
        )
    log.warning(
        "%s shares one memory with the processor: nothing is copied, what is evicted is recomputed (recompute='only')",
        found["name"],
    )
    return replace(config, recompute="only")


def start(core: Core, config: Config) -> None:
    """Start the core on ``config.ordinal``; its chunks come from a CuPy pool where there is CuPy.

    :func:`stop` undoes it, also in part.
    """
    import torch

    global _pool, _set_before
    if is_strict():
        be_strict(core)
    torch.cuda.empty_cache()  # what torch keeps of memory that was freed is the budget's to have
    _pool = make_device_pool(core, config.chunk, config.ordinal, config.budget)
    lent = [] if _pool is None else _pool.lend(config.budget_chunks)
    try:
        core.start_cuda(
            **config.for_core,
            ordinal=config.ordinal,
            donated=lent,
            places=is_set("VTENSOR_HOST_IN_PLACE"),  # CUDA's own copies crash on it (kernels/cuda/DESIGN.md)
            strict=is_strict(),
        )
    except core.InvalidUse as error:
        raise ConfigError(str(error)) from None
    # One thread runs forward and backward, so that an iteration is one sequence of operations that can be recorded. A
    # fused group of TorchScript's is no operation: its kernel would read what is away.
    _set_before = torch.autograd.is_multithreading_enabled(), torch._C._jit_can_fuse_on_gpu()
    _set_torch(False, False)
    source = "its own" if _pool is None else "a CuPy pool's"
    log.info("the CUDA device has been tried on H100s only; 'make gpu-check' of vtensor's repository tests yours")
    log.info("GPU %d: chunks of %s, %s", config.ordinal, format_bytes(config.chunk), source)


def _set_torch(multithreaded: bool, fused: bool) -> None:
    import torch

    torch._C._set_multithreading_enabled(multithreaded)
    torch._C._jit_override_can_fuse_on_gpu(fused)


def resize(core: Core, config: Config) -> None:
    """The pool follows a budget that changed; the core has changed its own already."""
    if _pool is None:
        return
    _pool.take_back(core.unused_chunks())
    _pool.resize(config.budget)
    core.donate(_pool.lend(max(config.budget_chunks - _pool.lent_bytes // config.chunk, 0)))


def stop(core: Core) -> None:
    """Stop the core; raises ``torch.OutOfMemoryError`` if live tensors in the host store cannot come back.

    May be called again where it was interrupted, and where nothing was started.
    """
    import torch

    global _pool, _set_before
    pool = _pool
    if pool is not None and pool not in _kept:
        _kept.append(pool)  # until the core says that no tensor uses its chunks; interrupted, it stays here
    _pool = None
    try:
        drained, unused = core.stop_cuda()
    except core.OutOfMemory as error:
        _pool = pool
        if pool is not None:
            _kept.remove(pool)
        raise torch.OutOfMemoryError(str(error)) from None
    if _set_before is not None:
        _set_torch(*_set_before)
        _set_before = None
    if pool is None:
        return
    if drained:
        _kept.remove(pool)
        pool.close()
    else:
        pool.take_back(unused)
        pool.trim()


def lent_bytes() -> int:
    """Of the device's memory, what the pool has taken for chunks; 0 without one."""
    return 0 if _pool is None else _pool.lent_bytes


def cupy_allocator() -> Callable[[int], Any]:
    """An allocator for CuPy whose arrays share the budget: ``cupy.cuda.set_allocator(vtensor.cupy_allocator())``.

    Raises
    ------
    UnsupportedDeviceError
        If vtensor is not enabled on a GPU, or CuPy is not installed.
    """
    if _pool is None:
        raise UnsupportedDeviceError(
            "there is no pool to share: vtensor must be enabled on a GPU, with CuPy installed (pip install "
            "cupy-cuda13x, or cupy-cuda12x)"
        )
    return _pool.allocate
