"""Pieces of results as Markdown tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from statistics import median
from typing import Any

from benchmarks.contenders import OURS
from benchmarks.job import Contender
from benchmarks.rounds import Row
from benchmarks.store import Piece, place_of
from megalith.config.schema import ModelConfig
from megalith.train.metrics import gpt_flops


@dataclass(frozen=True)
class Line:
    """A row of a piece, worked out. Times in seconds, memory in bytes."""

    piece: int
    contender: Contender
    processes: int
    step: float
    slowest: float
    tokens_per_second: float
    mfu: float
    peak_rss: int
    first_step: float
    ratio: float
    to_single: float | None

    @property
    def name(self) -> str:
        return self.contender.name + (f", {self.processes} processes" if self.processes > 1 else "")


def tables(pieces: Iterable[Piece]) -> str:
    """A table for each machine and workload."""
    return "\n\n".join(
        _table(list(same)) for _, same in groupby(sorted(pieces, key=place_of), place_of)
    )


def lines_of(piece: Piece, number: int) -> list[Line]:
    """The rows that did not fail, each with ours over it, from the same run."""
    rows = [row for row in piece["rows"] if row["failure"] is None]
    distributed = max(row["job"]["processes"] for row in piece["rows"])
    ours, single = (_ours(piece, rows, processes) for processes in (distributed, 1))
    return [_line(piece, number, row, ours, single) for row in rows]


def step_seconds(row: Row, warmup: int) -> list[float]:
    """The steps of all rounds that count."""
    return list(chain.from_iterable(measured["seconds"][warmup:] for measured in row["rounds"]))


def _ours(piece: Piece, rows: Sequence[Row], processes: int) -> float | None:
    """Seconds of our step, as it is by default, in so many processes."""
    for row in rows:
        job = row["job"]
        if Contender(**job["contender"]) == OURS and job["processes"] == processes:
            return median(step_seconds(row, piece["warmup"]))
    return None


def _line(piece: Piece, number: int, row: Row, ours: float | None, single: float | None) -> Line:
    seconds = step_seconds(row, piece["warmup"])
    work, machine, step = piece["workload"], piece["machine"], median(seconds)
    assert ours is not None, "each piece needs our own row"
    return Line(
        piece=number,
        contender=Contender(**row["job"]["contender"]),
        processes=row["job"]["processes"],
        step=step,
        slowest=max(seconds),
        tokens_per_second=work["batch"] * work["sequence"] / step,
        mfu=flops(work) / step / machine["peaks"][work["dtype"]],
        peak_rss=max(measured["peak_rss"] for measured in row["rounds"]),
        first_step=row["rounds"][0]["seconds"][0],
        ratio=step / ours,
        to_single=single / step if single is not None else None,
    )


def flops(work: dict[str, int]) -> float:
    """Floating-point operations of a step."""
    hidden = work["hidden"]
    model = ModelConfig(
        num_layers=work["layers"],
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=work["heads"],
        num_query_groups=work["heads"],
        kv_channels=hidden // work["heads"],
        seq_length=work["sequence"],
        padded_vocab_size=work["vocabulary"],
    )
    return gpt_flops(model, work["batch"])


def _table(pieces: list[Piece]) -> str:
    lines = [line for number, piece in enumerate(pieces, 1) for line in lines_of(piece, number)]
    distributed = any(line.processes > 1 for line in lines)
    head = ["contender", "tokens/s", "MFU", "ours / it", "slowest / median", "peak RSS"]
    head += ["first step", *(["ours in one process"] if distributed else []), "run"]
    rows = [_cells(line, distributed) for line in lines]
    failures = [
        f"- {Contender(**row['job']['contender']).name} failed: `{row['failure']}`"
        for piece in pieces
        for row in piece["rows"]
        if row["failure"] is not None
    ]
    parts = [f"### {pieces[0]['title']}", machine_line(pieces), markdown(head, rows)]
    return "\n\n".join([*parts, *verdicts(lines), *(["\n".join(failures)] if failures else [])])


def _cells(line: Line, distributed: bool) -> list[str]:
    single = "" if line.to_single is None else f"{line.to_single:.2f}x"
    return [
        f"**{line.name}**" if line.contender == OURS else line.name,
        f"{line.tokens_per_second:,.0f}",
        f"{line.mfu:.1%}",
        f"{line.ratio:.2f}x",
        f"{line.slowest / line.step:.2f}",
        f"{line.peak_rss / 2**30:.2f} GiB",
        f"{line.first_step:.1f} s",
        *([single] if distributed else []),
        str(line.piece),
    ]


def verdicts(lines: Sequence[Line]) -> list[str]:
    """Ours against the best untouched and the best tuned peer."""
    peers = [line for line in lines if line.contender.trainer != OURS.trainer]
    found = []
    for tuned, words in ((False, "untouched"), (True, "with the same malloc setting")):
        among = [line for line in peers if line.contender.tuned == tuned]
        if among:
            best = min(among, key=lambda line: line.ratio)
            found.append(f"Best peer {words}: {best.name}; ours is **{best.ratio:.2f}x** as fast.")
    return found


def machine_line(pieces: Sequence[Piece]) -> str:
    """What the pieces were measured on, when, and what MFU refers to."""
    machine = pieces[-1]["machine"]
    dtype = pieces[0]["workload"]["dtype"]
    peaks = [piece["machine"]["peaks"][dtype] / 1e9 for piece in pieces]
    dates = sorted({piece["date"] for piece in pieces})
    measured = " and ".join(f"{peak:,.1f}" for peak in peaks)
    return (
        f"{machine_words(machine)}; {' and '.join(dates)}. MFU is against the best square {dtype} "
        f"matrix product (`torch.mm`, in fp32 if that is faster) with {machine['threads']} "
        f"threads, measured at the start of each run: {measured} GFLOP/s."
    )


def machine_words(machine: dict[str, Any]) -> str:
    """A machine and its software."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"{machine['cpu']} ({', '.join(machine['instructions'])}), {machine['cores']} cores, "
        f"{machine['memory'] / 2**30:.0f} GiB; {packages}"
    )


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ruler, *rows])


def profile_tables(pieces: Iterable[Piece]) -> str:
    """A table of kinds of work for each profile."""
    return "\n\n".join(_profile_table(piece) for piece in sorted(pieces, key=place_of))


def _profile_table(piece: Piece) -> str:
    row = piece["rows"][0]
    step, watched = row["step"], row["watched_step"]
    floor = flops(piece["workload"]) / piece["machine"]["peaks"][piece["workload"]["dtype"]]
    rows = [
        [kind, f"{1e3 * seconds:,.1f} ms", f"{seconds / watched:.1%}"]
        for kind, seconds in sorted(row["kinds"].items(), key=lambda item: -item[1])
    ]
    summary = (
        f"A step takes {1e3 * step:,.0f} ms ({1e3 * watched:,.0f} ms under the profiler). At the "
        f"peak its products alone would take {1e3 * floor:,.0f} ms, {floor / step:.0%} of it."
    )
    table = markdown(["kind of work", "time", "share"], rows)
    return "\n\n".join([f"### {piece['title']}", machine_line([piece]), summary, table])
