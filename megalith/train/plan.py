"""How long a run is, when it evaluates, and how many samples it asks of each split."""

from dataclasses import dataclass

from megalith.config.schema import TrainingConfig
from megalith.optim.batches import BatchSchedule


@dataclass(frozen=True)
class EvaluationPlan:
    """When the validation loss is taken, and on which samples.

    Evaluations take successive samples of the split, `iterations` batches each, so that which ones
    follows from the iteration alone. With `whole` each takes the whole split.
    """

    interval: int | None
    first: int
    iterations: int
    batch: int
    whole: bool

    @staticmethod
    def of(training: TrainingConfig, replicas: int) -> "EvaluationPlan":
        """The plan of a resolved configuration; the batch is what the replicas divide."""
        granule = training.eval_micro_batch_size * replicas
        return EvaluationPlan(
            training.eval_interval,
            training.start_eval_at_iter or 0,
            training.eval_iters,
            training.eval_global_batch_size // granule * granule,
            training.full_validation,
        )

    def batches(self, samples: int) -> int:
        """Batches of one evaluation on a split of so many samples; the last may be padded."""
        return -(-samples // self.batch) if self.whole else self.iterations

    @property
    def wanted(self) -> bool:
        return self.whole or self.iterations > 0

    def due(self, iteration: int) -> bool:
        """Whether the loss is taken after that iteration, during training."""
        if not self.wanted or self.interval is None or iteration < max(self.first, 1):
            return False
        return iteration % self.interval == 0

    def earlier(self, iteration: int) -> int:
        """Evaluations due before that iteration's."""
        if self.interval is None:
            return 0
        skipped = max(self.first - 1, 0) // self.interval
        return max((iteration - 1) // self.interval - skipped, 0)

    def first_sample(self, iteration: int, final: bool = False) -> int:
        """Where the evaluation after that iteration begins in the validation split."""
        if self.whole:
            return 0
        before = self.earlier(iteration) + (final and self.due(iteration))
        return before * self.iterations * self.batch

    def samples(self, last_iteration: int) -> int | None:
        """What a run asks of the validation split; None for one pass over all of it."""
        if self.whole:
            return None
        final = self.first_sample(last_iteration, final=True)
        return final + self.iterations * self.batch


def training_iterations(training: TrainingConfig, batches: BatchSchedule) -> int:
    """The number of steps of a run from its start."""
    if training.train_iters is not None:
        return training.train_iters
    return batches.iterations_within(training.train_samples or 0)


def iterations_left(
    training: TrainingConfig, batches: BatchSchedule, iteration: int, consumed_samples: int
) -> int:
    """The number of steps still to go."""
    if training.train_iters is not None:
        return training.train_iters - iteration
    return batches.iterations_within(training.train_samples or 0, consumed_samples)
