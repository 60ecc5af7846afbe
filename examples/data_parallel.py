"""The same in several processes: each trains by its share of a batch, with a budget of its own.

    torchrun --nproc-per-node 2 examples/data_parallel.py

Gradients are averaged pack by pack, before the pack's update.
"""

from __future__ import annotations

import torch
from harmony import Model, device_of_this_process, loss_of
from torch import distributed

import vtensor


def main(steps: int = 3, microbatches: int = 4) -> None:
    device = device_of_this_process()
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = distributed.get_rank()
    with vtensor.enabled("60MiB", device=device):
        model = Model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        trainer = vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=microbatches, data_parallel=True)
        share = torch.Generator().manual_seed(rank)
        for _ in range(steps):
            loss = trainer.step(torch.randint(0, 256, (microbatches, 33), generator=share).to(device))
            mean = loss / distributed.get_world_size()
            distributed.all_reduce(mean)
        if rank == 0:
            print(f"loss {mean.item():.4f}; {vtensor.memory_stats()['held_bytes.peak'] >> 20} MiB held in each process")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
