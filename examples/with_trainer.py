"""transformers' Trainer under a budget: one line before the model is made; another puts the figures into its log.

python examples/with_trainer.py [BUDGET]
"""

from __future__ import annotations

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import vtensor
from vtensor.callbacks.transformers import add_to

STEPS = 12


def main(budget: str) -> None:
    vtensor.enable(budget)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=256, n_head=8, vocab_size=2000, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    texts = [{"input_ids": text, "labels": text} for text in torch.randint(0, 2000, (4 * STEPS, 128))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            logging_steps=4,
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(model, arguments, train_dataset=texts)
        add_to(trainer)
        trainer.train()
    print(vtensor.memory_summary())


if __name__ == "__main__":
    main(*sys.argv[1:] or ["64MiB"])
