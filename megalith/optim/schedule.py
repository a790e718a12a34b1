"""Learning rate and weight decay as functions of the samples trained on.

The count of samples is the caller's: it advances by the global batch after each step that changed
the weights, and stays where a step was skipped. The first step therefore runs at 0 samples.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import cos, pi, sqrt
from typing import Any

from megalith.config.schema import OptimizerConfig, RunConfig
from megalith.errors import MegalithError
from megalith.optim.batches import BatchSchedule

Shape = Callable[[float], float]

DECAY_SHAPES: Mapping[str, Shape] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (cos(pi * done) + 1.0),
}
"""Share of (largest - smallest) left when a share `done` of the decay has passed."""

WSD_SHAPES: Mapping[str, Shape] = {
    **DECAY_SHAPES,
    "exponential": lambda done: 2.0 * 0.5**done - 1.0,
    "minus_sqrt": lambda done: 1.0 - sqrt(done),
}
"""The same for the last part of a warm-up, stable, decay schedule (Hu et al. 2024)."""


@dataclass(frozen=True)
class LearningRateSchedule:
    """Warm-up from `init_lr` to `max_lr`, then a decay to `min_lr`; lengths in samples."""

    max_lr: float
    min_lr: float = 0.0
    init_lr: float = 0.0
    warmup: float = 0
    decay: int = 0
    style: str = "constant"
    wsd_decay: int = 0
    wsd_style: str = "exponential"

    def at(self, samples: int) -> float:
        """The learning rate of the step that begins after `samples` samples."""
        if self.warmup > 0 and samples <= self.warmup:
            return self.init_lr + (self.max_lr - self.init_lr) * samples / self.warmup
        if self.style == "constant":
            return self.max_lr
        if samples > self.decay:
            return self.min_lr
        if self.style == "inverse-square-root":
            rate = self.max_lr * sqrt(max(self.warmup, 1)) / sqrt(max(samples, 1))
            return max(self.min_lr, rate)
        return self.min_lr + self._share(samples) * (self.max_lr - self.min_lr)

    def _share(self, samples: int) -> float:
        if self.style != "WSD":
            return DECAY_SHAPES[self.style]((samples - self.warmup) / (self.decay - self.warmup))
        anneal_from = self.decay - self.wsd_decay
        if samples <= anneal_from:
            return 1.0
        return WSD_SHAPES[self.wsd_style]((samples - anneal_from) / self.wsd_decay)

    def used(self) -> dict[str, Any]:
        """The values that this schedule reads, by name: those of another style do not matter."""
        names = ["max_lr", "warmup", "style"]
        names += ["init_lr"] if self.warmup else []
        names += ["min_lr", "decay"] if self.style != "constant" else []
        names += ["wsd_decay", "wsd_style"] if self.style == "WSD" else []
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class WeightDecaySchedule:
    """Weight decay from `start` to `end` over `length` samples."""

    start: float
    end: float
    length: int = 0
    style: str = "constant"

    def at(self, samples: int) -> float:
        """The weight decay of the step that begins after `samples` samples."""
        if self.style == "constant" or samples > self.length:
            return self.end
        done = samples / self.length
        share = done if self.style == "linear" else 0.5 * (cos(pi * (1.0 - done)) + 1.0)
        return self.start + share * (self.end - self.start)

    def used(self) -> dict[str, Any]:
        """The values that this schedule reads, by name."""
        names = ["end", "style"] + (["start", "length"] if self.style != "constant" else [])
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Schedules:
    """All that changes over training by schedule, but for the batch size.

    `decoupled` is the learning rate of embedding and output layer; the same as `learning_rate`
    without `--decoupled-lr`.
    """

    learning_rate: LearningRateSchedule
    decoupled: LearningRateSchedule
    weight_decay: WeightDecaySchedule

    @staticmethod
    def of(config: RunConfig, batches: BatchSchedule) -> "Schedules":
        """The schedules of a resolved configuration; iterations count at the batches asked for."""
        optimizer, asked = config.optimizer, batches.as_asked()
        rates = _learning_rate(optimizer, asked)
        decoupled = rates
        if optimizer.decoupled_lr is not None:
            assert optimizer.decoupled_min_lr is not None
            decoupled = replace(
                rates, max_lr=optimizer.decoupled_lr, min_lr=optimizer.decoupled_min_lr
            )
        length = _samples(config.training.train_iters, config.training.train_samples, asked)
        weight_decay = WeightDecaySchedule(
            optimizer.start_weight_decay,
            optimizer.end_weight_decay,
            length or 0,
            optimizer.weight_decay_incr_style,
        )
        return Schedules(rates, decoupled, weight_decay)

    @property
    def is_decoupled(self) -> bool:
        """Whether embedding and output layer go their own way."""
        return self.decoupled != self.learning_rate

    def state(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint keeps, in JSON."""
        return asdict(self)

    def resumed(
        self, state: Mapping[str, Mapping[str, Any]], optimizer: OptimizerConfig
    ) -> "Schedules":
        """The schedules to go on with, from those given now and a checkpoint's `state()`.

        `--override-opt-param-scheduler` takes those given now,
        `--use-checkpoint-opt-param-scheduler` the checkpoint's. Without either they must agree in
        every value that they read; otherwise MegalithError names what differs.
        """
        if optimizer.override_opt_param_scheduler:
            return self
        saved = Schedules(
            LearningRateSchedule(**state["learning_rate"]),
            LearningRateSchedule(**state["decoupled"]),
            WeightDecaySchedule(**state["weight_decay"]),
        )
        if not optimizer.use_checkpoint_opt_param_scheduler:
            _require_agreement(saved, self)
        return saved


