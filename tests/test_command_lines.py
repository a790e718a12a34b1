"""Command lines as people have them in scripts for Megatron-LM, run as they would run them.

They stand here unchanged; only sizes are turned down before they run.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PREPARE = """python tools/preprocess_data.py --input my_corpus.jsonl --output-prefix my_data
    --vocab vocab.txt --dataset-impl mmap --tokenizer-type GPT2BPETokenizer --merge-file merges.txt
    --append-eod --workers 8"""

TRAIN = """pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 1
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --micro-batch-size 4
    --global-batch-size 256 --seq-length 2048 --max-position-embeddings 2048 --train-iters 500000
    --lr-decay-iters 320000 --save checkpoints --load checkpoints --data-path my_data
    --vocab-file vocab.txt --merge-file merges.txt --data-impl mmap --split 949,50,1
    --distributed-backend nccl --lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine
    --weight-decay 1e-2 --clip-grad 1.0 --lr-warmup-fraction .01 --checkpoint-activations
    --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 --fp16"""

LAUNCH = """python -m torch.distributed.launch --nproc_per_node 8 --nnodes 1 --node_rank 0
    --master_addr localhost --master_port 6000"""

TORCHRUN = """torchrun --nproc_per_node 8 --nnodes 1 --node_rank 0
    --master_addr localhost --master_port 6000"""

SMALL = {
    "--workers": "2",
    "--nproc_per_node": "2",
    "--tensor-model-parallel-size": "1",
    "--num-layers": "2",
    "--hidden-size": "32",
    "--num-attention-heads": "4",
    "--micro-batch-size": "2",
    "--global-batch-size": "8",
    "--seq-length": "64",
    "--max-position-embeddings": "64",
    "--train-iters": "4",
    "--lr-decay-iters": "400",
    "--log-interval": "2",
    "--save-interval": "4",
    "--eval-interval": "4",
    "--eval-iters": "2",
}

LOG_LINE = re.compile(
    r"^ \[[\d-]+ [\d:.]+\] iteration +(\d+)/ +(\d+) \| consumed samples: +(\d+) \| .*"
    r"learning rate: [\d.E+-]+ \| global batch size: +8 \| .*loss scale: [\d.]+ \| .*"
    r"number of skipped iterations: +(\d+) \| number of nan iterations: +0 \|",
    re.MULTILINE,
)


def turned_down(line: str, sizes: Mapping[str, str]) -> list[str]:
    """A command line as words, with other values for some of its flags."""
    words = shlex.split(line)
    for place, word in enumerate(words[:-1]):
        words[place + 1] = sizes.get(word, words[place + 1])
    return words


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def run(folder: Path, line: str, sizes: Mapping[str, str] = SMALL) -> str:
    """Run a command line in a folder, with Python and torchrun of this environment; its output."""
    words = turned_down(line, {"--master_port": free_port(), **sizes})
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: our scripts, his corpus and vocabulary, prepared."""
    folder = tmp_path_factory.mktemp("user")
    for script in ("pretrain_gpt.py", "tools"):
        (folder / script).symlink_to(ROOT / script)
    # GPT-2's vocabulary is JSON, whatever its file is called.
    shutil.copy(ROOT / "tests/data/gpt2/vocab.json", folder / "vocab.txt")
    shutil.copy(ROOT / "tests/data/gpt2/merges.txt", folder / "merges.txt")
    with (ROOT / "examples/austen.jsonl").open(encoding="utf-8") as corpus:
        chapters = [next(corpus) for _ in range(40)]
    (folder / "my_corpus.jsonl").write_text("".join(chapters), encoding="utf-8")
    run(folder, PREPARE)
    return folder


def test_preparing_by_the_former_flags_writes_a_token_file(prepared: Path) -> None:
    tokens = prepared / "my_data_text_document.bin"
    index = prepared / "my_data_text_document.idx"
    assert tokens.stat().st_size > 10_000
    assert index.read_bytes().startswith(b"MMIDIDX\x00\x00")


@pytest.mark.parametrize("launcher", [LAUNCH, TORCHRUN], ids=["launch", "torchrun"])
def test_training_by_the_former_flags_starts_logs_saves_and_resumes(
    launcher: str, prepared: Path
) -> None:
    checkpoints = prepared / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)

    first = run(prepared, f"{launcher} {TRAIN}")
    assert "--load checkpoints has no checkpoint yet: training starts anew" in first
    assert first.count("nccl") == 1 and "gloo" in first
    assert iterations(first) == [1, 2, 4]
    assert "validation loss at iteration 4" in first
    assert newest(checkpoints) == 4

    second = run(prepared, f"{launcher} {TRAIN}", SMALL | {"--train-iters": "8"})
    assert "loading checkpoint from checkpoints at iteration 4" in second
    assert "starts anew" not in second
    assert iterations(second) == [5, 6, 8]
    assert newest(checkpoints) == 8


def iterations(output: str) -> list[int]:
    """The iterations of the log lines, which must be of the form that log readers know."""
    found = LOG_LINE.findall(output)
    assert all(int(samples) == 8 * int(iteration) for iteration, _, samples, _ in found)
    return [int(iteration) for iteration, *_ in found]


def newest(checkpoints: Path) -> int:
    """The iteration that a folder of checkpoints names as its latest."""
    return int((checkpoints / "latest_checkpointed_iteration.txt").read_text())


def test_accumulation_steps_set_the_global_batch(tmp_path: Path) -> None:
    words = TRAIN.replace("--global-batch-size 256", "--gradient-accumulation-steps 2")
    line = words.replace("pretrain_gpt.py", "python -m megalith config show --json --world-size 2")
    shown = run(tmp_path, line)
    settings = json.loads(shown[shown.index("{\n") :])
    assert settings["training"]["global_batch_size"] == 8
