"""Every command in README and docs works as it stands, in the order of its page.

Commands stand in blocks marked `bash`. One that cannot run here says why in a comment before it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, name

RUNNABLE = [page for page in PAGES if "\n```bash\n" in page.read_text(encoding="utf-8")]
LANGUAGES = {"bash", "text", "yaml", "json", "python"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the repository's root, to write into."""
    for entry in ("examples", "tests", "tools", "pretrain_gpt.py"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    return tmp_path


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_commands_of_a_page_work_in_order(page: Path, checkout: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "bash" and block.not_run is None:
            run(page, block, checkout)


def run(page: Path, block: Block, folder: Path) -> None:
    """Run a block as a reader with the environment activated would."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    where = f"{name(page)}:{block.line}"
    assert done.returncode == 0, f"{where} exits with {done.returncode}:\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_name_their_language_and_excuses_their_block(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    assert {block.language for block in found} <= LANGUAGES
    excused = [block for block in found if block.not_run is not None]
    assert all(block.language == "bash" for block in excused)
    assert len(excused) == text.count("not run")
