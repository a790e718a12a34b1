"""What can become of a flag that is no setting here."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

RENAMED, ACCEPTED, REFUSED = "renamed", "accepted", "refused"


@dataclass(frozen=True)
class Row:
    """Flags that share a fate.

    Of a renamed or accepted flag, `--name` takes no value, `--name=` one and `--name=+` several.
    A refused flag is accepted with one of the values in `--name=this|that`, which ask for what is
    done anyway. `text` is the replacement of a renamed flag, else the notice or the reason; an
    accepted flag with an empty text is passed over in silence. A renamed flag yields to any flag
    in `unless`.
    """

    fate: str
    names: str
    text: str
    unless: str = ""

    def find(self, flag: str) -> "Entry | None":
        """This row's entry for `flag`, if it has one."""
        for word in self.names.split():
            name, _, values = word.partition("=")
            if fnmatchcase(flag, name):
                return Entry(self, values if "=" in word else None)
        return None


@dataclass(frozen=True)
class Entry:
    """A row and what its table says of the values of one flag (None: it takes none)."""

    row: Row
    values: str | None

    def accepts(self, given: list[str]) -> bool:
        """Whether a refused flag with these values asks for what is done anyway."""
        return self.values is not None and [*given] in [[v] for v in self.values.split("|")]

    def value_count(self) -> int | None:
        """How many values follow; None is any number."""
        if self.row.fate == REFUSED or self.values == "+":
            return None
        return 0 if self.values is None else 1
