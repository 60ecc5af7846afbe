"""Small models of the kinds that are trained in packs, each with a batch and a loss; and the ordinary loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from vtensor.demo.workloads import UNet

Made = tuple[nn.Module, Callable[[], Any], Callable[[nn.Module, Any], torch.Tensor]]


def _tokens() -> torch.Tensor:
    return torch.randint(1, 300, (8, 16))


def _language(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, 32, 32), torch.randint(0, 2, (8,))


def _classes(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]).logits, batch[1])


def gpt2(dropout: float = 0.0) -> Made:
    config = transformers.GPT2Config(
        n_layer=4, n_embd=64, n_head=4, vocab_size=300, n_positions=16, use_cache=False, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), _tokens, _language


def bert() -> Made:
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, vocab_size=300,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config), _tokens, _language


def llama() -> Made:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), _tokens, _language


def t5() -> Made:
    """Encoder and decoder: every decoder layer reads what the encoder made."""
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4, vocab_size=300, dropout_rate=0.0,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), _tokens, _language


def resnet() -> Made:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], layer_type="basic"
    )
    return transformers.ResNetForImageClassification(config), _images, _classes


def vit() -> Made:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), _images, _classes


def unet() -> Made:
    """Skips, running statistics, and layers whose output the next one overwrites."""
    return UNet(width=8, depth=3), lambda: torch.rand(8, 3, 32, 32), lambda model, x: model(x, x).loss


def albert() -> Made:
    """One layer, used many times."""
    config = transformers.AlbertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, vocab_size=300,
        embedding_size=32,
    )  # fmt: skip
    return transformers.AlbertForMaskedLM(config), _tokens, _language


class Experts(nn.Module):
    """Layers of which a microbatch uses some, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.layers[1].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k, layer in enumerate(self.layers):
            if k != 3 or x.sum() > 0:
                x = torch.tanh(layer(x))
        return x


def experts() -> Made:
    return Experts(), lambda: torch.randn(8, 32), lambda model, x: model(x).square().mean()


class OddLayer(nn.Module):
    """Keywords, results in a mapping of which one is unused, dropout, a parameter of others, a buffer made late."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(16, 16), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None, **_: Any) -> dict[str, Any]:
        y = self.drop(torch.tanh(self.inner(x)))
        if "bias" not in self._buffers:
            self.register_buffer("bias", torch.arange(16) / 16)
        y = y + self.bias
        return {"y": y if scale is None else y * scale, "unused": y.sum(), "given": x, "none": None}


class Odd(nn.Module):
    """What else programs do around their layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([OddLayer() for _ in range(6)])
        nn.utils.parametrizations.weight_norm(self.layers[1].inner)
        self.layers[2] = nn.utils.weight_norm(nn.Linear(16, 16))
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("mask", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layers[3].eval()
        for k, layer in enumerate(self.layers):
            x = x + 0.1 * torch.randn(x.shape)
            found = layer(x, **({} if k == 2 else {"scale": self.scale if k % 2 else None, "name": "any"}))
            x = found if k == 2 else found["y"]
            x[:, 0] = 0
            with torch.inference_mode():
                x.argmax()
            x = x.relu_().t().contiguous().t() if k == 4 else x
        self.mask = torch.arange(16) / 8 if self.mask is None else self.mask
        return x * self.mask


def odd() -> Made:
    return Odd(), lambda: torch.randn(8, 16), lambda model, batch: model(batch).pow(2).mean()


MODELS: dict[str, Callable[[], Made]] = {
    name.__name__: name for name in (gpt2, bert, llama, t5, resnet, vit, unet, albert, experts)
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


def accumulate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[nn.Module, Any], torch.Tensor],
    parts: list[Any],
    seeds: list[int] | None = None,
) -> torch.Tensor:
    """One step of the ordinary loop; with `seeds`, microbatches draw what they would by turns."""
    total = None
    for k, part in enumerate(parts):
        if k and seeds is not None:
            torch.manual_seed(seeds[k - 1])
        value = loss(model, part) / len(parts)
        value.backward()  # type: ignore[no-untyped-call]
        total = value.detach().clone() if total is None else total + value.detach()
    optimizer.step()
    optimizer.zero_grad()
    assert total is not None
    return total


def threads_left() -> list[str]:
    """Of microbatches."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("microbatch")]
