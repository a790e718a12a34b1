"""What the rows of an activation are."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenLayout:
    """The tokens behind the t = b·s rows of an activation, sample after sample.

    Every block is handed one; positions, rotary phases, dropout and masks read it.

    Shapes: `sample_numbers` [b], the samples' places in the whole run's order, which key dropout;
    `positions` [t], counted from the start of the sample or of the document; `first_visible`
    [b, s] or None, the first place in the sample that a token may attend to. `start` is the place
    of the first row in its sample: above zero only when earlier tokens are in a cache.
    """

    sample_numbers: torch.Tensor
    positions: torch.Tensor
    sequence_length: int
    first_visible: torch.Tensor | None = None
    start: int = 0

    @property
    def samples(self) -> int:
        return self.sample_numbers.numel()

    @property
    def tokens(self) -> int:
        return self.samples * self.sequence_length

    @property
    def places(self) -> torch.Tensor:
        """The place of each column of [b, s] in its sample.  # [s]"""
        device = self.sample_numbers.device
        return torch.arange(self.start, self.start + self.sequence_length, device=device)
