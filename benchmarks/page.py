"""Puts generated text into docs/speed.md, between the marks of its section."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "speed.md"


def update(section: str, text: str, page: Path = PAGE) -> None:
    """Replaces what stands between `<!-- begin section -->` and `<!-- end section -->`."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), section, text), encoding="utf-8")


def replaced(page: str, section: str, text: str) -> str:
    """The page with a section's text replaced; ValueError if its marks are not there."""
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the page lacks the marks {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
