"""The picture of a run's loss."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from megalith.cli import main
from megalith.errors import MegalithError
from megalith.train.curve import draw_curve

SVG = "{http://www.w3.org/2000/svg}"


def _log(folder: Path, *records: dict[str, object]) -> Path:
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    return log


def _step(iteration: int, loss: float | None) -> dict[str, object]:
    return {"kind": "step", "iteration": iteration, "lm loss": loss}


def test_losses_lie_where_the_axes_say(tmp_path: Path) -> None:
    records = [_step(0, 4.0), _step(5, 3.0), _step(7, None), _step(10, 2.0)]
    records.append({"kind": "evaluation", "split": "validation", "iteration": 10, "lm loss": 2.5})
    records.append({"kind": "evaluation", "split": "test", "iteration": 10, "lm loss": 9.0})
    draw_curve(_log(tmp_path, *records), tmp_path / "loss.svg")
    root = ElementTree.parse(tmp_path / "loss.svg").getroot()
    line = root.find(f"{SVG}polyline")
    assert line is not None
    assert line.attrib["points"] == "70.0,40.0 425.0,235.0 780.0,430.0"
    dots = [(dot.attrib["cx"], dot.attrib["cy"]) for dot in root.iter(f"{SVG}circle")]
    assert dots == [("780.0", "332.5")]
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert {"0", "2", "4", "6", "8", "10", "2.5", "3", "3.5", "iteration", "validation"} <= {
        *labels
    }


def test_iteration_done_twice_is_drawn_once(tmp_path: Path) -> None:
    draw_curve(_log(tmp_path, _step(1, 5.0), _step(1, 4.0), _step(2, 3.0)), tmp_path / "loss.svg")
    assert (tmp_path / "loss.svg").read_text().count(",") == 2


def test_constant_loss_can_be_drawn(tmp_path: Path) -> None:
    draw_curve(_log(tmp_path, _step(1, 5.0)), tmp_path / "loss.svg")
    ElementTree.parse(tmp_path / "loss.svg")


@pytest.mark.parametrize(
    ("content", "picture", "message"),
    [
        ("", "loss.svg", "has no training losses to draw"),
        ("{", "loss.svg", "log.jsonl:1: is no line of --log-jsonl"),
        ("{}\n5", "loss.svg", "log.jsonl:2: is no line of --log-jsonl"),
        ("", "loss.png", "must end in .svg"),
    ],
)
def test_mistakes_are_told(content: str, picture: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(MegalithError, match=message):
        draw_curve(tmp_path / "log.jsonl", tmp_path / picture)


def test_command_draws_and_tells_of_a_missing_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _log(tmp_path, _step(1, 5.0), _step(2, 4.0))
    assert main(["plot", str(log), str(tmp_path / "deep" / "loss.svg")]) == 0
    assert main(["plot", str(tmp_path / "none.jsonl"), str(tmp_path / "loss.svg")]) == 2
    assert "none.jsonl: cannot be read" in capsys.readouterr().err
    assert main(["plot"]) == 2
