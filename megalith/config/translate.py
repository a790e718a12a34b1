"""A command line in Megatron-LM's words, turned into one in ours."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from megalith.config.fates import ACCEPTED, REFUSED, RENAMED, Entry
from megalith.config.legacy import find


@dataclass
class Translation:
    """A command line without foreign flags, and what to tell the user about those."""

    argv: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def translate(argv: Sequence[str], known: Set[str]) -> Translation:
    """Replace, drop or refuse every flag of `argv` that the table has and `known` has not.

    Flags are compared with dashes for underscores. Replacements come first, so that a present
    name beats a former one.
    """
    result, replaced = Translation(), []
    dropped: dict[str, list[str]] = {}
    given = {name for name, _ in split(argv)}
    for name, words in split(argv):
        entry = None if name in known else find(name)
        if entry is None:
            result.argv += words
            continue
        values, rest = _take(words, entry.value_count())
        result.argv += rest
        if entry.row.fate == RENAMED:
            overruled = given & set(entry.row.unless.split())
            replaced += [] if overruled else [*entry.row.text.split(), *values]
            read = f"is overruled by {min(overruled)}" if overruled else f"means {entry.row.text}"
            result.notices.append(f"{name} {read}")
        elif entry.row.fate == ACCEPTED or entry.accepts(values):
            dropped.setdefault(_notice(entry), []).append(name)
        else:
            result.refusals.append(f"{' '.join([name, *values])}: {entry.row.text}")
    result.argv = replaced + result.argv
    result.notices += [f"{', '.join(flags)}: {text}" for text, flags in dropped.items() if text]
    return result


def split(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Cut a command line before each flag; yields the flag's name ("" at first) and its words.

    `--a_b=c` becomes the name `--a-b` and the words `--a-b=c`.
    """
    name, words = "", list[str]()
    for word in argv:
        if word.startswith("--"):
            if words:
                yield name, words
            flag, equals, value = word.partition("=")
            name = flag.replace("_", "-")
            words = [name + equals + value]
        else:
            words.append(word)
    if words:
        yield name, words


def _take(words: list[str], count: int | None) -> tuple[list[str], list[str]]:
    """The values of a flag, and what follows them."""
    _, equals, value = words[0].partition("=")
    values = [value] if equals else []
    wanted = len(words) if count is None else count - len(values)
    return values + words[1 : 1 + max(wanted, 0)], words[1 + max(wanted, 0) :]


def _notice(entry: Entry) -> str:
    same = "that is what is done here anyway"
    return f"{same} ({entry.row.text})" if entry.row.fate == REFUSED else entry.row.text
