"""transformers' GPT2LMHeadModel in transformers' Trainer."""

import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from benchmarks.batches import batches
from benchmarks.clock import Clock
from benchmarks.job import Job
from benchmarks.peers.transformers_model import gpt2


def train(job: Job, clock: Clock) -> None:
    """Runs the job's steps."""
    model = gpt2(job.workload)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=arguments(job, folder),
            train_dataset=Sequences(job),
            callbacks=[StepTimes(clock, sum(p.numel() for p in model.parameters()))],
        )
        trainer.train()


def arguments(job: Job, folder: str) -> TrainingArguments:
    """The plain loop's settings in the Trainer's words."""
    return TrainingArguments(
        output_dir=folder,
        max_steps=job.steps,
        per_device_train_batch_size=job.workload.batch,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=job.workload.dtype == "bf16",
        torch_compile=job.contender.compiled,
        use_cpu=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """The job's sequences, one by one."""

    def __init__(self, job: Job) -> None:
        self.rows = torch.cat([tokens for tokens, _ in batches(job)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class StepTimes(TrainerCallback):
    """Tells the clock of each step, once its loss is logged."""

    def __init__(self, clock: Clock, parameters: int) -> None:
        self.clock, self.parameters = clock, parameters

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.clock.begin(self.parameters)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **other: Any
    ) -> None:
        if "loss" in other["logs"]:
            self.clock.finished(float(other["logs"]["loss"]))
