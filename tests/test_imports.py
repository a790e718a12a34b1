"""The plan of the house: which room may know which, and what no file may do."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import megalith

PACKAGE = Path(megalith.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

MAY_IMPORT = {
    "errors": "",
    "config": "errors",
    "comm": "errors config",
    "nn": "errors config comm",
    "memory": "errors config comm",
    "data": "errors config comm nn",
    "checkpoint": "errors config comm nn",
    "models": "errors config comm nn memory",
    "pipeline": "errors config comm nn memory models",
    "optim": "errors config comm nn memory models pipeline",
    "train": "errors config comm nn memory models pipeline optim data checkpoint",
    "serve": "errors config comm nn memory models data checkpoint",
    "cli": "errors config comm data train serve",
    "__main__": "cli",
    "__init__": "",
}
"""By room, or file beside the rooms; each also imports itself and the package's version."""

NEEDS_NO_TORCH = ("config", "cli", "errors", "comm.guard", "comm.machine", "comm.place")
NO_NAME = {"utils", "util", "helpers", "helper", "common", "misc"}
LINES = 500


def room_of(file: Path, package: Path = PACKAGE) -> str:
    """`nn` for nn/linear.py, `cli` for cli.py."""
    return file.relative_to(package).with_suffix("").parts[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """All modules that a file imports, anywhere in it; a relative one begins with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def breaches(file: Path, package: Path = PACKAGE) -> list[str]:
    """What the file does against the plan."""
    text = file.read_text()
    tree = ast.parse(text)
    room = room_of(file, package)
    allowed = {room, "__version__", *MAY_IMPORT.get(room, "").split()}
    found = [] if room in MAY_IMPORT else [f"{room} has no place in the plan"]
    for module in imports(tree):
        top, _, rest = module.partition(".")
        if top == "":
            found.append(f"imports {module}: say the full name")
        if top == "megalith" and rest.partition(".")[0] not in allowed:
            found.append(f"{room} imports {module}")
        if top in ("pickle", "cPickle", "dill", "shelve"):
            found.append(f"imports {top}")
    if any(isinstance(node, ast.Global) for node in ast.walk(tree)):
        found.append("has a global statement")
    if file.stem in NO_NAME:
        found.append("has a name that says nothing")
    if len(text.splitlines()) > LINES:
        found.append(f"has more than {LINES} lines")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_file_keeps_to_the_plan(file: Path) -> None:
    assert breaches(file) == []


@pytest.mark.parametrize(
    ("name", "text", "breach"),
    [
        (
            "config/a.py",
            "from megalith.comm.mesh import Mesh",
            "config imports megalith.comm.mesh.Mesh",
        ),
        ("nn/a.py", "def f():\n    import megalith.train.loop", "nn imports megalith.train.loop"),
        ("data/a.py", "from megalith import checkpoint", "data imports megalith.checkpoint"),
        ("data/a.py", "from ..train import loop", "imports ..train: say the full name"),
        ("attic/a.py", "", "attic has no place in the plan"),
        ("nn/a.py", "import pickle", "imports pickle"),
        ("nn/a.py", "def f():\n    global x", "has a global statement"),
        ("nn/utils.py", "", "has a name that says nothing"),
        ("nn/a.py", "\n" * 501, "has more than 500 lines"),
    ],
)
def test_breach_is_found(name: str, text: str, breach: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(text)
    assert breaches(file, tmp_path) == [breach]


def test_what_must_be_quick_to_start_imports_no_torch() -> None:
    names = [".".join(("megalith", *f.relative_to(PACKAGE).with_suffix("").parts)) for f in FILES]
    chosen = tuple(f"megalith.{name}" for name in NEEDS_NO_TORCH)
    quick = [name for name in names if name.startswith(chosen)]
    assert {"megalith.cli", "megalith.config.schema", "megalith.comm.guard"} <= set(quick)
    script = f"import sys, {', '.join(quick)}\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
