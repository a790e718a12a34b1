"""transformers' GPT2LMHeadModel in a plain loop."""

import torch
from torch import nn

from benchmarks.clock import Clock
from benchmarks.job import Job
from benchmarks.peers.loop import train_plainly
from benchmarks.peers.transformers_model import gpt2


def train(job: Job, clock: Clock) -> None:
    """Runs the job's steps."""
    model = gpt2(job.workload)
    model.train()
    train_plainly(job, clock, model, call)


def call(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss; the model shifts the labels itself, so it is given the inputs."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss
