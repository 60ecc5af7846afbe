"""Carrying orders and tensors between the processes of a group.

Covers: messages of any length, tensors by tag, the same tensor for all; buffers for what is under way.
Leaves: what is said and by whom, to the pipeline (``pipeline/``) and to ``neighbours``.

All of it goes through gloo and the host's memory, also between GPUs: order by tag, which NCCL does not have, is what
lets a process take what it needs first. Buffers are NumPy's: torch's own would count against the budget of
:func:`vtensor.enable` and, given to a collective, never move again.
"""

from __future__ import annotations

import collections
import pickle
from typing import Any

import numpy
import torch
from torch import distributed

from ...errors import ConfigError, HarmonyError
from .wire import Layout, layout_of, received, write

__all__ = ["Mail", "Parcel"]

_FRAME = 4096  # a message's first part: its length, and what fits behind it
_LENGTH = 8
_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


class Parcel:
    """A tensor under way to this process."""

    def __init__(self, mail: Mail, layout: Layout, source: int, tag: int) -> None:
        self._mail, self._layout = mail, layout
        self._work = mail.receive(layout.nbytes, source, tag) if layout.nbytes else None

    def wait(self) -> torch.Tensor:
        """The tensor, once it is there."""
        if self._work is None:  # nothing is sent of a tensor without elements
            return received(self._layout, _NOTHING)
        buffer = self._mail.arrived(self._work)
        tensor = received(self._layout, buffer)
        self._mail.give_back(buffer)
        return tensor


class Mail:
    """What processes send each other; to be made by all of them.

    Parameters
    ----------
    group
        Of which processes: a process group, a list of ranks, or True for all.

    Raises
    ------
    ConfigError
        If ``torch.distributed`` is not begun.
    """

    def __init__(self, group: Any) -> None:
        if not distributed.is_available() or not distributed.is_initialized():
            raise ConfigError(
                "several processes need torch.distributed.init_process_group() first, and torchrun to start them"
            )
        ranks = group
        if not isinstance(group, list):
            ranks = distributed.get_process_group_ranks(distributed.group.WORLD if group is True else group)
        self._group = distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self.rank, self.size = distributed.get_rank(self._group), len(ranks)
        # What is under way lives until it has arrived, whoever still wants it, or gloo stops the whole connection.
        self._receiving: dict[Any, tuple[torch.Tensor, int]] = {}
        self._idle: dict[int, list[torch.Tensor]] = collections.defaultdict(list)
        self._sent: collections.deque[tuple[Any, torch.Tensor, int]] = collections.deque()

    def say(self, message: Any, to: int) -> None:
        """Send a message; it is there before all that is said later."""
        data = pickle.dumps(message, protocol=5)
        whole = len(data).to_bytes(_LENGTH, "little") + data
        self._send_bytes(whole[:_FRAME].ljust(_FRAME, b"\0"), to)
        if len(whole) > _FRAME:
            self._send_bytes(whole[_FRAME:], to)

    def hear(self, source: int) -> Any:
        """The next message from a process; waits for it."""
        first = self._receive_bytes(_FRAME, source)
        length = _LENGTH + int.from_bytes(first[:_LENGTH], "little")
        rest = self._receive_bytes(length - _FRAME, source) if length > _FRAME else b""
        return pickle.loads((first + rest)[_LENGTH:length])

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """Send a copy of a tensor. `tag` > 0 is of this one alone until :meth:`settle`."""
        size = layout_of(tensor).nbytes
        if not size:
            return
        buffer = self._buffer(size)
        write(tensor, buffer)
        self._sent.append((self._begin(distributed.isend, buffer[:size], to, tag), buffer, to))
        while self._sent and self._sent[0][0].is_completed():
            self._finish_first()

    def expect(self, layout: Layout, source: int, tag: int) -> Parcel:
        """A tensor that the process is sending, or will."""
        return Parcel(self, layout, source, tag)

    def receive(self, size: int, source: int, tag: int) -> Any:
        """Begin to receive a tensor's bytes; for :meth:`arrived`."""
        buffer = self._buffer(size)
        work = self._begin(distributed.irecv, buffer[:size], source, tag)
        self._receiving[work] = buffer, source
        return work

    def arrived(self, work: Any) -> torch.Tensor:
        """Wait for what was begun; its buffer, to be given back."""
        buffer, source = self._receiving[work]
        self._finish(work, source)
        del self._receiving[work]
        return buffer

    def settle(self) -> None:
        """Wait until all that was sent has arrived, also what nobody waited for."""
        for work in list(self._receiving):
            self.give_back(self.arrived(work))
        while self._sent:
            self._finish_first()

    def share(self, tensor: torch.Tensor, source: int) -> None:
        """The values of one process' tensor for all. A collective: all must call it, with tensors of one shape."""
        tensor = tensor.as_strided(layout_of(tensor).kept()[0], tensor.stride())  # each of an expanded one's once
        whole = tensor.contiguous()  # it may be laid out otherwise elsewhere
        layout = layout_of(whole)
        buffer = self._buffer(layout.nbytes)
        if self.rank == source:
            write(whole, buffer)
        distributed.broadcast(buffer[: layout.nbytes], group=self._group, group_src=source)
        if self.rank != source:
            with torch.no_grad():
                tensor.copy_(received(layout, buffer))
        self.give_back(buffer)

    def tell(self, value: Any, source: int) -> Any:
        """One process' value, for all. A collective: all must call it."""
        values = [value]
        distributed.broadcast_object_list(values, group=self._group, group_src=source)
        return values[0]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all processes' tensors. A collective: all must call it."""
        total = torch.from_numpy(values.detach().cpu().numpy().copy())
        distributed.all_reduce(total, group=self._group)
        return total

    def _buffer(self, size: int) -> torch.Tensor:
        """At least so many bytes, to be given back."""
        room = 1 << max(size - 1, _FRAME - 1).bit_length()
        return self._idle[room].pop() if self._idle[room] else torch.from_numpy(numpy.empty(room, numpy.uint8))

    def give_back(self, buffer: torch.Tensor) -> None:
        """It may be overwritten."""
        self._idle[len(buffer)].append(buffer)

    def _begin(self, way: Any, buffer: torch.Tensor, other: int, tag: int) -> Any:
        """Begin to send or receive.

        Raises
        ------
        HarmonyError
            If the other process is gone.
        """
        end = {"group_dst": other} if way is distributed.isend else {"group_src": other}
        try:
            return way(buffer, group=self._group, tag=tag, **end)
        except RuntimeError as error:
            raise _gone(other) from error

    def _finish(self, work: Any, other: int) -> None:
        """Wait for what was begun.

        Raises
        ------
        HarmonyError
            If the other process is gone.
        """
        try:
            work.wait()
        except RuntimeError as error:
            raise _gone(other) from error

    def _finish_first(self) -> None:
        work, buffer, to = self._sent.popleft()
        self._finish(work, to)
        self.give_back(buffer)

    def _send_bytes(self, data: bytes, to: int) -> None:
        buffer = self._buffer(len(data))
        buffer.numpy()[: len(data)] = numpy.frombuffer(data, numpy.uint8)
        self._sent.append((self._begin(distributed.isend, buffer[: len(data)], to, 0), buffer, to))

    def _receive_bytes(self, size: int, source: int) -> bytes:
        buffer = self._buffer(size)
        self._finish(self._begin(distributed.irecv, buffer[:size], source, 0), source)
        data = buffer.numpy()[:size].tobytes()
        self.give_back(buffer)
        return data


def _gone(rank: int) -> HarmonyError:
    return HarmonyError(f"process {rank} is gone; what it printed says why")
