"""The lines of the log, Megatron-LM's character for character: people's log readers parse them."""

from collections.abc import Mapping
from datetime import datetime
from math import exp, isnan

from megalith.train.metrics import TERA
from megalith.train.records import EvaluationRecord, IntervalReport

LARGEST_EXPONENT = 20
"""Perplexities are cut at e^20, as elsewhere."""


def iteration_line(
    report: IntervalReport, total_iterations: int, now: datetime, throughput: bool = False
) -> str:
    """Megatron-LM's line of an iteration, then our own fields.

    `throughput` adds its TFLOP/s of one processor. Rates that are not known are left out.
    """
    fields = [*_head(report, throughput), *_losses(report), *_tail(report), *_ours(report)]
    place = f"iteration {report.last.iteration:8d}/{total_iterations:8d}"
    return f" [{now:%Y-%m-%d %H:%M:%S.%f}] " + " | ".join([place, *fields]) + " |"


def _head(report: IntervalReport, throughput: bool) -> list[str]:
    last = report.last
    fields = [f"consumed samples: {last.consumed_samples:12d}"]
    if last.skipped_samples:
        fields.append(f"skipped samples: {last.skipped_samples:12d}")
    fields.append(f"elapsed time per iteration (ms): {report.seconds_per_iteration * 1000:.1f}")
    if throughput:
        rate = report.flops_per_second / TERA
        fields.append(f"throughput per GPU (TFLOP/s/GPU): {rate:.1f}")
    fields.append(f"learning rate: {last.learning_rate:.6E}")
    fields.append(f"global batch size: {last.global_batch_size:5d}")
    return fields


def _losses(report: IntervalReport) -> list[str]:
    return [f"{name}: {value:.6E}" for name, value in report.losses.items()]


def _tail(report: IntervalReport) -> list[str]:
    last = report.last
    fields = [f"loss scale: {last.loss_scale:.1f}"]
    if last.grad_norm is not None:
        fields.append(f"grad norm: {last.grad_norm:.3f}")
    if last.zeros_in_grad is not None:
        fields.append(f"num zeros: {last.zeros_in_grad}")
    if last.params_norm is not None:
        fields.append(f"params norm: {last.params_norm:.3f}")
    fields.append(f"number of skipped iterations: {report.skipped:3d}")
    fields.append(f"number of nan iterations: {report.nan:3d}")
    return fields


def _ours(report: IntervalReport) -> list[str]:
    fields = []
    if report.last.decoupled_learning_rate is not None:
        fields.append(f"decoupled learning rate: {report.last.decoupled_learning_rate:.6E}")
    if report.tokens_per_second > 0:
        fields.append(f"tokens per second: {report.tokens_per_second:.1f}")
    if report.mfu is not None:
        fields.append(f"MFU: {report.mfu:.1%}")
    if report.seconds_left is not None:
        fields.append(f"time left: {duration(report.seconds_left)}")
    return fields


def duration(seconds: float) -> str:
    """`h:mm:ss`, with days in front where there are some."""
    minutes, seconds_of_minute = divmod(round(seconds), 60)
    hours, minutes_of_hour = divmod(minutes, 60)
    days, hours_of_day = divmod(hours, 24)
    clock = f"{hours_of_day}:{minutes_of_hour:02d}:{seconds_of_minute:02d}"
    return f"{days} d {clock}" if days else clock


def perplexity(loss: float) -> float:
    """e to the loss, cut at e^20; NaN stays NaN."""
    return loss if isnan(loss) else exp(min(LARGEST_EXPONENT, loss))


def evaluation_block(record: EvaluationRecord) -> str:
    """The three lines of an evaluation."""
    place = f"iteration {record.iteration}"
    if record.final:
        place += f" on {record.split} set"
    line = f" validation loss at {place} | "
    for name, loss in record.losses.items():
        line += f"{name} value: {loss:.6E} | {name} PPL: {perplexity(loss):.6E} | "
    rule = "-" * (len(line) + 1)
    return f"{rule}\n{line}\n{rule}"


def timers_block(ranges: Mapping[str, tuple[float, float]]) -> str:
    """Megatron-LM's table of phases from (least, most) seconds over the ranks, per iteration."""
    lines = [
        f"    {(name + ' ').ljust(48, '.')}: ({least * 1000:.2f}, {most * 1000:.2f})"
        for name, (least, most) in ranges.items()
    ]
    return "\n".join(["(min, max) time across ranks (ms):", *lines])


def milestone_line(text: str, now: datetime) -> str:
    """`[after dataloaders are built] datetime: ...` and its like."""
    return f"[{text}] datetime: {now:%Y-%m-%d %H:%M:%S.%f} "


def training_iterations_line(iterations: int) -> str:
    """Said when the number of iterations follows from `--train-samples`."""
    return f"setting training iterations to {iterations}"


def padded_vocabulary_line(vocabulary: int, padded: int) -> str:
    """Said once the size of the vocabulary is known."""
    return (
        f" > padded vocab (size: {vocabulary}) with {padded - vocabulary} dummy tokens "
        f"(new size: {padded})"
    )


def dataset_sizes_block(train: int, validation: int | None, test: int | None) -> str:
    """How many samples of each split the run asks for; None is one pass over it."""
    sizes = (("train:     ", train), ("validation:", validation), ("test:      ", test))
    lines = [f"    {split} {size}" for split, size in sizes]
    return "\n".join([" > datasets target sizes (minimum size):", *lines])


def saving_line(iteration: int, folder: str, kind: str) -> str:
    """Said before a checkpoint is written."""
    return f"saving checkpoint at iteration {iteration:7d} to {folder} in {kind} format"


def saved_line(iteration: int, folder: str) -> str:
    """Said when a checkpoint is complete."""
    return f"  successfully saved checkpoint from iteration {iteration:7d} to {folder}"


def loading_line(iteration: int, folder: str) -> str:
    """Said before a checkpoint is read."""
    return f" loading checkpoint from {folder} at iteration {iteration}"


def exit_line(reason: str) -> str:
    """`exiting program at iteration 5`, `... after 3 minutes`, `... after receiving SIGTERM.`."""
    return f"exiting program {reason}"
