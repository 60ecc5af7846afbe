"""Several processes that train one model, each by its share of a batch: gradients are averaged pack by pack.

Covers: the same weights at the beginning, which parameters are complete everywhere, averaging their gradients.
Leaves: when (``updates``), who starts processes (``torchrun``) and what carries bytes (``torch.distributed``).

Each gradient is a collective of its own. Which others share a message decides in which order some libraries add, and
which are complete together depends on the packs, so on the budget: the bits must not. And what a collective was given
stays where it is, beyond any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn

from ...errors import ConfigError, HarmonyError

__all__ = ["Replicas"]


class Replicas:
    """The processes of a group.

    Parameters
    ----------
    model
        What all of them train; its parameters become those of the first process.
    group
        A process group; True for the default one.
    """

    def __init__(self, model: nn.Module, group: Any) -> None:
        if not distributed.is_available() or not distributed.is_initialized():
            raise ConfigError(
                "data_parallel= needs torch.distributed.init_process_group() first, in processes that torchrun started"
            )
        self._group = None if group is True else group
        self._first = 0 if self._group is None else distributed.get_global_rank(self._group, 0)
        self.size = distributed.get_world_size(self._group)
        self._model = model
        self._parameters = list(model.parameters())
        self._broadcast([p.detach() for p in self._parameters])
        self.share_buffers()

    def least(self, value: int) -> int:
        """Of all processes' values. A collective: all must call it."""
        return self._least([value])[0]

    def agreed(self, values: Sequence[bool]) -> list[bool]:
        """Which are true in all processes. A collective: all must call it."""
        return [value > 0 for value in self._least(values)]

    def _least(self, values: Sequence[int]) -> list[int]:
        device = self._parameters[0].device if self._parameters else "cpu"
        mine = torch.tensor(values, dtype=torch.int64, device=device)
        distributed.all_reduce(mine, distributed.ReduceOp.MIN, group=self._group)
        found: list[int] = mine.tolist()
        return found

    def share_buffers(self) -> None:
        """Those of the first process for all, as by ``DistributedDataParallel``; a module may have put others there.

        But for those that nobody can write: expanded ones, those of inference mode.
        """
        self._broadcast([buffer for buffer in self._model.buffers() if _can_be_written(buffer)])

    def _broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                # What a collective was given does not move any more. As bytes: not all types can be sent.
                carried = tensor.clone(memory_format=torch.contiguous_format)
                distributed.broadcast(carried.view(-1).view(torch.uint8), self._first, group=self._group)
                tensor.copy_(carried)

    def complete_everywhere(self, parameters: Sequence[torch.Tensor], complete: set[torch.Tensor]) -> set[torch.Tensor]:
        """Of the parameters, which all processes have all gradients of. A collective: all must call it."""
        mine = [p in complete for p in parameters]
        return {p for p, all_have in zip(parameters, self.agreed(mine), strict=True) if all_have}

    def with_gradients(self, parameters: Sequence[torch.Tensor]) -> set[torch.Tensor]:
        """Of the parameters, which some process has a gradient of. A collective: all must call it."""
        mine = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32, device=parameters[0].device)
        distributed.all_reduce(mine, distributed.ReduceOp.MAX, group=self._group)
        return {p for p, some_have in zip(parameters, mine.tolist(), strict=True) if some_have}

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Their gradients become the average of all processes'; one that has none counts as zeros. A collective.

        Raises
        ------
        HarmonyError
            If a gradient is sparse.
        """
        with torch.no_grad():
            for p in parameters:
                if p.grad is not None and p.grad.layout != torch.strided:
                    raise HarmonyError(
                        f"the gradient of a parameter of {tuple(p.shape)} is sparse, which data_parallel= cannot "
                        "average: pass sparse=False to that nn.Embedding"
                    )
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dense = p.grad.mul_(1 / self.size).contiguous()
                distributed.all_reduce(dense, group=self._group)
                if dense is not p.grad:
                    p.grad.copy_(dense)


def _can_be_written(buffer: torch.Tensor) -> bool:
    if buffer.layout != torch.strided or buffer.is_inference():
        return False
    expanded = any(size > 1 and step == 0 for size, step in zip(buffer.shape, buffer.stride(), strict=True))
    return not expanded
