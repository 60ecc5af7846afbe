"""The four models, at a GPU's sizes or tiny."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["BLOCKS", "Make", "models"]

Make = Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]

# The class of the blocks each is made of: what people checkpoint.
BLOCKS = {"resnet50": "ResNetBottleNeckLayer", "gpt2": "GPT2Block", "bert": "BertLayer", "vit": "ViTLayer"}


def models(small: bool) -> dict[str, Make]:
    """Each makes itself and a batch."""
    import transformers as hf

    def resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        batch, pixels = (2, 64) if small else (96, 224)
        inputs = {"pixel_values": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(0, 2, (batch,))}
        return hf.ResNetForImageClassification(hf.ResNetConfig()), inputs

    def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        size = {"n_layer": 2, "n_embd": 64, "n_head": 2} if small else {}
        tokens = torch.randint(0, 50257, (1, 64) if small else (6, 1024))
        return hf.GPT2LMHeadModel(hf.GPT2Config(**size)), {"input_ids": tokens, "labels": tokens}

    def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        size = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
        tokens = torch.randint(0, 30522, (2, 32) if small else (48, 256))
        return hf.BertForMaskedLM(hf.BertConfig(**size)), {"input_ids": tokens, "labels": tokens}

    def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        size = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
        batch = 2 if small else 96
        inputs = {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 2, (batch,))}
        return hf.ViTForImageClassification(hf.ViTConfig(**size)), inputs

    return {"resnet50": resnet, "gpt2": gpt2, "bert": bert, "vit": vit}
