"""Training from the first step to the last, with evaluations and checkpoints between.

The order within an iteration is Megatron-LM's: step, log, evaluate, save, look for a reason to
stop.
"""

from collections.abc import Sequence
from time import monotonic, perf_counter

import torch

from megalith.comm.collectives import agree
from megalith.comm.launch import start
from megalith.comm.mesh import Mesh
from megalith.config.schema import RunConfig
from megalith.data.datasets import Split
from megalith.data.loader import MicrobatchLoader
from megalith.errors import MegalithError
from megalith.optim.clip import parameter_norm, zeros_in_gradient
from megalith.optim.optimizer import StepRates
from megalith.train import lines
from megalith.train.assemble import Run, assemble
from megalith.train.evaluate import evaluate
from megalith.train.nonfinite import locate_nonfinite
from megalith.train.persist import Checkpoints, checkpoint_to_load, restore
from megalith.train.plan import iterations_left
from megalith.train.records import EvaluationRecord, StepRecord
from megalith.train.signals import StopSignals
from megalith.train.step import StepResult


def pretrain(config: RunConfig, notices: Sequence[str]) -> int:
    """Trains, evaluates and saves as configured; every rank calls it. Returns the exit status.

    Raises MegalithError for what a user can mend, the same on all ranks or on one alone.
    """
    started = start(config.parallel)
    torch.use_deterministic_algorithms(config.training.deterministic_mode)
    train_on(started.mesh, config, [*notices, *started.notices])
    return 0


def train_on(mesh: Mesh, config: RunConfig, notices: Sequence[str] = ()) -> None:
    """`pretrain` on a mesh that is there already."""
    began = monotonic()
    checkpoint_to_load(config.checkpoint)  # a mistake in --load shows before data are read
    run = assemble(config, mesh, notices)
    with run.log, StopSignals(config.training.exit_signal_handler) as signals:
        restore(run)
        checkpoints = Checkpoints(run)
        run.log.milestone("before the start of training step")
        stopped = False
        _note_what_is_pointless(run)
        if not config.training.skip_train:
            stopped = _Training(run, checkpoints, signals, began).stops_early()
        if not stopped:
            _evaluate_at_the_end(run)


def _note_what_is_pointless(run: Run) -> None:
    """A run that keeps or does nothing is rarely meant."""
    training, progress = run.config.training, run.progress
    if training.skip_train:
        return
    if run.config.checkpoint.save is None:
        run.log.say("note: without --save the trained model is not kept")
    done, consumed = progress.iteration, progress.consumed_samples
    if iterations_left(training, run.batches, done, consumed) <= 0:
        run.log.say(
            f"note: nothing is left to train: the checkpoint is of iteration {done} of "
            f"{run.total_iterations}. Raise --train-iters (or --train-samples) to go on."
        )


