"""The same training by the loops of libraries: transformers, peft, TRL, Accelerate, Lightning.

Covers: each as its users write it; each makes `STEPS` optimizer steps.
Leaves: the model and its batches (``loops``).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .loops import BATCH, LENGTH, STEPS, SYMBOLS, WARM, examples, halves, loader, model, texts, train


def _trainer(net: nn.Module, folder: str | None = None, resume: bool = False, **options: Any) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return _trainer(net, made, **options)
    settings = {"max_steps": STEPS, "save_strategy": "no", "per_device_train_batch_size": BATCH, **options}
    arguments = TrainingArguments(output_dir=folder, report_to="none", disable_tqdm=True, use_cpu=True, **settings)
    trained = Trainer(net, arguments, train_dataset=examples(), eval_dataset=examples()[:BATCH])
    trained.train(resume_from_checkpoint=resume)
    return net


def trainer() -> nn.Module:
    return _trainer(model())


def trainer_accumulates() -> nn.Module:
    return _trainer(model(), gradient_accumulation_steps=2, per_device_train_batch_size=BATCH // 2)


def trainer_recomputes() -> nn.Module:
    return _trainer(model(), gradient_checkpointing=True)


def trainer_evaluates() -> nn.Module:
    return _trainer(model(), eval_strategy="steps", eval_steps=8)


def trainer_resumes() -> nn.Module:
    """Half of it by another trainer, of another model, that goes on from a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        _trainer(model(), folder, max_steps=WARM, save_strategy="steps", save_steps=WARM)
        return _trainer(model(), folder, resume=True)


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


def _lightning(epochs: int = 1, two: bool = False, resume: Any = None, **options: Any) -> nn.Module:
    import lightning as library

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.automatic_optimization = not two

        def training_step(self, batch: Any, _index: int) -> Any:
            if self.automatic_optimization:
                loss = self.net(**batch).loss
                self.log("loss", loss)
                return loss
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.zero_grad()
                self.manual_backward(self.net(**batch).loss)
                optimizer.step()
            return None

        def validation_step(self, batch: Any, _index: int) -> None:
            self.log("validation", self.net(**batch).loss)

        def configure_optimizers(self) -> Any:
            return halves(self.net) if two else torch.optim.AdamW(self.net.parameters(), lr=1e-4)

    module = Module()
    settings: dict[str, Any] = {
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
        "max_steps": STEPS, "max_epochs": epochs, "limit_train_batches": STEPS // epochs, "limit_val_batches": 0,
        "accelerator": "cpu", **options,
    }  # fmt: skip
    trained = library.Trainer(**settings)
    trained.fit(module, loader(), loader(), ckpt_path=resume)
    return module


def lightning() -> nn.Module:
    return _lightning()


def lightning_validates() -> nn.Module:
    return _lightning(val_check_interval=8, limit_val_batches=1)


def lightning_averages_weights() -> nn.Module:
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return _lightning(epochs=3, callbacks=[StochasticWeightAveraging(swa_lrs=1e-4, swa_epoch_start=1)])


def lightning_two_optimizers() -> nn.Module:
    return _lightning(two=True)


def lightning_resumes() -> nn.Module:
    """Half of it by another trainer, of another module, that goes on from a checkpoint."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(folder, save_last=True)
        _lightning(epochs=2, max_epochs=1, callbacks=[keep], enable_checkpointing=True, default_root_dir=folder)
        return _lightning(epochs=2, max_epochs=4, resume=Path(folder) / "last.ckpt")  # the epoch it ends in is a step
