"""The plain training loop around a PyTorch model."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.batches import batches
from benchmarks.clock import Clock
from benchmarks.job import Job

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def train_plainly(job: Job, clock: Clock, model: nn.Module, loss_of: Loss) -> None:
    """Fused AdamW, clipping, bf16 by autocast; DistributedDataParallel in several processes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    clock.begin(sum(parameter.numel() for parameter in model.parameters()))
    stepped = prepared(job, model)
    for tokens, labels in batches(job):
        with torch.autocast("cpu", torch.bfloat16, enabled=job.workload.dtype == "bf16"):
            loss = loss_of(stepped, tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.finished(loss.item())


def prepared(job: Job, model: nn.Module) -> nn.Module:
    """The model compiled and distributed as the job asks."""
    if job.contender.compiled:
        model.compile()
    if job.processes == 1:
        return model
    dist.init_process_group("gloo")
    return DistributedDataParallel(model, gradient_as_bucket_view=True)
