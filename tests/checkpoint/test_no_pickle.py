"""No checkpoint is ever unpickled or pickled."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

AUDIT = """
import sys
from pathlib import Path
from megalith.checkpoint.load import find_checkpoint, load_tensors
from megalith.checkpoint.save import save_checkpoint
from tests.checkpoint.tensors import ALONE, empty, filled
seen = []
def note(event, arguments):
    if event.startswith("pickle."):
        seen.append(arguments)
sys.addaudithook(note)
save_checkpoint(sys.argv[1], 1, filled(ALONE, False), {}, {}, ALONE)
load_tensors(find_checkpoint(sys.argv[1]), empty(ALONE, False), ALONE)
import pickle
assert not seen, seen
pickle.loads(pickle.dumps(Path()))
assert seen  # the hook does see pickles
print("done")
"""


def test_saving_and_loading_touch_no_pickle(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AUDIT, str(tmp_path)]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "done\n"


def test_no_source_file_asks_for_a_pickle() -> None:
    forbidden = re.compile(r"torch\.(save|load)\(|import pickle|allow_pickle=True")
    for path in (ROOT / "megalith").rglob("*.py"):
        assert not forbidden.search(path.read_text()), path
