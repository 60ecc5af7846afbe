"""Models from their real configs, on data that ships inside packages: nothing is downloaded.

The convolutional network is ResNet-50 on scikit-learn's digits, enlarged; the language model is of GPT-2's type, on
the text of Python's own documentation (the topics ``help()`` prints), byte by byte. BERT-base reads the same text; the
benchmarks use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["WORKLOADS", "Workload"]

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model and an endless supply of batches, the same for the same seed."""

    title: str
    make: Callable[[], tuple[nn.Module, Callable[[int], Batch]]]


def _resnet50() -> tuple[nn.Module, Callable[[int], Batch]]:
    from sklearn.datasets import load_digits
    from transformers import ResNetConfig, ResNetForImageClassification

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    model = ResNetForImageClassification(ResNetConfig(num_labels=10))

    def batch(step: int, size: int = 8) -> Batch:
        picked = torch.arange(step * size, (step + 1) * size) % len(images)
        enlarged = nn.functional.interpolate(images[picked][:, None], size=(192, 192), mode="bilinear")
        return {"pixel_values": enlarged.expand(-1, 3, -1, -1).contiguous(), "labels": labels[picked]}

    return model, batch


def _text(size: int, length: int) -> Callable[[int], Batch]:
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def batch(step: int) -> Batch:
        start = step * size * length % (len(tokens) - size * length)
        picked = tokens[start : start + size * length].reshape(size, length)
        return {"input_ids": picked, "labels": picked}

    return batch


def _gpt2() -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=256, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config), _text(size=4, length=384)


def _bert_base() -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), _text(size=8, length=128)


WORKLOADS = {
    "resnet50": Workload("ResNet-50", _resnet50),
    "gpt2": Workload("GPT-2 type", _gpt2),
    "bert": Workload("BERT-base", _bert_base),
}
