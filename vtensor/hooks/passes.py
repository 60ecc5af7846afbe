"""Ends of backward passes: in programs that update their parameters themselves nobody else says where they begin anew.

Covers: being told of each pass that the program asked for, by ``backward()`` or by ``torch.autograd.grad``; not of
those within another (reentrant checkpoints).
Leaves: whether that ends an iteration (``planning``), putting torch's own function back (``patches``).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from .patches import replace

__all__ = ["Thread", "tell_of_passes"]

_RUN = "_engine_run_backward"  # all passes go through it, also those of torch.func, and no compiler looks into it


class Thread:
    """Stands for a thread that asks for passes, as an optimizer for its steps."""


def tell_of_passes(told: Callable[[Thread, bool], None]) -> None:
    """From now on, in this session: by which thread, and whether gradients were accumulated (``backward()``)."""
    if (run := getattr(torch.autograd, _RUN, None)) is not None:
        replace(torch.autograd, _RUN, _telling(run, told))


def _telling(run: Callable[..., Any], told: Callable[[Thread, bool], None]) -> Callable[..., Any]:
    threads = threading.local()

    @functools.wraps(run)
    def runs(*args: Any, **kwargs: Any) -> Any:
        within = torch._C._current_graph_task_id() != -1
        result = run(*args, **kwargs)
        if not within and not torch.compiler.is_compiling():
            if not hasattr(threads, "this"):
                threads.this = Thread()
            told(threads.this, bool(kwargs.get("accumulate_grad")))
        return result

    return runs
