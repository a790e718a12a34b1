"""Text to ids and back; GPT-2's ids are everyone's."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPT2Tokenizer

from megalith.config.schema import TokenizerConfig
from megalith.data.tokenizers import (
    END_OF_TEXT,
    ByteLevelTokenizer,
    GPT2BPETokenizer,
    Tokenizer,
    build_tokenizer,
)
from megalith.errors import MegalithError

FILES = Path(__file__).parent / "gpt2"
AUSTEN = Path(__file__).parents[2] / "examples" / "austen.jsonl"
ALPHABET = {END_OF_TEXT: 0} | {
    token: place for place, token in enumerate(sorted(ByteLevel.alphabet()), start=1)
}
UNICODE = (
    "naïve café 中文字符 🤖👩‍👩‍👧 \u200b\ufeff ﷽ \x00\x1f tab\t\n\n  two  spaces 123,456.78 don't"
)


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return GPT2BPETokenizer(FILES / "vocab.json", FILES / "merges.txt")


def test_bytes_need_no_files() -> None:
    tokenizer = build_tokenizer(TokenizerConfig(tokenizer_type="ByteLevelTokenizer"))
    assert (tokenizer.vocab_size, tokenizer.eod) == (257, 256)
    assert tokenizer.encode("Aé") == [65, 0xC3, 0xA9]
    assert tokenizer.decode([65, 256, 0xC3, 0xA9, 0xC3]) == "Aé\ufffd"


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_bytes_come_back(text: str) -> None:
    assert ByteLevelTokenizer().decode(ByteLevelTokenizer().encode(text)) == text


def test_gpt2_ids_are_those_of_transformers(gpt2: Tokenizer) -> None:
    reference = GPT2Tokenizer(str(FILES / "vocab.json"), str(FILES / "merges.txt"))
    texts = [UNICODE, "Hello world", "", " ", "x" * 300]
    texts += [json.loads(line)["text"] for line in AUSTEN.open()][:6]
    for text in texts:
        assert gpt2.encode(text) == reference.encode(text)
    assert gpt2.encode("Hello world") == [15496, 995]
    assert (gpt2.vocab_size, gpt2.eod) == (50257, 50256)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_gpt2_text_comes_back(gpt2: Tokenizer, text: str) -> None:
    assert gpt2.decode(gpt2.encode(text)) == text


def test_text_cannot_forge_the_end_of_a_document(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("a<|endoftext|>b")
    assert gpt2.eod not in ids and gpt2.decode(ids) == "a<|endoftext|>b"
    assert gpt2.decode([gpt2.eod]) == "<|endoftext|>"


def test_lone_surrogates_become_question_marks(gpt2: Tokenizer) -> None:
    for tokenizer in (gpt2, ByteLevelTokenizer()):
        assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_identity_follows_the_files(gpt2: Tokenizer, tmp_path: Path) -> None:
    lines = (FILES / "merges.txt").read_text().splitlines()
    (tmp_path / "m").write_text("\n".join(lines[:-1]))
    other = GPT2BPETokenizer(FILES / "vocab.json", tmp_path / "m")
    assert len({gpt2.identity, other.identity, ByteLevelTokenizer().identity}) == 3


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ("{", "", r"--vocab-file .*/v:1: this is no JSON"),
        ("[]", "", r"must be a JSON object from token to id"),
        ('{"a": 0}', "", r"has no <\|endoftext\|>"),
        ("[" * 100_000, "", r"--vocab-file .*/v:1: this is no JSON \(.*recursion"),
        ('{"a": -1}', "", r"/v: token 'a' has the id -1; ids must be from 0 to 2147483647"),
        ('{"a": 2147483648}', "", r"/v: token 'a' has the id 2147483648"),
        ('{"<|endoftext|>": 0, "a": 1}', "", r"/v: lacks 255 of the 256 tokens of single bytes"),
        (json.dumps(ALPHABET), "#version: 0.2\na b", r"--merge-file .*/m:2: 'a b' is no"),
        (None, "", r"--vocab-file .*/v: cannot read this file"),
    ],
)
def test_unusable_files_are_named(
    vocabulary: str | None, merges: str, message: str, tmp_path: Path
) -> None:
    if vocabulary is not None:
        (tmp_path / "v").write_text(vocabulary)
    (tmp_path / "m").write_text(merges)
    with pytest.raises(MegalithError, match=message):
        GPT2BPETokenizer(tmp_path / "v", tmp_path / "m")
