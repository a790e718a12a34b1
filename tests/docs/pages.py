"""The pages that people read, cut into what can be checked."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, its text, and why it is not run, if so."""

    line: int
    language: str
    text: str
    not_run: str | None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page; `<!-- not run: why -->` stands on the line before its block."""
    found, lines = [], page.splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        excuse = NOT_RUN.fullmatch(lines[start - 1]) if start else None
        text = "\n".join(lines[start + 1 : number])
        found.append(Block(start + 1, lines[start][3:], text, excuse and excuse[1]))
        start = None
    return found


def name(page: Path) -> str:
    """`docs/train.md`."""
    return str(page.relative_to(ROOT))
