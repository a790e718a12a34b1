"""Records of a run for other programs: JSON lines, TensorBoard, Weights & Biases."""

import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from megalith.config.schema import LoggingConfig, RunConfig, to_dict
from megalith.errors import MegalithError
from megalith.train.lines import perplexity
from megalith.train.records import EvaluationRecord, Interval, StepRecord


class Sink(Protocol):
    """Takes each record of a run."""

    def step(self, record: StepRecord, interval: Interval) -> None: ...

    def evaluation(self, record: EvaluationRecord) -> None: ...

    def close(self) -> None: ...


def open_sinks(config: RunConfig) -> list[Sink]:
    """Those that the configuration asks for; MegalithError where one cannot be written."""
    logging = config.logging
    sinks: list[Sink] = []
    if logging.log_jsonl is not None:
        sinks.append(JsonLines(Path(logging.log_jsonl)))
    if logging.tensorboard_dir is not None:
        sinks.append(TensorBoard(logging.tensorboard_dir, logging.tensorboard_log_interval))
    if logging.wandb_project is not None:
        sinks.append(WeightsAndBiases(logging, to_dict(config)))
    return sinks


class JsonLines:
    """One JSON object a line, appended, so that a resumed run goes on in the same file.

    Each has its `kind`, "step" or "evaluation", and the record's fields; losses stand among them
    under their names. NaN and infinity are null.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise MegalithError(f"--log-jsonl {path}: cannot be written: {error}") from error

    def step(self, record: StepRecord, interval: Interval) -> None:
        self._write("step", record)

    def evaluation(self, record: EvaluationRecord) -> None:
        self._write("evaluation", record)

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: str, record: StepRecord | EvaluationRecord) -> None:
        fields = vars(record) | dict(record.losses)
        del fields["losses"]
        valid = {name: _json_value(value) for name, value in fields.items()}
        self._file.write(json.dumps({"kind": kind} | valid, allow_nan=False) + "\n")
        self._file.flush()


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoard:
    """Scalars under Megatron-LM's tags."""

    def __init__(self, folder: str, interval: int) -> None:
        module = _optional("torch.utils.tensorboard", "--tensorboard-dir", "tensorboard")
        self._writer = module.SummaryWriter(folder)
        self._interval = interval

    def step(self, record: StepRecord, interval: Interval) -> None:
        if record.iteration % self._interval:
            return
        for tag, value in step_scalars(record, interval).items():
            self._writer.add_scalar(tag, value, record.iteration)
        for name, loss in record.losses.items():
            self._writer.add_scalar(f"{name} vs samples", loss, record.consumed_samples)

    def evaluation(self, record: EvaluationRecord) -> None:
        for tag, value in evaluation_scalars(record).items():
            self._writer.add_scalar(tag, value, record.iteration)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """The same scalars at Weights & Biases, online or in a local folder."""

    def __init__(self, logging: LoggingConfig, config: Mapping[str, Any]) -> None:
        module = _optional("wandb", "--wandb-project", "wandb")
        self._run = module.init(
            project=logging.wandb_project,
            name=logging.wandb_exp_name,
            entity=logging.wandb_entity,
            dir=logging.wandb_save_dir,
            mode=logging.wandb_mode,
            config=config,
        )

    def step(self, record: StepRecord, interval: Interval) -> None:
        self._run.log(step_scalars(record, interval), step=record.iteration)

    def evaluation(self, record: EvaluationRecord) -> None:
        self._run.log(evaluation_scalars(record), step=record.iteration)

    def close(self) -> None:
        self._run.finish()


def step_scalars(record: StepRecord, interval: Interval) -> dict[str, float]:
    """What is plotted of an iteration, by tag."""
    report = interval.report(record)
    scalars = {
        **record.losses,
        "learning-rate": record.learning_rate,
        "batch-size": record.global_batch_size,
        "loss-scale": record.loss_scale,
        "iteration-time": record.seconds,
        "tokens-per-second": report.tokens_per_second,
    }
    optional = {
        "decoupled-learning-rate": record.decoupled_learning_rate,
        "weight-decay": record.weight_decay,
        "grad-norm": record.grad_norm,
        "num-zeros": record.zeros_in_grad,
        "params-norm": record.params_norm,
        "mfu": report.mfu,
    }
    return scalars | {tag: value for tag, value in optional.items() if value is not None}


def evaluation_scalars(record: EvaluationRecord) -> dict[str, float]:
    """What is plotted of an evaluation, by tag."""
    scalars = {}
    for name, loss in record.losses.items():
        scalars[f"{name} {record.split}"] = loss
        scalars[f"{name} {record.split} ppl"] = perplexity(loss)
    return scalars


def _optional(module: str, setting: str, extra: str) -> Any:
    """A module of a package that is installed only by those who want it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MegalithError(
            f"{setting} needs the package {extra}, which is not installed: "
            f"pip install 'megalith[{extra}]'"
        ) from error
