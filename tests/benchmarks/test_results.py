"""From measurements to tables."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks import store
from benchmarks.contenders import OURS, all_contenders, choose
from benchmarks.job import Contender, Job, Workload
from benchmarks.kinds import kind_of
from benchmarks.page import replaced
from benchmarks.rounds import Row, launcher
from benchmarks.table import flops, lines_of, tables
from benchmarks.worker import peak_rss

WORK = Workload(hidden=256, heads=4, dtype="fp32")

MACHINE = {
    "cpu": "Some CPU",
    "instructions": ["avx2"],
    "cores": 2,
    "memory": 2**34,
    "packages": {"torch": "2.13.0"},
    "threads": 2,
    "peaks": {"fp32": 1e12, "bf16": 2e12},
}


def row(contender: Contender, *rounds: list[float], processes: int = 1) -> Row:
    """A row whose rounds took these seconds a step."""
    job = Job(WORK, contender, len(rounds[0]), processes, 2)
    measured = [{"seconds": seconds, "parameters": 1, "peak_rss": 2**30} for seconds in rounds]
    return {"job": dataclasses.asdict(job), "rounds": measured, "failure": None}


def piece(*rows: Row) -> store.Piece:
    return store.piece_of(MACHINE, WORK, 1, list(rows))


def test_warmup_does_not_count_and_ratio_is_of_medians() -> None:
    peer = Contender("minimal", tuned=True)
    ours_line, peer_line = lines_of(
        piece(row(OURS, [9.0, 1.0, 2.0], [9.0, 2.0, 3.0]), row(peer, [20.0, 4.0, 4.0])), 1
    )
    assert ours_line.step == 2.0
    assert peer_line.ratio == 2.0
    assert peer_line.first_step == 20.0
    assert peer_line.tokens_per_second == 8 * 512 / 4.0
    assert peer_line.mfu == pytest.approx(flops(dataclasses.asdict(WORK)) / 4.0 / 1e12)


def test_flops_are_those_of_megatron_count() -> None:
    per_token = 6 * (12 * 12 * 256**2 + 256 * 50304) + 6 * 12 * 256 * 512
    assert flops(dataclasses.asdict(WORK)) == pytest.approx(per_token * 4096)


def test_several_processes_are_compared_with_ours_in_as_many() -> None:
    measured = piece(
        row(OURS, [9.0, 4.0]),
        row(OURS, [9.0, 2.0], processes=2),
        row(Contender("minimal"), [9.0, 6.0], processes=2),
    )
    single, both, peer = lines_of(measured, 1)
    assert peer.ratio == 3.0
    assert (single.to_single, both.to_single) == (1.0, 2.0)


def test_table_names_the_best_tuned_peer_and_tells_failures() -> None:
    failed = row(Contender("trainer"), [1.0, 1.0]) | {"failure": "RuntimeError: no"}
    text = tables(
        [
            piece(
                row(OURS, [1.0, 1.0]),
                row(Contender("minimal", tuned=True), [1.0, 3.0]),
                row(Contender("minimal", compiled=True, tuned=True), [1.0, 1.5]),
                failed,
            )
        ]
    )
    assert "same malloc setting: minimal+compile+malloc; ours is **1.50x** as fast" in text
    assert "- trainer failed: `RuntimeError: no`" in text


def test_piece_replaces_an_earlier_one_of_the_same_jobs_only(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    minimal, trainer = Contender("minimal"), Contender("trainer")
    store.add(path, piece(row(OURS, [1.0, 1.0]), row(minimal, [1.0, 5.0])))
    store.add(path, piece(row(OURS, [1.0, 1.0]), row(trainer, [1.0, 6.0])))
    store.add(path, piece(row(OURS, [1.0, 1.0]), row(minimal, [1.0, 7.0])))
    peers = [lines_of(measured, 1)[1] for measured in store.load(path)]
    assert [(line.contender, line.step) for line in peers] == [(trainer, 6.0), (minimal, 7.0)]


def test_page_changes_between_its_marks_only() -> None:
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb"
    assert replaced(page, "x", "new") == "a\n<!-- begin x -->\n\nnew\n\n<!-- end x -->\nb"
    with pytest.raises(ValueError, match="lacks the marks <!-- begin y -->"):
        replaced(page, "y", "new")


def test_ours_takes_part_in_every_piece() -> None:
    available = all_contenders(("minimal",))
    assert choose(available, ["minimal+compile"]) == [OURS, Contender("minimal", compiled=True)]
    with pytest.raises(SystemExit, match="no contender nanogpt"):
        choose(available, ["nanogpt"])


def test_job_survives_the_command_line() -> None:
    job = Job(WORK, OURS, 3, 2, 1)
    assert Job.from_json(job.to_json()) == job
    assert launcher(job)[-1] == "2"


@pytest.mark.parametrize(
    ("operation", "around", "kind"),
    [
        ("aten::addmm", ["_Linear"], "linear layers: products"),
        ("aten::linear", ["_Linear"], "linear layers: products"),
        ("aten::mm", ["_LinearBackward", "autograd::engine"], "linear layers: products"),
        ("aten::copy_", ["aten::to", "_Linear"], "copies and casts"),
        ("aten::mm", ["aten::matmul", "_LinearCrossEntropy"], "output layer: products"),
        ("aten::exp_", ["_LinearCrossEntropy"], "cross-entropy"),
        ("aten::baddbmm", ["_BlockedAttention"], "attention: products"),
        ("aten::native_layer_norm", [], "norms"),
        ("aten::unknown", [], "all else"),
    ],
)
def test_kind_of_an_operation(operation: str, around: list[str], kind: str) -> None:
    assert kind_of(operation, around) == kind


def test_peak_memory_is_read_in_bytes() -> None:
    status: Any = "Name:\tpython\nVmPeak:\t 900 kB\nVmHWM:\t    12 kB\nVmRSS:\t 3 kB\n"
    assert peak_rss(status) == 12 * 1024
