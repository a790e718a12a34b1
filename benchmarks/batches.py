"""The data: the same random tokens for all."""

import os
from collections.abc import Iterator

import torch

from benchmarks.job import Job


def rank() -> int:
    """Which of the job's processes this is."""
    return int(os.environ.get("RANK", "0"))


def batches(job: Job) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This process's inputs and labels of each step, int64 [b, s] each."""
    work, generator = job.workload, torch.Generator().manual_seed(1)
    share = work.batch // job.processes
    mine = slice(rank() * share, (rank() + 1) * share)
    for _ in range(job.steps):
        shape = (work.batch, work.sequence + 1)
        tokens = torch.randint(work.vocabulary, shape, generator=generator)[mine]
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
