"""Models from their real configs, on data that ships inside packages: nothing is downloaded.

Image models (ResNet-50, MobileNetV2, ViT-B, a U-Net) see scikit-learn's digits, enlarged; language models (GPT-2's
type, BERT-base) the text of Python's own documentation (the topics ``help()`` prints), byte by byte. The demo trains
the first of each kind; the benchmarks use all, and larger batches (``"resnet50*2"``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["WORKLOADS", "Workload", "workload"]

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model and an endless supply of batches, the same for the same seed."""

    title: str
    make: Callable[[int], tuple[nn.Module, Callable[[int], Batch]]]
    """With batches so many times as large."""


def _images(size: int, pixels: int) -> Callable[[int], Batch]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)

    def batch(step: int) -> Batch:
        picked = torch.arange(step * size, (step + 1) * size) % len(images)
        enlarged = nn.functional.interpolate(images[picked][:, None], size=(pixels, pixels), mode="bilinear")
        return {"pixel_values": enlarged.expand(-1, 3, -1, -1).contiguous(), "labels": labels[picked]}

    return batch


def _resnet50(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=10)), _images(size=8 * times, pixels=192)


def _resnet101(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(depths=[3, 4, 23, 3], num_labels=10)
    return ResNetForImageClassification(config), _images(size=8 * times, pixels=192)


def _text(size: int, length: int, least: int = 0) -> Callable[[int], Batch]:
    """Batches of one length; with `least`, each of another, at random from it to `length`."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def batch(step: int) -> Batch:
        start = step * size * length % (len(tokens) - size * length)
        picked = tokens[start : start + size * length].reshape(size, length)
        if least:
            picked = picked[:, : random.Random(step).randint(least, length)].contiguous()
        return {"input_ids": picked, "labels": picked}

    return batch


def _gpt2(times: int, least: int = 0) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=256, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config), _text(4 * times, 384, least)


def _bert_base(times: int, least: int = 0) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), _text(8 * times, 128, least)


def _mixtral(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_local_experts": 32}
    config = MixtralConfig(vocab_size=256, num_attention_heads=4, num_key_value_heads=2, **shape)
    return MixtralForCausalLM(config), _text(times, 40)


def _opt(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import OPTConfig, OPTForCausalLM

    shape = {"hidden_size": 512, "word_embed_proj_dim": 512, "ffn_dim": 2048, "num_hidden_layers": 8}
    config = OPTConfig(vocab_size=256, num_attention_heads=8, layerdrop=0.1, **shape)
    return OPTForCausalLM(config), _text(4 * times, 256)


def _mobilenet_v2(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=10)), _images(size=12 * times, pixels=192)


def _vit_base(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=10)), _images(size=4 * times, pixels=224)


class _Loss:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class UNet(nn.Module):
    """Encoder and decoder with skip connections (Ronneberger et al., 2015); it learns to sharpen blurred images."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        widths = [width << k for k in range(depth)]
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(self.block(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, 3, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        layers = []
        for a in (inputs, outputs):
            layers += [nn.Conv2d(a, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> _Loss:
        del labels
        x = nn.functional.avg_pool2d(pixel_values, 5, stride=1, padding=2)
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(x if not skips else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips[:-1]), strict=True):
            x = merge(torch.cat([up(x), skip], dim=1))
        return _Loss(nn.functional.mse_loss(self.last(x), pixel_values))


def _unet(times: int) -> tuple[nn.Module, Callable[[int], Batch]]:
    return UNet(), _images(size=4 * times, pixels=192)


WORKLOADS = {
    "resnet50": Workload("ResNet-50", _resnet50),
    "mobilenet_v2": Workload("MobileNetV2", _mobilenet_v2),
    "bert": Workload("BERT-base", _bert_base),
    "gpt2": Workload("GPT-2 type", _gpt2),
    "vit": Workload("ViT-B", _vit_base),
    "unet": Workload("U-Net", _unet),
}
_OTHERS = {
    "resnet101": Workload("ResNet-101", _resnet101),
    "gpt2_lengths": Workload("GPT-2 type, lengths from 128 to 384", lambda times: _gpt2(times, 128)),
    "bert_lengths": Workload("BERT-base, lengths from 32 to 128", lambda times: _bert_base(times, 32)),
    "experts": Workload("Mixtral's type, 32 experts, of which other ones have no tokens in each step", _mixtral),
    "layerdrop": Workload("OPT's type, a tenth of the layers left out at random", _opt),
}


def workload(name: str) -> tuple[nn.Module, Callable[[int], Batch]]:
    """A model and its batches, by name; ``"resnet50*2"`` for batches twice as large."""
    name, _, times = name.partition("*")
    return {**WORKLOADS, **_OTHERS}[name].make(int(times or 1))
