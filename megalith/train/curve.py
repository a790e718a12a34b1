"""A picture of a run's loss, from its JSON lines.

The few shapes that it takes are written as SVG here: every browser shows it, it scales, and no
plotting library of tens of megabytes has to be installed for it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path

from megalith.errors import MegalithError

Points = list[tuple[float, float]]

WIDTH, HEIGHT = 800, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
TICKS = 6


def draw_curve(log: Path, picture: Path) -> None:
    """Draws training and validation loss over iterations from `--log-jsonl`'s file as SVG.

    Raises MegalithError for a log that has no losses or cannot be read, and another file type.
    """
    if picture.suffix != ".svg":
        raise MegalithError(f"{picture}: the picture is drawn as SVG, so its name must end in .svg")
    train, validation = _read(log)
    frame = _Frame.around([*train, *validation])
    shapes = [
        *_axes(frame),
        _line(frame, train),
        *_dots(frame, validation),
        *_legend(bool(validation)),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="13" fill="#333"'
    title = _text(WIDTH / 2, 24, f"Loss of {log.name}", "middle")
    lines = [f"{head} {style}>", '<rect width="100%" height="100%" fill="white"/>', title, *shapes]
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


def _read(log: Path) -> tuple[Points, Points]:
    """Training and validation losses by iteration; of iterations done twice the last."""
    found: dict[str, dict[float, float]] = {"step": {}, "evaluation": {}}
    number = 0
    try:
        for line in log.read_text(encoding="utf-8").splitlines():
            number += 1
            record = json.loads(line)
            loss = record.get("lm loss")
            if loss is not None and record.get("split", "validation") == "validation":
                found[record["kind"]][record["iteration"]] = loss
    except OSError as error:
        raise MegalithError(f"{log}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise MegalithError(f"{log}:{number}: is no line of --log-jsonl ({error!r})") from error
    if not found["step"]:
        raise MegalithError(f"{log}: has no training losses to draw")
    return sorted(found["step"].items()), sorted(found["evaluation"].items())


@dataclass(frozen=True)
class _Frame:
    """The ranges of both axes, and the way from values to places on the picture."""

    x: tuple[float, float]
    y: tuple[float, float]

    @staticmethod
    def around(points: Points) -> "_Frame":
        losses = [loss for _, loss in points]
        last = max(iteration for iteration, _ in points)
        step = _tick_step(min(losses), max(losses))
        low, high = floor(min(losses) / step) * step, ceil(max(losses) / step) * step
        return _Frame((0, max(last, 1)), (low, high if high > low else low + step))

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )


def _tick_step(low: float, high: float) -> float:
    """The distance of ticks: 1, 2 or 5 times a power of ten."""
    rough = max(high - low, 1e-6) / TICKS
    power = 10.0 ** floor(log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _ticks(bounds: tuple[float, float]) -> Iterator[float]:
    step = _tick_step(*bounds)
    for number in range(ceil(bounds[0] / step - 1e-9), floor(bounds[1] / step + 1e-9) + 1):
        yield number * step


def _axes(frame: _Frame) -> Iterator[str]:
    for value in _ticks(frame.y):
        x, y = frame.place(frame.x[0], value)
        yield f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield _text(x - 8, y + 4, f"{value:g}", "end")
    for value in _ticks(frame.x):
        x, y = frame.place(value, frame.y[0])
        yield f'<path d="M{x} {y}v5" stroke="#333"/>'
        yield _text(x, y + 20, f"{value:g}", "middle")
    left, bottom = frame.place(frame.x[0], frame.y[0])
    yield f'<path d="M{left} {TOP}V{bottom}H{WIDTH - RIGHT}" stroke="#333" fill="none"/>'
    yield _text(WIDTH / 2, HEIGHT - 10, "iteration", "middle")


def _line(frame: _Frame, points: Points) -> str:
    path = " ".join(f"{x},{y}" for x, y in (frame.place(*point) for point in points))
    return f'<polyline points="{path}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>'


def _dots(frame: _Frame, points: Points) -> Iterator[str]:
    for x, y in (frame.place(*point) for point in points):
        yield f'<circle cx="{x}" cy="{y}" r="4" fill="#d62728"/>'


def _legend(with_validation: bool) -> Sequence[str]:
    x = WIDTH - RIGHT - 10
    shapes = [_text(x, TOP + 20, "training", "end", "#1f77b4")]
    return (
        [*shapes, _text(x, TOP + 40, "validation", "end", "#d62728")] if with_validation else shapes
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