class _Training:
    """The loop over iterations."""

    def __init__(
        self, run: Run, checkpoints: Checkpoints, signals: StopSignals, began: float
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._signals = signals
        self._began = began
        assert run.datasets.train is not None
        self._train = run.loader(run.datasets.train)
        valid = run.datasets.valid
        self._valid = (valid, run.loader(valid)) if valid is not None else None

    def stops_early(self) -> bool:
        """Trains; whether something asked it to stop before the last iteration."""
        run, progress = self._run, self._run.progress
        try:
            while self._left() > 0:
                self._iterate()
                if self._valid is not None and run.evaluation.due(progress.iteration):
                    first = run.evaluation.first_sample(progress.iteration)
                    _report_loss(run, *self._valid, first, "validation", final=False)
                if reason := self._reason_to_stop():
                    run.log.say(lines.exit_line(reason))
                    return True
            self._checkpoints.save_if_new()
        finally:
            self._train.close()
            if self._valid is not None:
                self._valid[1].close()
        return False

    def _left(self) -> int:
        run = self._run
        done, consumed = run.progress.iteration, run.progress.consumed_samples
        return iterations_left(run.config.training, run.batches, done, consumed)

    def _iterate(self) -> None:
        run, progress = self._run, self._run.progress
        began = perf_counter()
        batch = run.batches.at(progress.consumed_samples)
        result = None
        if progress.iteration in run.config.training.iterations_to_skip:
            progress.passed_samples += batch
        else:
            result = self._step(batch)
        progress.advance(batch, batch * run.config.model.seq_length)
        phases = run.timers.across_ranks(run.mesh)
        run.log.step(self._record(result, batch, perf_counter() - began), phases)
        run.timers.reset()

    def _step(self, batch: int) -> StepResult:
        """Trains on the next global batch and counts what came of it."""
        run, progress = self._run, self._run.progress
        size = run.config.training.micro_batch_size
        with run.timers.measure("batch-generator"):
            microbatches = self._train.load(progress.consumed_samples, batch, size)
        with run.timers.measure("forward-backward"):
            result = run.step(microbatches, _rates(run))
        if result.updated:
            progress.scheduled_samples += batch
        elif run.step.scaler.dynamic:
            progress.overflows += 1
        elif run.config.training.nan_policy == "skip":
            progress.nonfinite += 1
        else:
            where = locate_nonfinite(run.step.model, run.step.buckets, microbatches, run.mesh)
            raise MegalithError(_nonfinite_message(progress.iteration, result, where))
        return result

    def _record(self, result: StepResult | None, batch: int, seconds: float) -> StepRecord:
        run, progress, logging = self._run, self._run.progress, self._run.config.logging
        next_rates = _rates(run)
        updated = result is not None and result.updated
        overflowed = result is not None and not updated and run.step.scaler.dynamic
        buckets = run.step.buckets.buckets
        return StepRecord(
            iteration=progress.iteration,
            consumed_samples=progress.consumed_samples,
            global_batch_size=batch,
            seconds=seconds,
            losses={"lm loss": result.loss} if result is not None else {},
            learning_rate=next_rates.lr,
            decoupled_learning_rate=(
                next_rates.decoupled_lr if run.schedules.is_decoupled else None
            ),
            weight_decay=next_rates.weight_decay,
            loss_scale=run.step.scaler.scale,
            grad_norm=result.gradient_norm if result is not None and updated else None,
            zeros_in_grad=zeros_in_gradient(buckets) if logging.log_num_zeros_in_grad else None,
            params_norm=parameter_norm(buckets) if logging.log_params_norm else None,
            skipped=not updated,
            nan=result is not None and not updated and not overflowed,
            skipped_samples=progress.passed_samples,
        )

    def _reason_to_stop(self) -> str | None:
        """Saves where it is time to, or where the run stops; says why it stops."""
        run, training = self._run, self._run.config.training
        iteration = run.progress.iteration
        limit = training.exit_duration_in_mins
        minutes = (monotonic() - self._began) / 60
        reason = None
        if signal := self._signals.agreed(run.mesh):
            reason = f"after receiving {signal}."
        elif limit is not None and agree(run.mesh, [minutes > limit])[0]:
            reason = f"after {minutes:.1f} minutes"
        elif training.exit_interval is not None and iteration % training.exit_interval == 0:
            reason = f"at iteration {iteration}"
        if reason or self._checkpoints.due(iteration):
            self._checkpoints.save_if_new()
        return reason


def _rates(run: Run) -> StepRates:
    """What the schedules say for the next step."""
    done, schedules = run.progress.scheduled_samples, run.schedules
    return StepRates(
        schedules.learning_rate.at(done),
        schedules.decoupled.at(done),
        schedules.weight_decay.at(done),
    )


def _evaluate_at_the_end(run: Run) -> None:
    if not run.evaluation.wanted:
        return
    first = run.evaluation.first_sample(run.progress.iteration, final=True)
    for name, split, first_sample in (
        ("validation", run.datasets.valid, first),
        ("test", run.datasets.test, 0),
    ):
        if split is not None:
            loader = run.loader(split)
            _report_loss(run, split, loader, first_sample, name, final=True)
            loader.close()


def _report_loss(
    run: Run, split: Split, loader: MicrobatchLoader, first_sample: int, name: str, final: bool
) -> None:
    loss = evaluate(
        run.step.model,
        loader,
        first_sample,
        run.evaluation.batches(len(split)),
        run.evaluation.batch,
        run.config.training.eval_micro_batch_size,
        run.mesh,
    )
    progress, losses = run.progress, {"lm loss": loss}
    run.log.evaluation(
        EvaluationRecord(progress.iteration, progress.consumed_samples, losses, name, final)
    )


def _nonfinite_message(iteration: int, result: StepResult, where: str) -> str:
    return (
        f"NaN or infinity in iteration {iteration + 1} (loss {result.loss}, gradient norm "
        f"{result.gradient_norm}): {where}. The weights are still those of iteration {iteration}. "
        f"Go on from the last checkpoint with a lower --lr, pass over this batch with "
        f"--iterations-to-skip {iteration}, or leave such steps out with --nan-policy skip."
    )
