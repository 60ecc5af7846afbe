"""What lies in the memory of buffers, which several of them may share, and whether it was written.

Covers: buffers that overlap; copies that overlap as they do; writes that autograd counts, and those past it.
Leaves: of which modules (``snapshots``), copies to run with (``buffers``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ...addresses import storage_of

__all__ = [
    "Constants",
    "Memory",
    "Place",
    "bytes_of",
    "found",
    "is_plain",
    "memories_of",
    "past_the_program",
    "room_of",
]

Place = tuple[nn.Module, str]
"""Of a buffer, or of an attribute that is like one: its module and its name there."""

# Bytes of what is always compared by what it holds, too, as versions miss writes past autograd (`.data`, NumPy). The
# statistics of a thousand channels are of four thousand bytes; tables and masks are large, and constant.
_SMALL = 1 << 19
_ALIGN = 16  # of elements, at most


class Constants:
    """Buffers that the first microbatch of all left as they were although it ran their modules, in this mode."""

    def __init__(self, places: Collection[Place], modes: Mapping[nn.Module, bool]) -> None:
        self._places, self._modes = places, modes

    def has(self, place: Place) -> bool:
        """Not if its module is in the other mode now."""
        module, _ = place
        return place in self._places and self._modes[module] is module.training


class Memory:
    """Buffers that overlap, as they are when this is made, to see later whether they were written.

    Parameters
    ----------
    buffers
        By where they are found: one, or several that overlap. None: there is no buffer yet.
    constants
        Of those that are large the versions are believed, which tell nothing of writes past autograd. All others are
        compared by what they hold, too.
    copied
        Whether it is copied, whether or not that is compared.
    compared
        Whether what it holds is ever.
    """

    def __init__(
        self,
        buffers: Mapping[Place, torch.Tensor | None],
        constants: Constants | None,
        copied: bool = False,
        compared: bool = True,
    ) -> None:
        self._buffers, self._constants = dict(buffers), constants
        self._there = [buffer for buffer in self._buffers.values() if buffer is not None]
        self._versions = [_version(buffer) for buffer in self._there]
        self.is_plain = all(map(is_plain, self._there))
        """Whether its buffers are nothing but their memory."""
        self._by_content = (
            compared
            and self.is_plain
            and (constants is None or all(map(_is_small, self._there)) or not all(map(constants.has, self._buffers)))
        )
        self._copies: list[torch.Tensor] = []
        if copied or self._by_content:
            self._copies = _copied(self._there)

    def is_still(self) -> bool:
        """Nothing was written, by whoever ran, since this was made."""
        in_place = all(found(place) is buffer for place, buffer in self._buffers.items())
        if not in_place or [_version(buffer) for buffer in self._there] != self._versions:
            return False
        with past_the_program(), torch.no_grad():
            return not self._by_content or all(map(_same_bytes, self._copies, self._there))

    def is_carried_on(self) -> bool:
        """Where its buffers lay, if there were any, are others that hold what these held: caches are made, and grow."""
        held = iter(self._copies or self._there)
        versions = iter(self._versions)
        for place, buffer in self._buffers.items():
            if buffer is None:
                continue
            now, before, version = found(place), next(held), next(versions)
            written = now is buffer and _version(buffer) != version
            if now is None or written or not _begins_with(now, before):
                return False
        return self.is_plain

    def now(self, compared: bool = True) -> Memory:
        """What is there by now, to see later whether that was written."""
        return Memory({place: found(place) for place in self._buffers}, self._constants, compared=compared)

    def places(self) -> Collection[Place]:
        """Where its buffers were found."""
        return self._buffers

    def copies(self) -> dict[Place, torch.Tensor | None]:
        """Of what its buffers held, if that was copied; they overlap as the buffers do."""
        copies = iter(_copied(self._copies))
        return {place: None if buffer is None else next(copies) for place, buffer in self._buffers.items()}


def memories_of(modules: Iterable[nn.Module], attributes: bool = False) -> list[dict[Place, torch.Tensor | None]]:
    """The buffers of these modules, those together that overlap; tensors that are plain `attributes`, too."""
    memories: list[dict[Place, torch.Tensor | None]] = []
    by_storage: dict[int, dict[Place, torch.Tensor]] = {}
    for module in dict.fromkeys(modules):
        others = {name: each for name, each in vars(module).items() if _is_like_a_buffer(each)} if attributes else {}
        for name, buffer in {**others, **module._buffers}.items():
            if buffer is None:
                memories.append({(module, name): None})
            else:
                storage = storage_of(buffer)._cdata if is_plain(buffer) else id(buffer)
                by_storage.setdefault(storage, {})[module, name] = buffer
    for views in by_storage.values():
        end = -1
        for place in sorted(views, key=lambda place: _span(views[place])):
            first, last = _span(views[place])
            if first >= end:
                memories.append({})
            end = max(end, last)
            memories[-1][place] = views[place]
    return memories


def _is_like_a_buffer(attribute: Any) -> bool:
    """Large ones are tables mostly, which nobody knows to be constant: copies in each microbatch would be slow."""
    plain = isinstance(attribute, torch.Tensor) and is_plain(attribute)
    return plain and _is_small(attribute) and not attribute.requires_grad


def _is_small(buffer: torch.Tensor) -> bool:
    """What it holds may be compared at any time."""
    return buffer.nbytes <= _SMALL


def room_of(place: Place) -> dict[str, Any]:
    """Where its name stands: among the buffers of its module, or else its attributes."""
    module, name = place
    buffers: dict[str, Any] = module._buffers
    return buffers if name in buffers else vars(module)


def found(place: Place) -> torch.Tensor | None:
    """What is there."""
    buffer: torch.Tensor | None = room_of(place).get(place[1])
    return buffer


def past_the_program() -> Any:
    """A context in which no mode of the program's, such as a checkpoint that chooses what it saves, sees operations."""
    return torch._C._DisableTorchDispatch()


