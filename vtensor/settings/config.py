"""A session as it is to be: what was asked for, checked and turned into numbers of bytes.

Covers: defaults that depend on the device and its memory, the budget where none is given, what may change later.
Leaves: which arguments there are (``options``), how sizes are written (``sizes``), what the numbers do
(``kernels/engine/``). Does not import the native core, and torch only to ask for a GPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from ..logs import log
from .available import (
    budget_of_its_own,
    free_memory,
    host_store_of_its_own,
    most_chunks,
    physical_memory,
    spill_directory,
)
from .environment import is_verifying
from .options import Granularity, Options, Oversize, Policy, Recompute
from .sizes import format_bytes, parse_budget, parse_bytes, parse_link
from .which_device import choose_gpu, which_device

__all__ = ["Config", "asked_again", "chunk_for", "make_config"]

Leaving = Literal["copy", "cheaper", "drop"]
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2 << 20, 16 << 20  # what CUDA maps at least; DESIGN.md has what a mapping costs
_LEAST_CHUNKS = 1024  # of a budget: a small GPU's tensors are small, and padding is lost


@dataclass(frozen=True, slots=True)
class Config:
    """One checked configuration; all sizes in bytes. Its fields are named as those of :class:`Options`."""

    device: Literal["cpu", "cuda"]
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
    recompute: Recompute
    reserve: int
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

    @property
    def sees_all(self) -> bool:
        """Whether all that can be run again is kept, as what no plan names may be dropped, too, or is verified."""
        return self.recompute != "never" and (self.leaving != "copy" or is_verifying())


def chunk_for(device: str, budget: int) -> int:
    """Bytes of a chunk where nobody says otherwise."""
    if device == "cpu":
        chunk, most = _SMALLEST_CHUNK, most_chunks()
        while budget // chunk > most:
            chunk *= 2
        return chunk
    fitting = 1 << max((budget // _LEAST_CHUNKS).bit_length() - 1, 0)
    return min(max(fitting, _SMALLEST_CHUNK), _LARGEST_CHUNK)


def make_config(budget: int | float | str | None = None, options: Options | None = None) -> Config:
    """Turn the arguments of :func:`vtensor.enable` into a session's numbers, and fill in what was left open.

    Raises
    ------
    ConfigError
        Naming the argument, what is wrong with it, and what would do.
    UnsupportedDeviceError
        If there is no GPU where one is asked for.
    """
    options = Options() if options is None else options
    device = which_device(options.device)
    if device == "cuda" and (options.spill_dir is not None or options.link is not None):
        raise ConfigError(
            "spill_dir= and link= are for device='cpu': on a GPU absent data waits in RAM, over its own bus"
        )
    ordinal, total = (0, physical_memory()) if device == "cpu" else choose_gpu()
    name = "budget"
    if budget is None and (asked := os.environ.get("VTENSOR_BUDGET")):
        name, budget = "VTENSOR_BUDGET", asked
    reserve = 0
    if budget is None:
        budget, reserve, options = _of_its_own(device, options)
    budget = parse_budget(budget, total, name)
    if budget > total:
        log.warning(
            "the budget of %s exceeds the memory of %s, so nothing would be evicted before it runs out; use a smaller "
            "budget, or none, to use what is free", format_bytes(budget), format_bytes(total),
        )  # fmt: skip
    chunk = _chunk(options, device, budget)
    spill_dir = _directory(options)
    return Config(
        device=device,
        ordinal=ordinal,
        budget=budget // chunk * chunk,
        chunk=chunk,
        min_size=_min_size(options, chunk, budget),
        host=_host(options, spill_dir, chunk, budget),
        spill_dir=spill_dir,
        policy=options.policy,
        granularity=options.granularity,
        oversize=options.oversize,
        link=parse_link(options.link),
        recompute=options.recompute,
        reserve=reserve,
    )


def _of_its_own(device: str, options: Options) -> tuple[int, int, Options]:
    """Where no budget is given: one, what is left free beside it, and where what does not fit is to wait."""
    free = free_memory(device)
    budget = budget_of_its_own(free)
    where = ""
    if device == "cpu" and options.spill_dir is None and options.host is None and options.recompute != "only":
        # In RAM it could wait in the reserve only: or the system would swap.
        disk = spill_directory()
        options = replace(options, spill_dir=disk, host=free - budget if disk is None else None)
        where = f"; what does not fit goes to {disk or 'the rest (set spill_dir= to use a disk)'}"
    log.warning(
        "no budget was given: using %s of the %s that are free%s", format_bytes(budget), format_bytes(free), where
    )
    return budget, free - budget, options


def _chunk(options: Options, device: str, budget: int) -> int:
    chunk = chunk_for(device, budget) if options.chunk is None else parse_bytes(options.chunk, "chunk")
    page = os.sysconf("SC_PAGE_SIZE")
    if chunk & (chunk - 1) or chunk < page:
        raise ConfigError(f"chunk={options.chunk!r} must be a power of two of at least {page} bytes, such as '2MiB'")
    if budget < chunk:
        raise ConfigError(
            f"a budget of {format_bytes(budget)} holds not one chunk of {format_bytes(chunk)}; "
            "raise it, or take smaller chunks (chunk=, --chunk)"
        )
    if options.chunk is not None and device == "cpu" and budget // chunk > (room := most_chunks()):
        log.warning(
            "a budget of %s is %d chunks of %s, and Linux allows mappings for about %d (vm.max_map_count): once as "
            "many are used memory runs out; take larger chunks, or have it raised",
            format_bytes(budget), budget // chunk, format_bytes(chunk), room,
        )  # fmt: skip
    return chunk


def _min_size(options: Options, chunk: int, budget: int) -> int:
    if options.min_size is None:
        return chunk // 2
    size = parse_bytes(options.min_size, "min_size")
    if size > budget:
        raise ConfigError(
            f"min_size={options.min_size!r} is more than the budget of {format_bytes(budget)}: smaller tensors are "
            "torch's own, and nothing would be kept within the budget; leave it out (half a chunk), or use less"
        )
    return size


def _directory(options: Options) -> str:
    """From the root, as the program may go elsewhere; empty where none is asked for."""
    if options.spill_dir is None:
        return ""
    given = str(options.spill_dir)
    directory = Path(given).absolute()
    if not given or not directory.is_dir():
        raise ConfigError(f"spill_dir={given!r} is not a directory; create it first")
    return str(directory)


def _host(options: Options, spill_dir: str, chunk: int, budget: int) -> int:
    if options.host is not None:
        host = parse_bytes(options.host, "host")
        if host < chunk:
            raise ConfigError(
                f"host={options.host!r} is less than one chunk of {format_bytes(chunk)}: nothing could leave"
            )
        return host
    if not spill_dir:
        return max(host_store_of_its_own(budget), chunk)
    disk = os.statvfs(spill_dir)
    return max(disk.f_bavail * disk.f_frsize, chunk)


def asked_again(active: Config, budget: int | float | str | None, asked: dict[str, Any]) -> Config:
    """What enabling again asks for: options that are not among those `asked` for keep what is in force.

    Raises
    ------
    ConfigError
        If anything but the budget differs.
    """
    names = [field.name for field in fields(Options)]
    kept = {name: getattr(active, name) or None for name in names}
    wanted = make_config(active.budget if budget is None else budget, Options(**{**kept, **asked}))
    differing = [name for name in names if getattr(wanted, name) != getattr(active, name)]
    if differing:
        raise ConfigError(
            f"vtensor is enabled already with other settings ({', '.join(differing)}); only the budget can change "
            "while it runs. Call vtensor.disable() first"
        )
    return wanted
