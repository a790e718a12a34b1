"""Results as committed JSON: a list of pieces, each measured in one run."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.job import Workload
from benchmarks.rounds import Row

Piece = dict[str, Any]
"""Rows that were measured in turn: "date", "machine", "workload", "warmup", "rows"."""


def piece_of(machine: dict[str, Any], work: Workload, warmup: int, rows: list[Row]) -> Piece:
    """A piece measured today. The first `warmup` steps of a round are not counted."""
    return {
        "date": date.today().isoformat(),
        "machine": machine,
        "workload": rows[0]["job"]["workload"],
        "title": work.title,
        "warmup": warmup,
        "rows": rows,
    }


def load(path: Path) -> list[Piece]:
    """The pieces that were measured so far."""
    if not path.exists():
        return []
    pieces: list[Piece] = json.loads(path.read_text(encoding="utf-8"))
    return pieces


def add(path: Path, piece: Piece) -> list[Piece]:
    """Stores a piece, in place of an earlier one of the same jobs on the same machine."""
    pieces = [other for other in load(path) if _subject(other) != _subject(piece)]
    pieces.append(piece)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")
    return pieces


def _subject(piece: Piece) -> Any:
    jobs = [(row["job"]["contender"], row["job"]["processes"]) for row in piece["rows"]]
    return place_of(piece), sorted(map(str, jobs))


def place_of(piece: Piece) -> tuple[str, int, str, str]:
    """What must be equal for two pieces to stand in one table: machine, torch and workload."""
    machine = piece["machine"]
    return machine["cpu"], machine["cores"], machine["packages"]["torch"], piece["title"]
