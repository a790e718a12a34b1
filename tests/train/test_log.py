"""What a run tells: lines that people's readers parse, a live display, and records for programs."""

import io
import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megalith.config.schema import LoggingConfig, RunConfig
from megalith.errors import MegalithError
from megalith.train import lines, sinks
from megalith.train.display import LiveDisplay, PlainDisplay, open_display
from megalith.train.log import RunLog
from megalith.train.records import EvaluationRecord, Interval, RunFacts, StepRecord
from megalith.train.sinks import JsonLines, TensorBoard, WeightsAndBiases, open_sinks
from tests.train.stepping import ONE

FACTS = RunFacts(
    total_iterations=10,
    total_samples=40,
    seq_length=100,
    flops_per_sequence=1e12,
    processors=2,
    peak_flops=1e13,
)
STEP = StepRecord(
    iteration=1,
    consumed_samples=4,
    global_batch_size=4,
    seconds=2.0,
    losses={"lm loss": 3.0},
    learning_rate=1e-4,
    loss_scale=1.0,
    grad_norm=0.5,
)

# As log readers for Megatron-LM have it: by names, not by places.
READER = re.compile(
    r" \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration +(?P<iteration>\d+)/ +(?P<total>\d+) \|"
    r" consumed samples: +(?P<samples>\d+) \|"
    r" elapsed time per iteration \(ms\): (?P<ms>[\d.]+) \|"
    r"( throughput per GPU \(TFLOP/s/GPU\): (?P<tflops>[\d.]+) \|)?"
    r" learning rate: (?P<lr>\d\.\d{6}E[+-]\d\d) \|"
    r" global batch size: +(?P<batch>\d+) \|"
    r"( lm loss: (?P<loss>\d\.\d{6}E[+-]\d\d) \|)?"
    r" loss scale: (?P<scale>[\d.]+) \|"
    r"( grad norm: (?P<norm>[\d.]+) \|)?"
    r"( num zeros: (?P<zeros>\d+) \|)?"
    r"( params norm: (?P<params>[\d.]+) \|)?"
    r" number of skipped iterations: +(?P<skipped>\d+) \|"
    r" number of nan iterations: +(?P<nan>\d+) \|"
)


def _line(*records: StepRecord, throughput: bool = False, facts: RunFacts = FACTS) -> str:
    interval = Interval(facts)
    for record in records:
        interval.add(record)
    now = datetime(2026, 1, 2, 3, 4, 5, 678901)
    return lines.iteration_line(interval.report(records[-1]), 10, now, throughput)


def test_line_is_megatrons_with_our_fields_behind() -> None:
    assert _line(STEP) == (
        " [2026-01-02 03:04:05.678901] iteration        1/      10 |"
        " consumed samples:            4 |"
        " elapsed time per iteration (ms): 2000.0 | learning rate: 1.000000E-04 |"
        " global batch size:     4 | lm loss: 3.000000E+00 | loss scale: 1.0 | grad norm: 0.500 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
        " tokens per second: 200.0 | MFU: 10.0% | time left: 0:00:18 |"
    )


def test_readers_find_every_field() -> None:
    full = replace(STEP, zeros_in_grad=7, params_norm=2.5)
    found = READER.match(_line(full, throughput=True))
    assert found is not None
    values = found.groupdict()
    assert (values["zeros"], values["params"], values["tflops"]) == ("7", "2.500", "1.0")
    assert READER.match(_line(replace(STEP, grad_norm=None, losses={}, skipped=True)))


def test_interval_takes_means_and_leaves_skipped_steps_out() -> None:
    skipped = replace(STEP, iteration=2, losses={"lm loss": float("nan")}, skipped=True, nan=True)
    third = replace(STEP, iteration=3, losses={"lm loss": 5.0}, seconds=6.0)
    found = READER.match(_line(STEP, skipped, third))
    assert found is not None
    assert found["loss"] == "4.000000E+00" and found["ms"] == "3333.3"
    assert (found["skipped"].strip(), found["nan"]) == ("1", "1")


def test_unknown_peak_stays_unknown() -> None:
    assert "MFU" not in _line(STEP, facts=replace(FACTS, peak_flops=None))


def test_evaluation_block() -> None:
    record = EvaluationRecord(5, 20, {"lm loss": 2.0})
    rule, line, last = lines.evaluation_block(record).split("\n")
    expected = " validation loss at iteration 5 | lm loss value: 2.000000E+00 | "
    assert line == expected + "lm loss PPL: 7.389056E+00 | "
    assert rule == last == "-" * (len(line) + 1)
    final = lines.evaluation_block(replace(record, split="test", final=True))
    assert " validation loss at iteration 5 on test set | " in final
    huge = lines.evaluation_block(EvaluationRecord(5, 20, {"lm loss": 100.0}))
    assert "lm loss PPL: 4.851652E+08" in huge


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "0:00:05"), (3661, "1:01:01"), (90061, "1 d 1:01:01")]
)
def test_durations(seconds: float, text: str) -> None:
    assert lines.duration(seconds) == text


def _log(sinks: list[Any], **settings: Any) -> RunLog:
    config = RunConfig(logging=LoggingConfig(**settings))
    return RunLog(FACTS, config, PlainDisplay(), sinks)


