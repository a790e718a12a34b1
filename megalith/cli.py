"""The command `megalith`: finds the subcommand, reads its settings, does the work.

Nothing heavy is imported before it is needed, so that help and mistakes come at once.
"""

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megalith import __version__
from megalith.comm.guard import run_guarded
from megalith.comm.place import Place
from megalith.config.files import preset_names, to_yaml
from megalith.config.flags import FAMILIES, load_run, parse_generate, parse_prepare
from megalith.config.pages import settings_page
from megalith.config.parser import build_parser
from megalith.config.schema import (
    CheckpointConfig,
    GenerateConfig,
    PrepareConfig,
    RunConfig,
    to_dict,
)
from megalith.config.values import nearest
from megalith.errors import MegalithError

SECONDS_FOR_RANK_0 = 10.0

Job = Callable[[], int]


@dataclass(frozen=True)
class Command:
    """A subcommand: what it is for, how its settings become a job, and their class.

    `words` shows what follows the name of one whose words are no settings.
    """

    summary: str
    read: Callable[[list[str]], Job]
    config_class: type | None = None
    words: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status (2 for a mistake of the user's)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        job = read(words)
    except MegalithError as error:
        return _report(error, debug, silent=_is_told_elsewhere())
    try:
        return job()
    except MegalithError as error:
        return _report(error, debug, silent=False)
    except KeyboardInterrupt:
        print("megalith: stopped from the keyboard", file=sys.stderr)
        return 128 + signal.SIGINT


def read(words: Sequence[str]) -> Job:
    """What a command line asks for; raises MegalithError on mistakes in it."""
    if not words or words[0] in ("--help", "-h", "help"):
        return functools.partial(_say, _overview())
    if words[0] == "--version":
        return functools.partial(_say, f"megalith {__version__}")
    for name, command in COMMANDS.items():
        length = len(name.split())
        if " ".join(words[:length]) == name:
            return _read_command(name, command, list(words[length:]))
    raise MegalithError(_no_command(words))


def _read_command(name: str, command: Command, rest: list[str]) -> Job:
    if command.config_class and ("--help" in rest or "-h" in rest):
        return functools.partial(_say, _help(name, command))
    if rest[:1] in (["--help"], ["-h"]):
        return functools.partial(_say, f"megalith {name} {command.words}: {command.summary}")
    return command.read(rest)


def _no_command(words: Sequence[str]) -> str:
    asked = " ".join(word for word in words[:2] if not word.startswith("-"))
    similar = nearest(asked, COMMANDS)
    hint = f"the nearest is `megalith {similar}`" if similar else f"there are {', '.join(COMMANDS)}"
    return f"there is no command `megalith {asked}`: {hint}"


def _report(error: MegalithError, debug: bool, silent: bool) -> int:
    if debug and not silent:
        raise error
    if not silent:
        print(f"megalith: error: {error}", file=sys.stderr, flush=True)
    return 2


def _is_told_elsewhere() -> bool:
    """Whether another rank tells of a mistake in the command line, which all ranks read alike.

    Rank 0 tells. The others give it time, since torchrun stops all when one ends; a rank that is
    still there after that tells too if it is the first of its host, where files may differ.
    """
    try:
        place = Place.from_environment(os.environ)
    except MegalithError:
        return False  # the environment of this very rank is what is wrong
    if place.rank == 0:
        return False
    time.sleep(SECONDS_FOR_RANK_0)
    return os.environ.get("LOCAL_RANK", "") != "0"


def _say(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has seen enough (`| head`); closing must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _note(notices: Sequence[str]) -> None:
    for notice in notices:
        print(f"megalith: note: {notice}", file=sys.stderr)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  megalith {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["Megalith trains Transformer language models.", "", *lines, "", "Each takes --help."]
    )


def _help(name: str, command: Command) -> str:
    assert command.config_class is not None
    parser = build_parser(command.config_class, f"megalith {name}")
    parser.description = command.summary
    if command.config_class is RunConfig:
        parser.epilog = "Presets: " + ", ".join(preset_names())
    return parser.format_help()


def _read_pretrain(family: str, words: list[str]) -> Job:
    world_size = Place.from_environment(os.environ).world_size
    run = load_run(words, family, world_size, _saved_run)

    def job() -> int:
        from megalith.train.loop import pretrain

        return pretrain(run.config, run.notices)

    return functools.partial(run_guarded, job, run.config.parallel, "--debug" in words)


def _saved_run(checkpoint: CheckpointConfig) -> RunConfig | None:
    from megalith.train.persist import saved_run

    return saved_run(checkpoint)


def _read_prepare(words: list[str]) -> Job:
    config, notices = parse_prepare(words)

    def job() -> int:
        from megalith.data.preprocess import prepare

        _note(notices)
        prepare(config)
        return 0

    return job


def _read_generate(words: list[str]) -> Job:
    config, notices = parse_generate(words)

    def job() -> int:
        from megalith.serve.generate import run

        _note(notices)
        run(config)
        return 0

    return job


def _read_show(words: list[str]) -> Job:
    """`--json` and `--world-size N` are of this command, all others are settings of a run."""
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    world_size = Place.from_environment(os.environ).world_size
    if "--world-size" in words:
        place = words.index("--world-size")
        value = (words[place + 1 : place + 2] or [""])[0]
        if not value.isdigit() or value == "0":
            raise MegalithError(f"--world-size {value}: must be the number of ranks")
        world_size = int(value)
        del words[place : place + 2]
    run = load_run(words, "gpt", world_size, _saved_run)

    def job() -> int:
        _note(run.notices)
        return _say(json.dumps(to_dict(run.config), indent=2) if as_json else to_yaml(run.config))

    return job


def _read_docs(words: list[str]) -> Job:
    if words:
        raise MegalithError(f"megalith config docs takes no settings, but got {' '.join(words)}")
    return functools.partial(_say, settings_page().rstrip("\n"))


def _read_launch(words: list[str]) -> Job:
    """torchrun's options come first, then a command of ours, with or without `megalith`."""
    heads = {name.split()[0] for name in COMMANDS} - {"launch"}
    start = next((place for place, word in enumerate(words) if word in heads), None)
    if start is None:
        raise MegalithError(
            "megalith launch: say what to start, such as "
            "`megalith launch --nproc-per-node 2 pretrain gpt --preset demo ...`"
        )
    options, command = words[:start], words[start:]
    if options[-1:] == ["megalith"]:
        options.pop()

    def job() -> int:
        from megalith.comm.spawn import spawn

        return spawn(options, ["-m", "megalith", *command])

    return job


def _read_plot(words: list[str]) -> Job:
    if len(words) != 2:
        raise MegalithError(
            "megalith plot takes a log and a picture: megalith plot LOG.jsonl LOSS.svg"
        )
    log, picture = map(Path, words)

    def job() -> int:
        from megalith.train.curve import draw_curve

        draw_curve(log, picture)
        return 0

    return job


COMMANDS = {
    **{
        f"pretrain {family}": Command(
            f"train a {family.upper()} model on a prepared corpus",
            functools.partial(_read_pretrain, family),
            RunConfig,
        )
        for family in FAMILIES
    },
    "data prepare": Command("turn text into token files", _read_prepare, PrepareConfig),
    "generate": Command("continue texts with a trained model", _read_generate, GenerateConfig),
    "plot": Command(
        "draw a run's loss from its --log-jsonl as SVG", _read_plot, words="LOG.jsonl LOSS.svg"
    ),
    "config show": Command(
        "print a run's settings with derived values, as YAML or --json", _read_show, RunConfig
    ),
    "config docs": Command("print the settings page in Markdown", _read_docs),
    "launch": Command(
        "start a command in several processes; options are torchrun's (see torchrun --help)",
        _read_launch,
        words="--nproc-per-node N [options] pretrain gpt ...",
    ),
}
