"""The loss on data that is not trained on."""

import torch

from megalith.comm.collectives import all_reduce_sum
from megalith.comm.mesh import Mesh
from megalith.data.loader import MicrobatchLoader
from megalith.models.gpt import GPT
from megalith.train.step import forward_loss


@torch.no_grad()
def evaluate(
    model: GPT,
    loader: MicrobatchLoader,
    first_sample: int,
    iterations: int,
    global_batch_size: int,
    micro_batch_size: int,
    mesh: Mesh,
) -> float:
    """The mean loss over the unmasked targets of `iterations` global batches; NaN without any.

    Dropout is off. Numerator and denominator are summed over batches and ranks before dividing.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    model.eval()
    for iteration in range(iterations):
        start = first_sample + iteration * global_batch_size
        for microbatch in loader.load(start, global_batch_size, micro_batch_size):
            sums[0] += forward_loss(model, microbatch, mesh.device)
            sums[1] += microbatch.loss_mask.sum().to(mesh.device)
    model.train()
    all_reduce_sum(sums, mesh.group("dp", "cp"))
    return (sums[0] / sums[1]).item()
