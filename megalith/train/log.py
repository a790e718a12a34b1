"""What a run tells about itself: lines on the terminal, and records for other programs."""

from collections.abc import Mapping
from datetime import datetime
from types import TracebackType

from megalith.comm.mesh import Mesh
from megalith.config.schema import RunConfig
from megalith.train import lines
from megalith.train.display import Display, open_display
from megalith.train.records import EvaluationRecord, Interval, RunFacts, StepRecord
from megalith.train.sinks import Sink, open_sinks

Phases = Mapping[str, tuple[float, float]]


class RunLog:
    """Takes the records of a run; silent on all ranks but the main one."""

    def __init__(
        self, facts: RunFacts, config: RunConfig, display: Display | None, sinks: list[Sink]
    ) -> None:
        self._facts, self._config = facts, config.logging
        self._display, self._sinks = display, sinks
        self._interval = Interval(facts)
        self._phases: dict[str, tuple[float, float]] = {}
        self._started = False

    @staticmethod
    def of(config: RunConfig, facts: RunFacts, mesh: Mesh) -> "RunLog":
        """The log of a resolved configuration; raises MegalithError where it cannot be written."""
        if not mesh.is_main:
            return RunLog(facts, config, None, [])
        display = open_display(config.logging.live_display, facts.total_iterations)
        return RunLog(facts, config, display, open_sinks(config))

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the display and closes files."""
        if self._display is not None:
            self._display.close()
        for sink in self._sinks:
            sink.close()

    def say(self, text: str) -> None:
        """A line of text."""
        if self._display is not None:
            self._display.say(text)

    def milestone(self, text: str) -> None:
        """A line with the time at which something was reached."""
        self.say(lines.milestone_line(text, datetime.now()))

    def step(self, record: StepRecord, phases: Phases) -> None:
        """Takes an iteration; prints the log line of the first, each interval and the last.

        `phases` are the (least, most) seconds of the ranks by phase.
        """
        self._interval.add(record)
        for phase, seconds in phases.items():
            before = self._phases.get(phase, (0.0, 0.0))
            self._phases[phase] = before[0] + seconds[0], before[1] + seconds[1]
        for sink in self._sinks:
            sink.step(record, self._interval)
        if self._display is None:
            return
        report = self._interval.report(record)
        self._display.progress(report)
        last = record.iteration == self._facts.total_iterations
        due = last or record.iteration % self._config.log_interval == 0
        if due or not self._started:
            total, throughput = self._facts.total_iterations, self._config.log_throughput
            self.say(lines.iteration_line(report, total, datetime.now(), throughput))
            self._say_phases()
        self._started = True
        if due:
            self._interval = Interval(self._facts)
            self._phases.clear()

    def evaluation(self, record: EvaluationRecord) -> None:
        """Takes the losses of an evaluation."""
        for sink in self._sinks:
            sink.evaluation(record)
        self.say(lines.evaluation_block(record))

    def _say_phases(self) -> None:
        if self._phases:
            count = self._interval.records
            means = {name: (a / count, b / count) for name, (a, b) in self._phases.items()}
            self.say(lines.timers_block(means))
