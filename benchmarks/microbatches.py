"""What V2 and V6 train: a GPT-2 type by microbatches, and the ordinary loop over them."""

from __future__ import annotations

import torch
from torch import nn


def language_model(layers: int, width: int, vocabulary: int, length: int) -> nn.Module:
    """Without dropout: its random numbers depend on the order of work."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=8, vocab_size=vocabulary, n_positions=length, use_cache=False,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of a batch of tokens."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def ordinary_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """One microbatch after the other."""
    total = torch.zeros(())
    for part in tokens.tensor_split(count):
        value = loss_of(model, part) / count
        value.backward()  # type: ignore[no-untyped-call]
        total += value.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total
