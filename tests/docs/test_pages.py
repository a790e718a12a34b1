"""What the pages say is there is there: flags, files, messages."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from megalith.config.legacy import names as legacy_flags
from megalith.config.parser import known_flags
from megalith.config.schema import GenerateConfig, PrepareConfig, RunConfig
from tests.docs.pages import PAGES, ROOT, blocks, name

# Flags of the commands that the pages use besides ours.
FOREIGN = """--help --version --debug --json --world-size --nproc-per-node --nnodes --node-rank
    --master-addr --master-port --standalone --editable --config --preset"""

# The settings page is made from the flags themselves.
WRITTEN = [page for page in PAGES if page.name != "settings.md"]

QUOTE = re.compile(r"^> (.*)$", re.MULTILINE)


def known() -> set[str]:
    """All flags that a page may name."""
    ours = set().union(*map(known_flags, (RunConfig, PrepareConfig, GenerateConfig)))
    return ours | set(legacy_flags()) | set(FOREIGN.split())


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_flags_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", page.read_text(encoding="utf-8"))
    assert {flag.replace("_", "-") for flag in named} - known() == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
        file, _, heading = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        assert not heading or heading in headings(linked), target


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as renderers make them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


def test_quoted_messages_are_ones_that_we_raise() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quotes = [plain(quote) for quote in QUOTE.findall(page)]
    unheard = [q for q in quotes if not any(says(message, q) for message in messages())]
    assert quotes and unheard == []


def test_a_quote_that_we_do_not_raise_is_noticed() -> None:
    assert not any(says(message, "the moon is … cheese") for message in messages())


def says(message: str, quote: str) -> bool:
    """Whether a quote, in which … stands for what varies, is part of a message."""
    pattern = ".*".join(map(re.escape, quote.split("…")))
    return re.search(pattern, message) is not None


@cache
def messages() -> list[str]:
    """All texts in the code, with … for what varies."""
    files = sorted((ROOT / "megalith").rglob("*.py"))
    return [plain(text) for file in files for text in texts(ast.parse(file.read_text("utf-8")))]


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module; an f-string's values, and what is added to a string, become …."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            yield text(node)


def text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text, node.values))
    if isinstance(node, ast.BinOp):
        return text(node.left) + text(node.right)
    return "…"


def plain(message: str) -> str:
    """Without Markdown's escapes, and with every run of white space a blank."""
    return " ".join(message.replace("\\", "").replace("`", "").split())


def test_blocks_are_found_with_their_excuse() -> None:
    page = "a\n\n<!-- not run: no GPU -->\n```bash\nls\n```\n\n```text\nx\ny\n```\n"
    first, second = blocks(page)
    assert (first.line, first.language, first.text, first.not_run) == (4, "bash", "ls", "no GPU")
    assert (second.language, second.text, second.not_run) == ("text", "x\ny", None)