def is_plain(buffer: torch.Tensor) -> bool:
    """Whether it is nothing but its memory."""
    return (
        type(buffer) in (torch.Tensor, nn.Parameter)
        and buffer.layout == torch.strided
        and buffer.device.type != "meta"
        and not (buffer.is_nested or buffer.is_quantized)
    )


def _span(buffer: torch.Tensor) -> tuple[int, int]:
    """From which byte of its storage to which it may have elements; of what is more than its memory, all."""
    if not is_plain(buffer):
        return 0, 1
    first = int(buffer.storage_offset()) * buffer.element_size()
    if buffer.numel() == 0:
        return first, first
    reach = sum((size - 1) * int(stride) for size, stride in zip(buffer.shape, buffer.stride(), strict=True))
    return first, first + (reach + 1) * buffer.element_size()


def _version(buffer: torch.Tensor) -> int:
    """What autograd counts of writes; 0 where it counts none."""
    has_none = not nn.parameter.is_lazy(buffer) and buffer.is_inference()
    return 0 if has_none else buffer._version


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """In the order of its elements; a copy, if they do not lie so."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(bytes_of(one), bytes_of(other))


def _begins_with(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are alike as far as both reach."""
    if not is_plain(one) or one.dtype != other.dtype or one.device != other.device or one.dim() != other.dim():
        return False
    both = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    with past_the_program(), torch.no_grad():
        return _same_bytes(one[both], other[both])


def _copied(buffers: Collection[torch.Tensor]) -> list[torch.Tensor]:
    """One for each; copies of what overlaps overlap, and of one tensor there is one."""
    different = {id(buffer): buffer for buffer in buffers}
    outside = past_the_program() if all(map(is_plain, buffers)) else contextlib.nullcontext()
    with outside, torch.no_grad():
        if len(different) == 1:
            made = {key: buffer.detach().clone() for key, buffer in different.items()}
        else:
            made = _views_copied(different)
    return [made[id(buffer)] for buffer in buffers]


def _views_copied(views: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    if not views:
        return {}
    any_of_them, spans = next(iter(views.values())), [_span(view) for view in views.values()]
    first, last = min(begin for begin, _ in spans) // _ALIGN * _ALIGN, max(end for _, end in spans)
    whole = torch.empty(0, dtype=torch.uint8, device=any_of_them.device).set_(storage_of(any_of_them))
    memory = storage_of(whole[first:last].clone())
    made: dict[int, torch.Tensor] = {}
    for key, view in views.items():
        place = view.storage_offset() - first // view.element_size()
        copy = torch.empty(0, dtype=view.dtype, device=view.device).set_(memory, place, view.size(), view.stride())
        copy = copy.conj() if view.is_conj() else copy
        made[key] = torch._neg_view(copy) if view.is_neg() else copy
    return made
