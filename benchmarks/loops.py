"""L3: loops that neither train nor tell where an iteration ends: inference, generation, evaluations between epochs.

And what such an inference would take on a GPU, by arithmetic (L3m).
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lgm
import vtensor
from lgm.fitting import GPUS, on_gpu
from lgm.iteration import analyze_lifetimes
from vtensor.demo.worker import digest

from .modelled import COSTS, replay
from .record import Row, write

_WARM = 6
_TURNS = 14
Turn = Callable[[int], Any]  # what a turn makes


def _inference() -> Turn:
    """Batches of eight times 128 tokens through BERT-base."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).eval()
    tokens = torch.randint(0, 30000, (_TURNS, 8, 128))
    return torch.no_grad()(lambda turn: model(tokens[turn]).last_hidden_state)


def _generation() -> Turn:
    """Eight tokens each by GPT-2 124M (8,000 words), four samples at a time."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8000, bos_token_id=0, eos_token_id=None)).eval()
    tokens = torch.randint(0, 8000, (_TURNS, 4, 64))
    return lambda turn: model.generate(tokens[turn], max_new_tokens=8, do_sample=False, pad_token_id=0)


def _epochs() -> Turn:
    """Two steps of a Transformer's training, then an evaluation of sixteen batches."""
    layers = [nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True) for _ in range(8)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def turn(number: int) -> list[torch.Tensor]:
        made = []
        model.train()
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 128, 384)).square().mean()
            loss.backward()
            optimizer.step()
            made.append(loss.detach())
        model.eval()
        with torch.no_grad():
            made += [model(torch.randn(4, 128, 384)).square().mean() for _ in range(16)]
        return made

    return turn


_LOOPS = {"BERT-base, inference": _inference, "GPT-2 124M, generation": _generation, "training and evaluation": _epochs}


def _serve(orders: Connection, name: str, options: dict[str, Any] | None) -> None:
    """A turn for each order."""
    if options is not None:
        vtensor.enable(device="cpu", **options)
    torch.manual_seed(0)
    turn, made = _LOOPS[name](), []
    while (number := orders.recv()) is not None:
        begun = time.perf_counter()
        made.append(turn(number))
        orders.send(time.perf_counter() - begun)
    orders.send((digest(made), {} if options is None else vtensor.memory_stats()))


class _Side:
    def __init__(self, name: str, options: dict[str, Any] | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, options), daemon=True)
        self._process.start()
        self.seconds: list[float] = []

    def turn(self, number: int) -> None:
        self._orders.send(number)
        self.seconds.append(self._orders.recv())

    def finish(self) -> tuple[str, dict[str, Any]]:
        self._orders.send(None)
        final: tuple[str, dict[str, Any]] = self._orders.recv()
        self._process.join()
        return final


def _peak(name: str) -> int:
    side = _Side(name, {"budget": 0.6})
    side.turn(0)
    return int(side.finish()[1]["wanted_bytes.peak"])


def run(link: float) -> None:
    """In turns, at half of the peak, over that link and where copies cost nothing but the threads' time."""
    rows: list[Row] = []
    for name in _LOOPS:
        half = {"budget": _peak(name) // 2}
        for speed, linked in (("none", {}), (f"{link / 1e9:.2f} GB/s", {"link": link})):
            plan = {**half, **linked}
            ways = {"plain": None, "plan": plan, "lru": {**plan, "policy": "lru"}}
            sides = {way: _Side(name, options) for way, options in ways.items()}
            for number in range(_TURNS):
                for side in list(sides.values())[:: 1 if number % 2 else -1]:
                    side.turn(number)
            finals = {way: side.finish() for way, side in sides.items()}
            plain, planned, lru = (sum(side.seconds[_WARM:]) for side in sides.values())
            stats = finals["plan"][1]
            rows.append({
                "loop": name, "link": speed, "plan / plain": round(planned / plain, 3),
                "lru / plain": round(lru / plain, 3),
                "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
                "in, of lru's": round(stats["moved_in_bytes"] / finals["lru"][1]["moved_in_bytes"], 3),
                "identical": "yes" if len({bits for bits, _ in finals.values()}) == 1 else "NO",
            })  # fmt: skip
            print(rows[-1], flush=True)
    write(
        "loops",
        rows,
        f"Loops of which nobody tells where an iteration ends (L3), half of the peak, sums of turns after the "
        f"{_WARM}th: a batch of inference, a generation of 8 tokens, 2 steps of training and 16 evaluated batches.",
    )


def _record(path: str) -> None:
    """A batch of the inference."""
    vtensor.enable(0.6, device="cpu")
    vtensor.record()
    turn = _inference()
    for number in range(4):
        turn(number)
        vtensor.step()
    vtensor.save_trace(path)


def modelled() -> None:
    """BERT-base's inference in bf16, batches of 8, 32 and 128 samples, on modelled GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(target=_record, args=(path := f"{folder}/trace.npz",))
        process.start()
        process.join()
        recorded = lgm.load_trace(Path(path))
    rows: list[Row] = []
    for gpu in ("rtx3060-laptop", "h100"):
        for times in (1, 4, 16):
            trace, speed = on_gpu(recorded, GPUS[gpu], "bf16", times, chunk_bytes=2 << 20), GPUS[gpu].link
            peak = analyze_lifetimes(trace).peak
            plain = replay(trace, 4 * peak, speed, COSTS, plan=False).seconds
            for share in (0.75, 0.5):
                lru = replay(trace, int(peak * share), speed, COSTS, plan=False)
                plan = replay(trace, int(peak * share), speed, COSTS, plan=True, recompute="auto")
                rows.append({
                    "gpu": GPUS[gpu].title, "samples": 8 * times, "peak (MiB)": 2 * peak, "budget": f"{share:.0%}",
                    "batch (ms)": round(plain * 1e3, 1), "lru / plain": round(lru.seconds / plain, 2),
                    "plan / plain": round(plan.seconds / plain, 2),
                    "predicted / plain": round(plan.predicted / plain, 2),
                })  # fmt: skip
                print(rows[-1], flush=True)
    write("loops_modelled", rows, "BERT-base's inference in bf16 on modelled GPUs (L3m): by arithmetic, no clock.")
