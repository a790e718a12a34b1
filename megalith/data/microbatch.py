"""What one forward pass of a replica reads."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Microbatch:
    """Samples side by side.

    Shapes: `tokens`, `labels`, `positions` int64 [b, s]; `loss_mask` float32 [b, s], 0 where a
    label does not count; `sample_numbers` int64 [b], the samples' places in the run's order, the
    same in any layout; `document_starts` int64 [b, s] or None, the first place in the sample that a
    token may attend to.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    positions: torch.Tensor
    sample_numbers: torch.Tensor
    document_starts: torch.Tensor | None
