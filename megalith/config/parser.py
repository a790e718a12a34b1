"""The command line of a config class: an argparse parser made from the schema."""

import argparse
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from megalith.config.schema import groups_of, settings_of
from megalith.config.values import Setting, convert, flag, nearest

GENERAL = ("config", "preset")


@dataclass(frozen=True)
class Given:
    """A value that the user gave, and where: a flag, `file:line` or a preset."""

    value: Any
    source: str


@dataclass
class Layer:
    """The settings that one source gives, and what is wrong with it."""

    values: dict[str, Given] = field(default_factory=dict)
    general: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, setting: Setting, raw: Any, source: str) -> None:
        """Take a raw value, or note why it is none."""
        try:
            self.values[setting.name] = Given(convert(setting, raw), source)
        except ValueError as error:
            self.problems.append(f"{source} {error}")


@functools.cache
def all_settings(config_class: type) -> dict[str, Setting]:
    """Every setting of a config class and its groups."""
    return {
        name: setting
        for _, group in groups_of(config_class)
        for name, setting in settings_of(group).items()
    }


def spellings(setting: Setting) -> tuple[list[str], list[str]]:
    """The flags of a setting, and those that switch it off (none unless boolean)."""
    name = flag(setting.name)
    if setting.type is not bool:
        return [name, *setting.metadata["former"]], []
    return [name, *setting.metadata["former"]], ["--no-" + name[2:], *setting.metadata["negative"]]


@functools.cache
def known_flags(config_class: type) -> frozenset[str]:
    """Every flag that the parser of a config class takes."""
    own = [
        word
        for s in all_settings(config_class).values()
        for names in spellings(s)
        for word in names
    ]
    return frozenset([*own, *map(flag, GENERAL), "--debug", "--help"])


def parse_flags(argv: Sequence[str], config_class: type, known_elsewhere: Sequence[str]) -> Layer:
    """Read a command line, whose flags have dashes only.

    An unknown flag is a problem that names the nearest of the known flags and `known_elsewhere`.
    """
    layer = Layer()
    try:
        found, unknown = build_parser(config_class).parse_known_args(argv)
    except ValueError as error:
        layer.problems.append(str(error).removeprefix("argument "))
        return layer
    settings = all_settings(config_class)
    for name, raw in vars(found).items():
        if name in GENERAL:
            layer.general[name] = raw
        elif name in settings:
            layer.put(settings[name], raw, flag(name))
    candidates = known_flags(config_class) | set(known_elsewhere)
    layer.problems += [_unknown(word, candidates) for word in unknown if word.startswith("-")]
    if unknown and not unknown[0].startswith("-"):
        layer.problems.append(f"the words {' '.join(unknown)!r} belong to no flag: remove them")
    return layer


_LAUNCHER_FLAGS = (
    "--nproc", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--standalone",
    "--rdzv", "--local-addr", "--max-restarts",
)  # fmt: skip
"""How torchrun's flags begin."""


def _unknown(word: str, candidates: frozenset[str]) -> str:
    name = word.partition("=")[0]
    if name.startswith(_LAUNCHER_FLAGS):
        return (
            f"{name} is not a setting of the run but of what launches it: "
            f"megalith launch {name} ... pretrain gpt ..."
        )
    similar = nearest(name, candidates)
    hint = f"the nearest known one is {similar}" if similar else "see --help for all flags"
    return f"unknown flag {name}: {hint}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def build_parser(config_class: type, prog: str | None = None) -> argparse.ArgumentParser:
    """The parser; values stay words and absent flags are absent from its result."""
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [settings]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=100),
    )
    general = parser.add_argument_group("General")
    general.add_argument("--config", metavar="FILE", help="YAML file with the same settings")
    general.add_argument("--preset", metavar="NAME", help="settings of a known model")
    general.add_argument("--debug", action="store_true", help="show the traceback of an error")
    for _, group in groups_of(config_class):
        section = parser.add_argument_group(group.__doc__)
        for setting in settings_of(group).values():
            _add(section, setting)
    return parser


def _add(section: Any, setting: Setting) -> None:
    """Add a setting's flags; of a boolean, help shows those that change the default."""
    on, off = spellings(setting)
    text = describe(setting).replace("%", "%%")
    if setting.type is bool:
        for words, value in ((on, True), (off, False)):
            shown = argparse.SUPPRESS if value == setting.default else text
            section.add_argument(
                *words, dest=setting.name, action="store_const", const=value, help=shown
            )
        return
    several = "tuple" in str(setting.type)
    section.add_argument(
        *on, dest=setting.name, nargs="+" if several else None, help=text, metavar=_metavar(setting)
    )


def _metavar(setting: Setting) -> str:
    kinds = {"int": "N", "float": "X"}
    return next((sign for kind, sign in kinds.items() if kind in str(setting.type)), "TEXT")


def describe(setting: Setting) -> str:
    """Help, choices, unit and default of a setting in a line."""
    about = setting.metadata
    parts = [about["unit"]] if about["unit"] not in ("", "path") else []
    parts += ["one of " + ", ".join(about["choices"])] if about["choices"] else []
    if setting.type is not bool and setting.default not in (None, ()):
        parts.append(f"default {default_text(setting)}")
    start = "switch off: " if setting.type is bool and setting.default else ""
    return start + about["help"] + (f" ({'; '.join(parts)})" if parts else "")


def default_text(setting: Setting) -> str:
    """The default as one would write it on a command line."""
    default = setting.default
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) and default < 1e6 else str(default)
