"""Which process has which tensor.

Covers: naming tensors, having them sent where they are needed and are not yet, forgetting those that are gone; the
numbers of orders and of what is under way.
Leaves: what the orders are (``calls``).
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from ...errors import HarmonyError
from ..processes.mail import Mail, Parcel
from ..processes.wire import layout_of
from .orders import Fetch, Forget, Key, Send
from .promise import Promise

__all__ = ["Ledger"]


class _Entry:
    """A tensor that others have a copy of, as long as it is what it was."""

    def __init__(self, key: Key, version: int) -> None:
        self.key, self.version = key, version
        self.at: set[int] = set()


class Ledger:
    """The first process' book about tensors, for one step."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._orders, self._tags = itertools.count(1), itertools.count(1)
        self._entries: dict[int, _Entry] = {}
        self._unused: dict[int, list[Key]] = {}
        self._watching: list[Any] = []
        self._closed = False

    def close(self) -> None:
        """The step is over: nobody has anything of it any more."""
        self._closed = True
        for finalizer in self._watching:
            finalizer.detach()
        self._entries.clear()

    def next_order(self) -> int:
        """A number that no order and no tensor has."""
        return next(self._orders)

    def say(self, order: Any, to: int) -> None:
        """Send an order; before it, what need not be kept any more."""
        if unused := self._unused.pop(to, None):
            self._mail.say(Forget(tuple(unused)), to)
        self._mail.say(order, to)

    def enter(self, promise: Promise) -> Promise:
        """Its owner has it, until the promise is gone."""
        self._add(promise, promise.key, 0).at.add(promise.owner)
        return promise

    def ask_for(self, promise: Promise) -> Parcel:
        """Have it sent here.

        Raises
        ------
        HarmonyError
            If its step is over.
        """
        if self._closed:
            raise HarmonyError(
                "what a layer in another process returned was kept beyond the step without having been looked at: "
                "keep its .detach().clone()"
            )
        layout, tag = layout_of(promise), next(self._tags)
        self.say(Send(promise.key, self._mail.rank, tag), promise.owner)
        return self._mail.expect(layout, promise.owner, tag)

    def refer(self, tensor: torch.Tensor, to: int, fetches: list[Fetch]) -> Key:
        """The tensor's key. If `to` does not have it, whoever has it sends it; `to` must wait for what is added."""
        of_others = isinstance(tensor, Promise) and id(tensor) not in self._entries  # of an earlier step
        if isinstance(tensor, Promise) and (tensor.changed or of_others):
            return self._send(self._add(tensor.get(), Key(self.next_order(), 0), -1), tensor.get(), to, fetches)
        version = 0 if isinstance(tensor, Promise) or tensor.is_inference() else tensor._version
        entry = self._entries.get(id(tensor))
        if entry is None or entry.version != version:
            entry = self._add(tensor, Key(self.next_order(), 0), version)
        return entry.key if to in entry.at else self._send(entry, tensor, to, fetches)

    def _send(self, entry: _Entry, tensor: torch.Tensor, to: int, fetches: list[Fetch]) -> Key:
        tag = next(self._tags)
        source = tensor.owner if isinstance(tensor, Promise) else self._mail.rank
        fetches.append(Fetch(entry.key, layout_of(tensor), source, tag))
        if isinstance(tensor, Promise):
            self.say(Send(entry.key, to, tag), source)
        else:
            self._mail.send(tensor, to, tag)
        entry.at.add(to)
        return entry.key

    def _add(self, tensor: torch.Tensor, key: Key, version: int) -> _Entry:
        entry = self._entries[id(tensor)] = _Entry(key, version)
        finalizer = weakref.finalize(tensor, self._gone, id(tensor), entry)
        finalizer.atexit = False
        self._watching.append(finalizer)
        return entry

    def _gone(self, identity: int, entry: _Entry) -> None:
        if self._entries.get(identity) is entry:
            del self._entries[identity]
        for process in entry.at:
            self._unused.setdefault(process, []).append(entry.key)
