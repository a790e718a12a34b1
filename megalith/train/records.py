"""What the loop reports about its steps, and the sums of it between two log lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepRecord:
    """One iteration, as the loop saw it. Iterations count from 1.

    `seconds` is its wall time without evaluation and saving. `losses` are by name ("lm loss"), of
    the whole global batch. `learning_rate` is the one that the next step will use, as in
    Megatron-LM's log. A skipped step changed no weights; `nan` says that its loss was NaN or Inf.
    `grad_norm` is None where it is not known, as in a skipped step.
    """

    iteration: int
    consumed_samples: int
    global_batch_size: int
    seconds: float
    losses: Mapping[str, float]
    learning_rate: float
    decoupled_learning_rate: float | None = None
    weight_decay: float | None = None
    loss_scale: float = 1.0
    grad_norm: float | None = None
    zeros_in_grad: int | None = None
    params_norm: float | None = None
    skipped: bool = False
    nan: bool = False
    skipped_samples: int = 0


@dataclass(frozen=True)
class EvaluationRecord:
    """Losses of one evaluation: `split` is "validation" or "test", `final` after training."""

    iteration: int
    consumed_samples: int
    losses: Mapping[str, float]
    split: str = "validation"
    final: bool = False


@dataclass(frozen=True)
class RunFacts:
    """What stays the same over a run: its length, its size, and the processors it runs on.

    `flops_per_sequence` is of forward and backward of one sequence; `peak_flops` of one of the
    `processors` per second, None where unknown.
    """

    total_iterations: int
    total_samples: int
    seq_length: int
    flops_per_sequence: float
    processors: int
    peak_flops: float | None = None


@dataclass(frozen=True)
class IntervalReport:
    """The means over the iterations since the last log line, and their last record.

    `losses` are means over the iterations that were not skipped; a loss that none of them had is
    not there. `mfu` is a share of 1, None where the peak is unknown; `seconds_left` None where no
    time has passed.
    """

    last: StepRecord
    losses: Mapping[str, float]
    skipped: int
    nan: int
    seconds_per_iteration: float
    tokens_per_second: float
    flops_per_second: float
    mfu: float | None
    seconds_left: float | None


@dataclass
class Interval:
    """Sums over the iterations since the last log line."""

    facts: RunFacts
    records: int = 0
    skipped: int = 0
    nan: int = 0
    seconds: float = 0.0
    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, record: StepRecord) -> None:
        """Takes one iteration in."""
        self.records += 1
        self.skipped += record.skipped
        self.nan += record.nan
        self.seconds += record.seconds
        self.samples += record.global_batch_size
        if not record.skipped:
            for name, loss in record.losses.items():
                self.sums[name] = self.sums.get(name, 0.0) + loss

    def report(self, last: StepRecord) -> IntervalReport:
        """The means so far; `last` is the record added last."""
        facts, rate = self.facts, self.samples / self.seconds if self.seconds > 0 else 0.0
        flops = rate * facts.flops_per_sequence / facts.processors
        left = max(facts.total_samples - last.consumed_samples, 0)
        return IntervalReport(
            last=last,
            losses={name: sum_ / (self.records - self.skipped) for name, sum_ in self.sums.items()},
            skipped=self.skipped,
            nan=self.nan,
            seconds_per_iteration=self.seconds / max(self.records, 1),
            tokens_per_second=rate * facts.seq_length,
            flops_per_second=flops,
            mfu=_share_of_peak(flops, facts.peak_flops),
            seconds_left=left / rate if rate > 0 else None,
        )


def _share_of_peak(flops: float, peak: float | None) -> float | None:
    """None without a peak, and where one that was measured on busy cores has been passed."""
    return flops / peak if peak and flops <= peak else None
