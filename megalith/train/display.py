"""The terminal: plain lines, with a live line of progress under them where someone watches."""

import sys
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from megalith.train.lines import duration
from megalith.train.records import IntervalReport


class Display(Protocol):
    """Where a run's lines go."""

    def say(self, text: str) -> None: ...

    def progress(self, report: IntervalReport) -> None:
        """Shows how far the run is; called after each iteration."""
        ...

    def close(self) -> None: ...


def open_display(mode: str, total_iterations: int) -> Display:
    """The display that `--live-display` asks for; "auto" is live on a terminal."""
    live = mode == "on" or (mode == "auto" and sys.stdout.isatty())
    return LiveDisplay(total_iterations) if live else PlainDisplay()


class PlainDisplay:
    """Lines only."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, report: IntervalReport) -> None:
        pass

    def close(self) -> None:
        pass


class LiveDisplay:
    """Lines that scroll above a line of progress."""

    def __init__(self, total_iterations: int, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("iteration {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.description}"),
            console=console or Console(soft_wrap=True, highlight=False),
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=total_iterations)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, report: IntervalReport) -> None:
        parts = [f"{name} {loss:.4f}" for name, loss in report.losses.items()]
        parts.append(f"{report.tokens_per_second:,.0f} tokens/s")
        parts += [f"MFU {report.mfu:.1%}"] if report.mfu is not None else []
        parts += [f"{duration(report.seconds_left)} left"] if report.seconds_left else []
        self._bar.start()
        self._bar.update(self._task, completed=report.last.iteration, description=", ".join(parts))

    def close(self) -> None:
        self._bar.stop()
