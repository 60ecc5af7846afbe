"""A model spread over processes: packs of layers wrapped around them, each with a budget of its own.

    torchrun --nproc-per-node 2 examples/pipeline.py

Weights, gradients and optimizer states are nearly three times as large as both budgets together. The loss is computed
in the first process; afterwards all processes have all weights.
"""

from __future__ import annotations

import torch
from harmony import Model, device_of_this_process, loss_of
from torch import distributed

import vtensor


def main(steps: int = 3, microbatches: int = 4) -> None:
    device = device_of_this_process()
    distributed.init_process_group("gloo")
    first = distributed.get_rank() == 0
    with vtensor.enabled("40MiB", device=device):
        model = Model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        trainer = vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=microbatches, pipeline=True)
        for _ in range(steps):
            batch = torch.randint(0, 256, (microbatches, 33)).to(device) if first else None
            loss = trainer.step(batch)
        trainer.gather()  # to save or to evaluate the whole model
        if first:
            print(f"loss {loss.item():.4f}; {vtensor.memory_stats()['held_bytes.peak'] >> 20} MiB held in each process")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
