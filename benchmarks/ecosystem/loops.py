"""The programs of torch alone: one GPT-2 type, one set of tokens, AdamW, trained by loops that anyone writes.

Covers: the model, its batches, bare loops, ``torch.compile``, DDP and FSDP2; each makes `STEPS` optimizer steps.
Leaves: the loops of libraries (``libraries``), which is held against which (``table``), measuring them (``__main__``).
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed, nn

STEPS = 24
WARM = 12  # steps; a plan is there by then
BATCH, LENGTH, SYMBOLS = 4, 128, 2000


def model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    made: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            n_layer=6, n_embd=256, n_head=8, vocab_size=SYMBOLS, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
        )
    )
    return made


def texts(count: int = STEPS * BATCH, shortest: int = LENGTH) -> list[list[int]]:
    """Tokens of so many texts, each of a length of its own if `shortest` is less than all of it."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(shortest, LENGTH + 1, (count,), generator=draw).tolist()
    return [torch.randint(0, SYMBOLS, (length,), generator=draw).tolist() for length in lengths]


def examples() -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": torch.tensor(text), "labels": torch.tensor(text)} for text in texts()]


def batches() -> list[dict[str, torch.Tensor]]:
    return list(loader())


def loader() -> Any:
    return torch.utils.data.DataLoader(examples(), batch_size=BATCH)  # type: ignore[arg-type]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """To the longest of the batch, as TRL's collator does."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.where(mask.bool(), -100)}


def train(net: Any, wrapped: Any = None, optimizer: Any = None, given: Any = None, clipping: bool = False) -> nn.Module:
    """The bare loop."""
    called = net if wrapped is None else wrapped
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-4)
    for batch in given or batches():
        optimizer.zero_grad()
        called(**batch).loss.backward()
        if clipping:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    made: nn.Module = net
    return made


def bare() -> nn.Module:
    return train(model())


def bare_clipping() -> nn.Module:
    """As Trainer does by default: all gradients are read, and written, before the first is used."""
    return train(model(), clipping=True)


def bare_accumulating() -> nn.Module:
    """As Trainer does: two microbatches to a step, each of half the batch."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for batch in batches():
        optimizer.zero_grad()
        for half in (0, BATCH // 2):
            part = {name: tensor[half : half + BATCH // 2] for name, tensor in batch.items()}
            (net(**part).loss / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net


def bare_recomputing() -> nn.Module:
    net: Any = model()
    net.gradient_checkpointing_enable({"use_reentrant": False})
    return train(net, clipping=True)


def halves(net: nn.Module) -> list[torch.optim.Optimizer]:
    """An optimizer for each half of the parameters."""
    parameters = list(net.parameters())
    middle = len(parameters) // 2
    return [torch.optim.AdamW(half, lr=1e-4) for half in (parameters[:middle], parameters[middle:])]


def bare_two_optimizers() -> nn.Module:
    """In turns, each with a forward and a backward pass of its own."""
    net = model()
    optimizers = halves(net)
    for batch in batches()[: STEPS // 2]:
        for optimizer in optimizers:
            optimizer.zero_grad()
            net(**batch).loss.backward()
            optimizer.step()
    return net


def bare_lengths() -> nn.Module:
    rows = texts(shortest=LENGTH // 2)
    return train(model(), given=[padded(rows[k : k + BATCH]) for k in range(0, len(rows), BATCH)], clipping=True)


def compiled() -> nn.Module:
    net = model()
    return train(net, torch.compile(net))


def compiled_optimizer() -> nn.Module:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]
    return train(net, torch.compile(net), optimizer)


def replicated() -> nn.Module:
    """DDP; each process has all of the batch, so that a step is as dear as the bare one."""
    distributed.init_process_group("gloo")
    net = model()
    return train(net, nn.parallel.DistributedDataParallel(net))


def sharded() -> nn.Module:
    """FSDP2."""
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    mesh = distributed.device_mesh.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    net: Any = model()
    for part in [*net.transformer.h, net]:
        fully_shard(part, mesh=mesh)
    return train(net)
