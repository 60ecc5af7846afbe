"""The programs: one GPT-2 type, one set of tokens, AdamW, trained by the loop of each library.

Covers: the loops; each returns when it has made `STEPS` optimizer steps.
Leaves: measuring them (``__main__``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn

STEPS = 24
WARM = 12  # steps; a plan is there by then
BATCH, LENGTH, SYMBOLS = 4, 128, 2000

Loop = Callable[[], nn.Module]


def model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    made: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            n_layer=6, n_embd=256, n_head=8, vocab_size=SYMBOLS, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
        )
    )
    return made


def texts(count: int = STEPS * BATCH, shortest: int = LENGTH) -> list[list[int]]:
    """Tokens of so many texts, each of a length of its own if `shortest` is less than all of it."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(shortest, LENGTH + 1, (count,), generator=draw).tolist()
    return [torch.randint(0, SYMBOLS, (length,), generator=draw).tolist() for length in lengths]


def examples() -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": torch.tensor(text), "labels": torch.tensor(text)} for text in texts()]


def batches() -> list[dict[str, torch.Tensor]]:
    return list(loader())


def loader() -> Any:
    return torch.utils.data.DataLoader(examples(), batch_size=BATCH)  # type: ignore[arg-type]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """To the longest of the batch, as TRL's collator does."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.where(mask.bool(), -100)}


def train(net: Any, wrapped: Any = None, optimizer: Any = None, given: Any = None, clipping: bool = False) -> nn.Module:
    """The bare loop."""
    called = net if wrapped is None else wrapped
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-4)
    for batch in given or batches():
        optimizer.zero_grad()
        called(**batch).loss.backward()
        if clipping:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    made: nn.Module = net
    return made


def bare() -> nn.Module:
    return train(model())


def bare_clipping() -> nn.Module:
    """As Trainer does by default: all gradients are read, and written, before the first is used."""
    return train(model(), clipping=True)


def bare_lengths() -> nn.Module:
    rows = texts(shortest=LENGTH // 2)
    return train(model(), given=[padded(rows[k : k + BATCH]) for k in range(0, len(rows), BATCH)], clipping=True)


def _trainer(net: nn.Module, **options: Any) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True, max_steps=STEPS, save_strategy="no",
            per_device_train_batch_size=BATCH, **options,
        )  # fmt: skip
        Trainer(net, arguments, train_dataset=examples(), eval_dataset=examples()[:BATCH]).train()
    return net


def trainer() -> nn.Module:
    return _trainer(model())


def trainer_evaluates() -> nn.Module:
    return _trainer(model(), eval_strategy="steps", eval_steps=8)


def _adapted() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    made: nn.Module = peft.get_peft_model(model(), config)
    return made


def bare_lora() -> nn.Module:
    net = _adapted()
    return train(net, optimizer=torch.optim.AdamW([p for p in net.parameters() if p.requires_grad]), clipping=True)


def lora() -> nn.Module:
    return _trainer(_adapted())


def trl_lengths() -> nn.Module:
    import datasets
    from trl import SFTConfig, SFTTrainer

    net = model()
    rows = datasets.Dataset.from_dict({"input_ids": texts(shortest=LENGTH // 2)})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True, max_steps=STEPS, save_strategy="no",
            per_device_train_batch_size=BATCH, max_length=LENGTH, bf16=False, gradient_checkpointing=False,
            eos_token="<|end|>", pad_token="<|pad|>",
        )  # fmt: skip
        SFTTrainer(net, args=arguments, train_dataset=rows, processing_class=words(SYMBOLS)).train()
    return net


def words(count: int) -> Any:
    """A tokenizer made here, as none can be downloaded; texts are tokens already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    known = {"<|pad|>": 0, "<|end|>": 1, **{str(k): k for k in range(2, count)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(known, unk_token="<|end|>")), eos_token="<|end|>", pad_token="<|pad|>"
    )


def accelerate() -> nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    net, optimizer, given = accelerator.prepare(net, optimizer, loader())
    for batch in given:
        optimizer.zero_grad()
        accelerator.backward(net(**batch).loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    made: nn.Module = net
    return made


def lightning() -> nn.Module:
    import lightning as library

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, _index: int) -> Any:
            loss = self.net(**batch).loss
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    module = Module()
    trainer = library.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, loader())
    return module


def compiled() -> nn.Module:
    net = model()
    return train(net, torch.compile(net))


def compiled_optimizer() -> nn.Module:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]
    return train(net, torch.compile(net), optimizer)


def replicated() -> nn.Module:
    """DDP; each process has all of the batch, so that a step is as dear as the bare one."""
    distributed.init_process_group("gloo")
    net = model()
    return train(net, nn.parallel.DistributedDataParallel(net))


def sharded() -> nn.Module:
    """FSDP2."""
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    mesh = distributed.device_mesh.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    net: Any = model()
    for part in [*net.transformer.h, net]:
        fully_shard(part, mesh=mesh)
    return train(net)


# The loop, how many processes it takes, and which bare one it is held against.
LOOPS: dict[str, tuple[Loop, int, str]] = {
    "bare": (bare, 1, ""),
    "bare, clipping": (bare_clipping, 1, ""),
    "trainer": (trainer, 1, "bare, clipping"),
    "trainer, evaluation": (trainer_evaluates, 1, "bare, clipping"),
    "accelerate": (accelerate, 1, "bare, clipping"),
    "lightning": (lightning, 1, "bare"),
    "bare, LoRA": (bare_lora, 1, ""),
    "peft, LoRA": (lora, 1, "bare, LoRA"),
    "torch.compile(model)": (compiled, 1, "bare"),
    "torch.compile(model, optimizer)": (compiled_optimizer, 1, "bare"),
    "DDP, 2 processes": (replicated, 2, "bare"),
    "FSDP2, 2 processes": (sharded, 2, "bare"),
    "bare, lengths": (bare_lengths, 1, ""),
    "TRL, lengths": (trl_lengths, 1, "bare, lengths"),
}
