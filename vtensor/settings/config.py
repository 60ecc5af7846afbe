"""Arguments of :func:`vtensor.enable`, checked and turned into numbers of bytes.

Covers: sizes and speeds as people write them, environment variables, defaults; which device, and what may change.
Leaves: what the numbers do (``kernels/engine/``). Does not import the native core, and torch only to ask for a GPU.
"""

from __future__ import annotations

import inspect
import numbers
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lgm.records import units
from lgm.records.units import format_bytes

from ..errors import ConfigError, UnsupportedDeviceError
from ..logs import log
from .available import budget_of_its_own, free_memory, host_store_of_its_own, physical_memory, spill_directory

__all__ = [
    "Config",
    "Device",
    "Granularity",
    "Oversize",
    "Policy",
    "Recompute",
    "asked_again",
    "chunk_for",
    "format_bytes",
    "make_config",
    "parse_bytes",
    "parse_link",
    "which_device",
]

Policy = Literal["plan", "lru", "size_staleness", "delta"]
Granularity = Literal["chunk", "tensor"]
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2 << 20, 16 << 20  # what CUDA maps at least; DESIGN.md has what a mapping costs
_LEAST_CHUNKS = 1024  # of a budget: a small GPU's tensors are small, and padding is lost
Device = Literal["auto", "cpu", "cuda"]
Oversize = Literal["borrow", "raise"]
Recompute = Literal["auto", "never", "only"]
Leaving = Literal["copy", "cheaper", "drop"]


@dataclass(frozen=True, slots=True)
class Config:
    """One checked configuration; all sizes in bytes."""

    device: str
    """``"cpu"`` or ``"cuda"``."""
    ordinal: int
    """Which CUDA device; 0 on the CPU."""
    budget: int
    """Bytes of chunks the device may hold; a multiple of `chunk`."""
    chunk: int
    """Bytes of one vTensor; a power of two."""
    min_size: int
    """The smallest allocation that is managed."""
    host: int
    """Bytes the host store may take."""
    spill_dir: str
    """Directory of the host store's file, from the root; empty for RAM."""
    policy: Policy
    granularity: Granularity
    oversize: Oversize
    link: float
    """Bytes a second of each copy direction; 0 for no limit."""
    recompute: Recompute = "auto"
    reserve: int = 0
    """Bytes beside the budget that stay free; 0 where somebody gave the budget."""

    @property
    def budget_chunks(self) -> int:
        return self.budget // self.chunk

    @property
    def for_core(self) -> dict[str, Any]:
        """What the native core is started with on any device."""
        return {
            "budget_chunks": self.budget_chunks,
            "chunk": self.chunk,
            "host": self.host,
            "policy": self.policy,
            "granularity": self.granularity,
            "leaving": self.leaving,
            "raise_oversize": self.oversize == "raise",
            "min_size": self.min_size,
        }

    @property
    def leaving(self) -> Leaving:
        """How leaves what no plan names."""
        if self.recompute == "only":
            return "drop"
        return "cheaper" if self.policy == "delta" else "copy"


