"""Strict mode: on a GPU a kernel that reads what is away fails, and what it was given is named.

A kernel called past torch's dispatcher (by an extension bound with pybind) is not seen. Where its argument is away, it
reads what another tensor has put there, and the result is wrong without a word. With ``VTENSOR_STRICT=1`` absent
addresses lead nowhere: the kernel fails with CUDA's own error, and the words here follow it. Slower, for finding out.

Covers: whether it is asked for, one kernel at a time so that the line that fails is the one that called, the words.
Leaves: closing addresses (``kernels/engine/ordered_moves.h``). On the CPU nothing is wrong: a touch is served.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import torch

from ..addresses import address_of
from ..logs import say
from ..native.core import Core
from ..settings.environment import is_set
from .patches import replace

__all__ = ["be_strict", "explain", "is_strict"]

_FAULTS = ("illegal memory access", "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS")


def is_strict() -> bool:
    """Whether ``VTENSOR_STRICT=1`` is set."""
    return is_set("VTENSOR_STRICT")


if is_strict():  # when vtensor is imported: CUDA reads it once, when it is first used
    os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")


def be_strict(core: Core) -> None:
    """Have failures explained until the session ends."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        if words := explain(core, error, trace):
            say(words)

    replace(sys, "excepthook", show)


def explain(core: Core, error: BaseException, trace: TracebackType | None) -> str:
    """What was away where the error came from, for people; empty if it is no failed access of a device."""
    if not any(fault in str(error) for fault in _FAULTS):
        return ""
    innermost_first = reversed(list(traceback.walk_tb(trace)))
    found = {text: None for frame, line in innermost_first for text in _away(core, frame, line)}  # each once, in order
    lines = list(found) or ["  none that the lines above had: somebody kept an address"]
    return "\n".join([
        "vtensor (VTENSOR_STRICT=1): a kernel used memory whose data is away. Away was, the innermost first:",
        *lines,
        "A kernel that is called past torch's dispatcher is not seen. Register it with torch.library, or call it",
        "within a torch.autograd.Function, or call data_ptr() on what it is given first: that stays from then on.",
    ])  # fmt: skip


def _away(core: Core, frame: FrameType, line: int) -> Iterator[str]:
    place = f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"
    for name, value in frame.f_locals.items():
        for path, tensor in _tensors(name, value):
            try:
                states = core.residency(address_of(tensor))
            except RuntimeError:  # it has no memory: sparse, fake, wrapped
                continue
            away = states["absent"] + states["dropped"]
            if away:
                shape = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
                yield f"  {path}, {shape}, {away} of {states['chunks']} chunks: {place}"


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Of a variable: itself, what it lists, what it holds as a module."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{k}]", each) for k, each in enumerate(value) if isinstance(each, torch.Tensor))
    elif isinstance(value, torch.nn.Module):
        own = [*value.named_parameters(recurse=False), *value.named_buffers(recurse=False)]
        yield from ((f"{name}.{each}", tensor) for each, tensor in own)