def test_first_iteration_each_interval_and_the_last_are_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = _log([], log_interval=3)
    for iteration in range(1, 11):
        record = replace(STEP, iteration=iteration, losses={"lm loss": float(iteration)})
        log.step(record, {"optimizer": (0.1 * iteration, 0.2 * iteration)})
    out = capsys.readouterr().out
    found = list(READER.finditer(out))
    assert [int(line["iteration"]) for line in found] == [1, 3, 6, 9, 10]
    # The first line takes nothing from the interval that it lies in.
    assert [float(line["loss"]) for line in found] == [1.0, 2.0, 5.0, 8.0, 10.0]
    assert "optimizer ......................................: (200.00, 400.00)" in out


def test_throughput_is_logged_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _log([], log_throughput=True).step(STEP, {})
    assert "throughput per GPU (TFLOP/s/GPU): 1.0 |" in capsys.readouterr().out


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = RunLog(FACTS, RunConfig(), None, [])
    log.say("x")
    log.step(STEP, {})
    log.close()
    assert capsys.readouterr().out == ""


def test_json_lines_are_valid_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    for loss in (3.0, float("nan"), float("inf")):
        sink = JsonLines(path)
        sink.step(replace(STEP, losses={"lm loss": loss}), Interval(FACTS))
        sink.evaluation(EvaluationRecord(1, 4, {"lm loss": loss}, final=True))
        sink.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["lm loss"] for record in found] == [3.0, 3.0, None, None, None, None]
    assert found[0]["kind"] == "step" and found[0]["learning_rate"] == 1e-4
    assert found[1] == {
        "kind": "evaluation", "iteration": 1, "consumed_samples": 4, "split": "validation",
        "final": True, "lm loss": 3.0,
    }  # fmt: skip
    (tmp_path / "file").write_text("")
    with pytest.raises(MegalithError, match=r"--log-jsonl .*: cannot be written"):
        JsonLines(tmp_path / "file" / "log.jsonl")


def _interval(record: StepRecord) -> Interval:
    interval = Interval(FACTS)
    interval.add(record)
    return interval


def test_tensorboard_has_the_usual_tags(tmp_path: Path) -> None:
    sink = TensorBoard(str(tmp_path), interval=2)
    for iteration in (1, 2, 3, 4):
        record = replace(STEP, iteration=iteration, consumed_samples=4 * iteration)
        sink.step(record, _interval(record))
    sink.evaluation(EvaluationRecord(4, 16, {"lm loss": 2.0}))
    sink.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = set(events.Tags()["scalars"])
    assert {"lm loss", "lm loss vs samples", "learning-rate", "batch-size", "loss-scale"} <= tags
    assert {"grad-norm", "iteration-time", "lm loss validation", "lm loss validation ppl"} <= tags
    assert [event.step for event in events.Scalars("lm loss")] == [2, 4]
    assert [event.step for event in events.Scalars("lm loss vs samples")] == [8, 16]


class FakeRun:
    """What `wandb.init` gives."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.logged, self.finished = settings, [], False

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_the_scalars_and_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        init = FakeRun

    monkeypatch.setattr(sinks.importlib, "import_module", lambda name: Module)
    logging = LoggingConfig(
        wandb_project="p",
        wandb_exp_name="e",
        wandb_entity="t",
        wandb_save_dir="d",
        wandb_mode="offline",
    )
    sink = WeightsAndBiases(logging, {"seed": 1})
    sink.step(STEP, _interval(STEP))
    sink.evaluation(EvaluationRecord(1, 4, {"lm loss": 2.0}, split="test"))
    sink.close()
    run: Any = sink._run
    assert run.settings == {
        "project": "p", "name": "e", "entity": "t", "dir": "d", "mode": "offline",
        "config": {"seed": 1},
    }  # fmt: skip
    assert run.logged[0][0] == 1 and run.logged[0][1]["lm loss"] == 3.0
    assert run.logged[1][1]["lm loss test"] == 2.0
    assert run.finished


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sinks.importlib, "import_module", missing)
    config = RunConfig(logging=LoggingConfig(wandb_project="p"))
    with pytest.raises(
        MegalithError, match=r"--wandb-project needs .*pip install 'megalith\[wandb"
    ):
        open_sinks(config)


def test_live_display_shows_progress_and_whole_lines() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, soft_wrap=True)
    display = LiveDisplay(10, console)
    display.say("note: before")
    display.progress(_interval(STEP).report(STEP))
    display.say(_line(STEP))
    display.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert _line(STEP).strip() in text.replace("\r", "\n")
    assert "iteration 1/10" in text and "200 tokens/s" in text and "MFU 10.0%" in text


def test_display_is_plain_without_a_terminal() -> None:
    assert isinstance(open_display("auto", 10), PlainDisplay)
    assert isinstance(open_display("off", 10), PlainDisplay)
    assert isinstance(open_display("on", 10), LiveDisplay)


def test_log_of_a_run_opens_what_is_asked_for(tmp_path: Path) -> None:
    logging = LoggingConfig(
        log_jsonl=str(tmp_path / "a"),
        tensorboard_dir=str(tmp_path / "b"),
        tensorboard_log_interval=3,
    )
    with RunLog.of(RunConfig(logging=logging), FACTS, ONE) as log:
        for iteration in range(1, 7):
            log.step(replace(STEP, iteration=iteration), {})
    assert len((tmp_path / "a").read_text().splitlines()) == 6
    events = EventAccumulator(str(tmp_path / "b")).Reload()
    assert [event.step for event in events.Scalars("lm loss")] == [3, 6]
