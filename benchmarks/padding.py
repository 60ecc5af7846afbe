"""What chunks cost in memory on a small GPU (G2): recorded iterations at the sizes people train there.

Covers: padding (the rest of each tensor's last chunk) and unmanaged memory (tensors smaller than `min_size`), as shares
of what plain PyTorch needs at its peak: by chunk size where each tensor has chunks of its own, and as a session at half
of that peak has it, where what the optimizer keeps lies side by side (``vtensor/session/shelves.py``).
Leaves: what chunks cost in time (``gpu_check``). Sizes do not depend on the device: all is recorded on the processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lgm
from lgm.iteration.lifetimes import cover, lifespans
from vtensor.settings.config import chunk_for

from .record import Row, write
from .steps import MIB

CHUNKS = tuple(mib << 20 for mib in (2, 4, 8, 16))
CASES = {
    "ResNet-50, 224": ("resnet50", (8, 16, 32)),
    "BERT-base, 128": ("bert", (4, 8, 16)),
    "GPT-2 124M, 1024": ("gpt2", (1, 2, 4)),
    "LoRA, Llama 1B, 512": ("lora", (1,)),
}


def run() -> None:
    rows: list[Row] = []
    for title, (name, sizes) in CASES.items():
        for size in sizes:
            trace = recorded(name, size, budget=48 << 30, chunk=64 << 10, least=1)
            peak = int(live_bytes(trace, trace.tensor_bytes).max())
            row: Row = {"model": title, "batch": size, "peak (MiB)": round(peak / MIB)}
            for chunk in CHUNKS:
                padding, unmanaged = shares(trace, chunk)
                row[f"{chunk >> 20} MiB: padding"] = f"{padding:.1%}"
                row[f"{chunk >> 20} MiB: unmanaged"] = f"{unmanaged:.1%}"
            chunk = chunk_for("cuda", peak // 2)
            session = recorded(name, size, budget=peak // 2, chunk=chunk, least=chunk // 2)
            wanted = live_bytes(session, session.chunks * chunk).max() + float(session.meta["unmanaged_bytes"])
            row |= {"chunk at 50 % (MiB)": chunk >> 20, "both, apart": f"{sum(shares(trace, chunk)):.1%}"}
            row |= {"both, in a session": f"{wanted / peak - 1:.1%}", "shelves": session.meta["shelves"]}
            rows.append(row)
            print(row, flush=True)
    note = (
        "Padding and unmanaged memory at the peak, as shares of what plain PyTorch needs there (G2). In a session at "
        "half of that, what the optimizer keeps lies side by side."
    )
    write("padding", rows, note)


def recorded(name: str, size: int, *, budget: int, chunk: int, least: int) -> lgm.Trace:
    """The last of five steps, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        given = [name, size, path, budget, chunk, least]
        subprocess.run([sys.executable, "-m", "benchmarks.padding", *map(str, given)], check=True)
        return lgm.load_trace(path)


def live_bytes(trace: lgm.Trace, each: Any) -> Any:
    """[n] Sum of `each`, [m] bytes, over the tensors alive at every operation."""
    return cover(trace.operations, *lifespans(trace), each)


def shares(trace: lgm.Trace, chunk: int) -> tuple[float, float]:
    """Padding and unmanaged memory where the exact bytes are at their peak."""
    size = trace.tensor_bytes
    exact = live_bytes(trace, size)
    at = int(np.argmax(exact))
    managed = size >= chunk // 2
    padding = live_bytes(trace, np.where(managed, -size % chunk, 0))[at]
    unmanaged = live_bytes(trace, np.where(managed, 0, size))[at]
    return float(padding / exact[at]), float(unmanaged / exact[at])


def record(name: str, size: int, path: str, budget: int, chunk: int, least: int) -> None:
    """Five steps, the last one saved."""
    import torch

    import vtensor

    vtensor.enable(budget, device="cpu", chunk=chunk, min_size=least, policy="lru", link="64GB/s")
    vtensor.record()
    torch.manual_seed(0)
    model, batch = MODELS[name](size)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    model.train()
    for _ in range(5):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    vtensor.save_trace(path, model=name, batch=json.dumps({key: list(value.shape) for key, value in batch.items()}))


def _tokens(size: int, length: int, words: int) -> dict[str, Any]:
    import torch

    tokens = torch.randint(0, words, (size, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


def _resnet50(size: int) -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    images = {"pixel_values": torch.randn(size, 3, 224, 224), "labels": torch.zeros(size, dtype=torch.long)}
    return ResNetForImageClassification(ResNetConfig(num_labels=1000)), images


def _bert(size: int) -> tuple[Any, dict[str, Any]]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), _tokens(size, 128, BertConfig().vocab_size)


def _gpt2(size: int) -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), _tokens(size, 1024, GPT2Config().vocab_size)


def _lora(size: int) -> tuple[Any, dict[str, Any]]:
    """Llama 3.2 1B's shape in bf16, adapters on all linear layers of its blocks."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    return get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")), _tokens(size, 512, config.vocab_size)


MODELS: dict[str, Callable[[int], tuple[Any, dict[str, Any]]]] = {
    "resnet50": _resnet50, "bert": _bert, "gpt2": _gpt2, "lora": _lora,
}  # fmt: skip

if __name__ == "__main__":
    record(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
