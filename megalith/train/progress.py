"""How far a run has come: the numbers that a resumed run goes on from."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """Counters of a run.

    `scheduled_samples` are the samples of steps that updated the weights: what the schedules of
    learning rate and weight decay follow. `overflows` counts steps without an update because the
    loss scale overflowed, `nonfinite` those because of a NaN or infinity under `--nan-policy skip`;
    `passed_samples` are those of `--iterations-to-skip`.
    """

    iteration: int = 0
    consumed_samples: int = 0
    consumed_tokens: int = 0
    scheduled_samples: int = 0
    passed_samples: int = 0
    overflows: int = 0
    nonfinite: int = 0

    def advance(self, samples: int, tokens: int) -> None:
        """One more iteration."""
        self.iteration += 1
        self.consumed_samples += samples
        self.consumed_tokens += tokens

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Progress":
        return Progress(**values)
