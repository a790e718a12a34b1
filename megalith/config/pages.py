"""The settings page of the documentation, made from the schema."""

from collections.abc import Iterator

from megalith.config.files import preset_names
from megalith.config.parser import default_text, spellings
from megalith.config.schema import GenerateConfig, PrepareConfig, RunConfig, groups_of, settings_of
from megalith.config.values import Setting

PROGRAMS = {
    "megalith pretrain gpt": RunConfig,
    "megalith data prepare": PrepareConfig,
    "megalith generate": GenerateConfig,
}
OPENING = """# Settings

Made by `megalith config docs` from `megalith/config/schema.py`; do not edit.

A setting is a flag, or a key in a YAML file (`--config run.yaml`, the flag's name with underscores
for dashes). Flags win over the file, the file over `--preset`, that over the defaults. Every
boolean `--x` has its `--no-x`. `megalith config show` with the settings of a run prints them all,
with derived values, as a file for `--config`.
"""


def settings_page() -> str:
    """The page in Markdown."""
    parts = [OPENING, "Presets: " + ", ".join(f"`{name}`" for name in preset_names()) + ".\n"]
    for program, config_class in PROGRAMS.items():
        parts.append(f"## `{program}`\n")
        for _, group in groups_of(config_class):
            parts.append(f"### {group.__doc__}\n")
            parts.append("\n".join(_table(group)) + "\n")
    return "\n".join(parts)


def _table(group: type) -> Iterator[str]:
    yield "| flag | default | meaning |"
    yield "|---|---|---|"
    for setting in settings_of(group).values():
        yield f"| {_flags(setting)} | {_default(setting)} | {_meaning(setting)} |"


def _flags(setting: Setting) -> str:
    on, off = spellings(setting)
    shown = off if setting.type is bool and setting.default else on
    return ", ".join(f"`{name}`" for name in shown)


def _default(setting: Setting) -> str:
    if setting.type is bool:
        return "on" if setting.default else "off"
    return "" if setting.default in (None, ()) else f"`{default_text(setting)}`"


def _meaning(setting: Setting) -> str:
    about = setting.metadata
    unit = f" ({about['unit']})" if about["unit"] else ""
    choices = about["choices"]
    named = f"; one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
    return about["help"].replace("|", "\\|") + unit + named
