"""Tensors that are in another process, until somebody looks.

Covers: a tensor of which the layout is known, and which is fetched for the first operation that takes it.
Leaves: fetching (``calls``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..processes.mail import Parcel
from ..processes.wire import Layout
from .orders import Key

__all__ = ["Promise"]


class Promise(torch.Tensor):
    """Stands for a tensor elsewhere. Any operation on it waits for it, and is done on the tensor itself."""

    key: Key
    owner: int
    changed: bool
    _held: torch.Tensor | None
    _parcel: Parcel | None
    _ask: Callable[[Promise], Parcel]
    _before_waiting: Callable[[], None]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        layout: Layout,
        key: Key,
        owner: int,
        *,
        ask: Callable[[Promise], Parcel],
        before_waiting: Callable[[], None] = lambda: None,
    ) -> Promise:
        """A tensor that `owner` has by this key; `ask` has it sent here."""
        made: Promise = torch.Tensor._make_wrapper_subclass(
            cls, layout.shape, strides=layout.stride, dtype=layout.dtype, device=torch.device(layout.device)
        )
        made.key, made.owner, made.changed = key, owner, False
        made._held = made._parcel = None
        made._ask, made._before_waiting = ask, before_waiting
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Promise({tuple(self.shape)}, {self.dtype}, of process {self.owner})"

    def expect(self) -> None:
        """Somebody will look soon: have it sent."""
        if self._held is None and self._parcel is None:
            self._parcel = self._ask(self)

    def get(self) -> torch.Tensor:
        """The tensor; waits for it."""
        self.expect()
        if self._held is None:
            self._before_waiting()
        if self._parcel is not None:
            with torch.inference_mode(False):  # what is asked for there may be needed for a gradient later
                self._held, self._parcel = self._parcel.wait(), None
        assert self._held is not None
        return self._held

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # What is written into, or seen through a view that may be, is another than the owner's from now on.
        may_write = func._schema.is_mutable or any(result.alias_info for result in func._schema.returns)

        def held(promise: Promise) -> torch.Tensor:
            tensor = promise.get()
            promise.changed |= may_write
            return tensor

        args, kwargs = tree_map_only(Promise, held, (args, kwargs or {}))
        return func(*args, **kwargs)