def _learning_rate(optimizer: OptimizerConfig, batches: BatchSchedule) -> LearningRateSchedule:
    decay = _samples(optimizer.lr_decay_iters, optimizer.lr_decay_samples, batches) or 0
    warmup = _samples(optimizer.lr_warmup_iters or None, optimizer.lr_warmup_samples, batches) or 0
    fraction = optimizer.lr_warmup_fraction
    wsd_decay = _samples(optimizer.lr_wsd_decay_iters, optimizer.lr_wsd_decay_samples, batches)
    return LearningRateSchedule(
        max_lr=optimizer.lr,
        min_lr=optimizer.min_lr,
        init_lr=optimizer.lr_warmup_init,
        warmup=warmup if fraction is None else fraction * decay,
        decay=decay,
        style=optimizer.lr_decay_style,
        wsd_decay=wsd_decay or 0,
        wsd_style=optimizer.lr_wsd_decay_style,
    )


def _samples(iterations: int | None, samples: int | None, batches: BatchSchedule) -> int | None:
    return samples if iterations is None else batches.samples_after(iterations)


FLAGS: Mapping[str, Mapping[str, str]] = {
    "learning_rate": {
        "max_lr": "--lr",
        "min_lr": "--min-lr",
        "init_lr": "--lr-warmup-init",
        "warmup": "the warm-up in samples (--lr-warmup-iters, -samples or -fraction)",
        "decay": "the decay length in samples (--lr-decay-iters or -samples, else the training's)",
        "style": "--lr-decay-style",
        "wsd_decay": "the WSD decay in samples (--lr-wsd-decay-iters or -samples)",
        "wsd_style": "--lr-wsd-decay-style",
    },
    "decoupled": {"max_lr": "--decoupled-lr", "min_lr": "--decoupled-min-lr"},
    "weight_decay": {
        "start": "--start-weight-decay",
        "end": "--end-weight-decay (or --weight-decay)",
        "length": "the length of the weight-decay schedule in samples (--train-iters or -samples)",
        "style": "--weight-decay-incr-style",
    },
}
"""How users know each value of a schedule."""


def _require_agreement(saved: Schedules, given: Schedules) -> None:
    differences = [*_differences(saved, given)]
    if differences:
        raise MegalithError(
            "the checkpoint was trained with another schedule than the one given now:"
            + "".join(f"\n  - {difference}" for difference in differences)
            + "\nGive the checkpoint's values, or --use-checkpoint-opt-param-scheduler to go on "
            "with the checkpoint's schedule, or --override-opt-param-scheduler to take the one "
            "given now."
        )


def _differences(saved: Schedules, given: Schedules) -> Iterator[str]:
    for part, flags in FLAGS.items():
        if part == "decoupled" and not (saved.is_decoupled or given.is_decoupled):
            continue
        before, now = getattr(saved, part).used(), getattr(given, part).used()
        for name, flag in flags.items():
            if name in before and name in now and before[name] != now[name]:
                yield f"{flag}: {before[name]} in the checkpoint, {now[name]} now"
