"""One call of each vector-math function before the first that matters.

Covers: a race in plain PyTorch. The first call of a function of Intel's vector-math library in a process, made by
several threads at once, now and then gives other last bits than every later call (measured: ``torch.tanh`` on 3 million
elements, 1 process in 14; never after a call with one element). Then plain PyTorch is not equal to itself.
Leaves: everything else; nothing of vtensor depends on it.
"""

from __future__ import annotations

__all__ = ["settle"]

_FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "floor", "log"),
    *("log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
    "trunc",
)


def settle() -> None:
    """Call every function once with one element, which one thread does."""
    import torch

    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype)
        for name in _FUNCTIONS:
            getattr(torch, name)(one)