def parse_bytes(value: int | str, name: str) -> int:
    """:func:`lgm.records.units.parse_bytes`, with this package's error."""
    try:
        return units.parse_bytes(value, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse_link(value: float | str | None) -> float:
    """Bytes a second of ``None`` (no limit: 0), ``6e9`` or ``"6GB/s"``."""
    if value is None:
        return 0.0
    try:
        return units.parse_speed(value)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def which_device(asked: str) -> Literal["cpu", "cuda"]:
    """``"cpu"`` or ``"cuda"``."""
    if asked not in get_args(Device):
        raise ConfigError(f"device={asked!r} is unknown; choose 'auto', 'cpu' or 'cuda'")
    if asked == "cpu":
        return "cpu"
    import torch

    seen = torch.cuda.is_available()
    if asked == "cuda" and not seen:
        raise UnsupportedDeviceError(
            "device='cuda': torch sees no GPU here (torch.cuda.is_available() is False); 'vtensor doctor' says what is "
            "missing, and device='cpu' manages CPU tensors"
        )
    return "cuda" if seen else "cpu"


def _gpu() -> tuple[int, int]:
    """The current CUDA device and its bytes of memory.

    Where a process of torchrun has chosen none yet, the one of its rank is current from now on: all would begin on the
    first, and manage that.
    """
    import torch

    ordinal = torch.cuda.current_device()
    rank = os.environ.get("LOCAL_RANK", "")
    if ordinal == 0 and rank.isdecimal() and 0 < int(rank) < torch.cuda.device_count():
        ordinal = int(rank)
        torch.cuda.set_device(ordinal)
    return ordinal, torch.cuda.get_device_properties(ordinal).total_memory


def _own(
    device: str, spill_dir: str | os.PathLike[str] | None, host: int | str | None, recompute: Recompute
) -> tuple[int, str | os.PathLike[str] | None, int | str | None, int]:
    """Budget, spill directory, room of the host store and what is left free where no budget is given."""
    free = free_memory(device)
    budget = budget_of_its_own(free)
    where = ""
    if device == "cpu" and spill_dir is None and host is None and recompute != "only":
        # In RAM it could wait in the reserve only: or the system would swap.
        spill_dir = spill_directory()
        host = free - budget if spill_dir is None else None
        where = f"; what does not fit waits in {spill_dir or 'the rest of them: spill_dir= names a disk'}"
    log.warning("no budget was given: %s, of %s that are free%s", format_bytes(budget), format_bytes(free), where)
    return budget, spill_dir, host, free - budget


def _budget(value: int | float | str, total: int, name: str) -> int:
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        value = float(value)  # NumPy has more kinds
    try:
        share = units.parse_share(value, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if share is not None:
        return int(share * total)
    return parse_bytes(int(value) if isinstance(value, float) else value, name)


def chunk_for(device: str, budget: int) -> int:
    """Bytes of a chunk where nobody says otherwise."""
    if device == "cpu":
        return _SMALLEST_CHUNK
    fitting = 1 << max((budget // _LEAST_CHUNKS).bit_length() - 1, 0)
    return min(max(fitting, _SMALLEST_CHUNK), _LARGEST_CHUNK)


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, allowed))}")


def make_config(
    budget: int | float | str | None = None,
    *,
    device: str = "auto",
    chunk: int | str | None = None,
    min_size: int | str | None = None,
    host: int | str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    policy: Policy = "plan",
    granularity: Granularity = "chunk",
    oversize: Oversize = "borrow",
    link: float | str | None = None,
    recompute: Recompute = "auto",
) -> Config:
    """Check the arguments of :func:`vtensor.enable` and fill in what was left open.

    Raises
    ------
    ConfigError
        Naming the argument, what is wrong with it, and what would do.
    UnsupportedDeviceError
        If there is no GPU where one is asked for.
    """
    device = which_device(device)
    ordinal, total = (0, physical_memory()) if device == "cpu" else _gpu()
    name = "budget"
    if budget is None and (asked := os.environ.get("VTENSOR_BUDGET")):
        name, budget = "VTENSOR_BUDGET", asked
    reserve = 0
    if budget is None:
        budget, spill_dir, host, reserve = _own(device, spill_dir, host, recompute)
    budget_bytes = _budget(budget, total, name)
    chunk = chunk_for(device, budget_bytes) if chunk is None else chunk
    chunk_bytes = parse_bytes(chunk, "chunk")
    page = os.sysconf("SC_PAGE_SIZE")
    if chunk_bytes & (chunk_bytes - 1) or chunk_bytes < page:
        raise ConfigError(f"chunk={chunk!r} must be a power of two of at least {page} bytes, such as '2MiB'")
    if budget_bytes < chunk_bytes:
        raise ConfigError(
            f"a budget of {format_bytes(budget_bytes)} holds not one chunk of {format_bytes(chunk_bytes)}; "
            "raise it, or take smaller chunks (chunk=, --chunk)"
        )
    _choice("policy", policy, get_args(Policy))
    _choice("granularity", granularity, get_args(Granularity))
    _choice("oversize", oversize, get_args(Oversize))
    _choice("recompute", recompute, get_args(Recompute))
    if policy == "delta" and recompute == "never":
        raise ConfigError(
            "policy='delta' chooses between copies and making again; recompute='never' leaves it no choice"
        )
    if spill_dir is not None and recompute == "only":
        raise ConfigError("recompute='only' copies nothing, so spill_dir= would stay empty; leave one of them out")
    directory = str(Path(spill_dir).absolute()) if spill_dir else ""
    if spill_dir is not None and not (directory and Path(directory).is_dir()):
        raise ConfigError(f"spill_dir={str(spill_dir)!r} is not a directory; create it first")
    if host is not None:
        host_bytes = parse_bytes(host, "host")
        if host_bytes < chunk_bytes:
            raise ConfigError(
                f"host={host!r} is less than one chunk of {format_bytes(chunk_bytes)}: nothing could leave"
            )
    elif directory:
        stat = os.statvfs(directory)
        host_bytes = max(stat.f_bavail * stat.f_frsize, chunk_bytes)
    else:
        host_bytes = max(host_store_of_its_own(), chunk_bytes)
    if device == "cuda" and (directory or link is not None):
        raise ConfigError(
            "spill_dir= and link= are for device='cpu': on a GPU absent data waits in RAM, over its own bus"
        )
    return Config(
        device=device,
        ordinal=ordinal,
        budget=budget_bytes // chunk_bytes * chunk_bytes,
        chunk=chunk_bytes,
        min_size=chunk_bytes // 2 if min_size is None else parse_bytes(min_size, "min_size"),
        host=host_bytes,
        spill_dir=directory,
        policy=policy,
        granularity=granularity,
        oversize=oversize,
        link=parse_link(link),
        recompute=recompute,
        reserve=reserve,
    )


def asked_again(active: Config, budget: int | float | str | None, given: dict[str, Any]) -> Config:
    """What enabling again asks for: arguments left at their defaults keep what is in force.

    Raises
    ------
    ConfigError
        If anything but the budget differs.
    """
    defaults = {name: p.default for name, p in inspect.signature(make_config).parameters.items()}
    kept = {name: getattr(active, name) or None for name in given}
    merged: dict[str, Any] = {name: kept[name] if value == defaults[name] else value for name, value in given.items()}
    asked = make_config(active.budget if budget is None else budget, **merged)
    differing = [name for name in given if getattr(asked, name) != getattr(active, name)]
    if differing:
        raise ConfigError(
            f"vtensor is enabled already with other settings ({', '.join(differing)}); only the budget can change "
            "while it runs. Call vtensor.disable() first"
        )
    return asked
