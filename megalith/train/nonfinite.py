"""Finding where a NaN or an infinity came from.

A step's microbatches are still at hand and its weights unchanged, so the step is run again, rank
by rank and without the exchange that would spread the value to everyone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from megalith.comm.collectives import broadcast_text, first_rank_with
from megalith.comm.mesh import Mesh
from megalith.data.microbatch import Microbatch
from megalith.models.gpt import GPT
from megalith.optim.buckets import GradientBuckets
from megalith.train.step import forward_loss


def locate_nonfinite(
    model: GPT, buckets: GradientBuckets, microbatches: Sequence[Microbatch], mesh: Mesh
) -> str:
    """Names the first rank and place where a value is not finite; the same text on every rank."""
    here = _find(model, buckets, microbatches, mesh.device)
    rank = first_rank_with(mesh, here is not None)
    if rank is None:
        return "every rank's own loss and gradients are finite; their sum over the ranks is not"
    return broadcast_text(mesh, f"rank {rank}: {here}", rank)


def _find(
    model: GPT, buckets: GradientBuckets, microbatches: Sequence[Microbatch], device: torch.device
) -> str | None:
    weights = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if weights:
        return f"the weights of {weights[0]} before the step"
    buckets.start()
    for index, microbatch in enumerate(microbatches):
        where = f"microbatch {index} (samples {microbatch.sample_numbers.tolist()})"
        with _watched(model) as found:
            loss = forward_loss(model, microbatch, device)
        if not loss.isfinite():
            return f"the output of {found[0] if found else 'the loss'} in {where}"
        loss.backward()
        for bucket, entry in reversed(list(buckets.entries())):
            if not entry.of(bucket.gradients).isfinite().all():
                return f"the gradient of {entry.name} in {where}"
    return None


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[str]]:
    """Collects the names of modules whose output is not finite, innermost and first ones first."""
    found: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def check(_: nn.Module, __: object, output: torch.Tensor, name: str = name) -> None:
            if not output.isfinite().all():
                found.append(name)

        handles.append(module.register_forward_hook(check))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
