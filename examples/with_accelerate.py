"""Hugging Face Accelerate under a budget: two lines more than without.

python examples/with_accelerate.py [BUDGET]
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

import vtensor

STEPS = 12


def main(budget: str) -> None:
    vtensor.enable(budget)  # before the model is made
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    config = GPT2Config(n_layer=6, n_embd=256, n_head=8, vocab_size=2000, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    texts = torch.randint(0, 2000, (2 * STEPS * 2, 128))
    loader = torch.utils.data.DataLoader(texts, batch_size=2)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for tokens in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
    print(vtensor.memory_summary())


if __name__ == "__main__":
    main(*sys.argv[1:] or ["64MiB"])
