"""A model whose weights, gradients and optimizer states are three times as large as the budget, on one device.

    python examples/harmony.py

Prints what a step reads back from host memory in the ordinary loop over microbatches and in the order of packs, and
that the losses are the same to the last bit.
"""

from __future__ import annotations

import os

import torch
from torch import nn

import vtensor

MICROBATCHES = 8


class Model(nn.Module):
    """Any module will do; its layers are found in its lists and sequences."""

    def __init__(self, layers: int = 8, width: int = 384) -> None:
        super().__init__()
        self.inputs = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.outputs = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.inputs(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.outputs(hidden)


def device_of_this_process() -> str:
    """A GPU of its own, where torchrun began no more processes than there are; else the processor."""
    if torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        return "cpu"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cuda"


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(woven: bool, steps: int = 3) -> list[float]:
    device = device_of_this_process()
    torch.manual_seed(0)
    with vtensor.enabled("80MiB", device=device):
        model = Model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        trainer = vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=MICROBATCHES)
        losses = []
        for _ in range(steps):
            batch = torch.randint(0, 256, (MICROBATCHES, 33)).to(device)
            before = vtensor.memory_stats()["moved_in_bytes"]
            if woven:
                losses.append(trainer.step(batch).item())
            else:
                total = torch.zeros((), device=device)
                for microbatch in batch.tensor_split(MICROBATCHES):
                    loss = loss_of(model, microbatch) / MICROBATCHES
                    loss.backward()
                    total += loss.detach()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(total.item())
        read = vtensor.memory_stats()["moved_in_bytes"] - before
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        order = f"{len(trainer.packs)} packs" if woven else "the ordinary loop"
        print(f"{order:>18}: {read / weights:5.1f} times the weights ({weights >> 20} MiB) read back in a step")
    return losses


if __name__ == "__main__":
    ordinary, packs = train(woven=False), train(woven=True)
    print("losses", packs, "- the same bits" if packs == ordinary else f"- but {ordinary} in the ordinary loop")
