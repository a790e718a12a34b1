"""Whole training runs in small, as a command line would start them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.config.flags import load_run
from megalith.train.loop import train_on

SMALL = """--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16
    --micro-batch-size 2 --global-batch-size 4 --train-iters 8 --lr 1e-2 --lr-warmup-iters 2
    --log-interval 1 --eval-iters 0 --make-vocab-size-divisible-by 1 --num-workers 0""".split()

WORDS = "the sea was grey and the wind came from the north all day".split()


def corpus(folder: Path, documents: int = 12) -> str:
    """A prepared corpus of some dozen sentences; returns its prefix for --data-path."""
    from megalith.config.flags import parse_prepare
    from megalith.data.preprocess import prepare

    text = folder / "corpus.jsonl"
    lines = [" ".join(WORDS[i % 5 :] + WORDS[: i % 7]) for i in range(documents)]
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    prefix = str(folder / "corpus")
    prepare(parse_prepare(["--input", str(text), "--output-prefix", prefix, "--append-eod"])[0])
    return f"{prefix}_text_document"


def train(mesh: Mesh, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Runs a training on the ranks of `mesh`; returns the records of its --log-jsonl, if any."""
    config = load_run([*SMALL, *arguments], "gpt", mesh.world_size).config
    train_on(mesh, config)
    log = config.logging.log_jsonl
    return records(Path(log)) if log is not None and mesh.is_main else []


def train_alone(*arguments: str) -> list[dict[str, Any]]:
    """The same in this process."""
    return train(Mesh.create(ParallelLayout(), torch.device("cpu")), arguments)


def records(log: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL log."""
    return [json.loads(line) for line in log.read_text().splitlines()]
