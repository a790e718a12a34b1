"""Opening a corpus: where it is looked for, how it is cut, what is cached and what is refused."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megalith.config.flags import load_run
from megalith.config.rules import resolve_vocabulary
from megalith.config.schema import RunConfig
from megalith.data import order_cache
from megalith.data.datasets import Datasets, SplitSizes, build_datasets, find_prefix
from megalith.data.indexed import IndexedWriter
from megalith.data.order_cache import cached_order
from megalith.data.tokenizers import ByteLevelTokenizer
from megalith.errors import MegalithError
from tests.train.runs import SMALL
from tests.train.stepping import ONE


def _corpus(folder: Path, documents: int = 20, token: int = 5) -> str:
    with IndexedWriter(str(folder / "corpus_text_document"), np.uint16) as writer:
        for i in range(documents):
            writer.add_document([[token] * (i % 7 + 1)])
    return str(folder / "corpus")


def _config(prefix: str, *words: str) -> RunConfig:
    config = load_run([*SMALL, "--data-path", prefix, *words], "gpt", 1).config
    return resolve_vocabulary(config, 257)


def _build(config: RunConfig, *sizes: int | None) -> Datasets:
    train, valid, test = sizes or (10, 4, 4)
    assert train is not None
    return build_datasets(config, ByteLevelTokenizer(), SplitSizes(train, valid, test), ONE)


def test_prefix_is_found_with_and_without_its_suffix(tmp_path: Path) -> None:
    prefix = _corpus(tmp_path)
    assert (
        find_prefix(prefix) == find_prefix(f"{prefix}_text_document") == f"{prefix}_text_document"
    )
    with pytest.raises(
        MegalithError, match=r"nothing: there is neither nothing\.idx nor nothing_te"
    ):
        find_prefix("nothing")


def test_splits_are_as_asked_for(tmp_path: Path) -> None:
    datasets = _build(_config(_corpus(tmp_path), "--split", "50,30,20"))
    assert all(split is not None for split in (datasets.train, datasets.valid, datasets.test))
    assert datasets.train is not None and len(datasets.train) >= 10
    assert _build(_config(_corpus(tmp_path)), 0, 0, 0).train is None


def test_small_split_repeats_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    config = _config(_corpus(tmp_path, documents=2), "--split", "1,0,0")
    train = _build(config, 500, 0, 0).train
    assert train is not None and len(train) >= 500
    with pytest.raises(MegalithError, match=r"train split has 0 of 2 documents with 0 tokens"):
        _build(_config(_corpus(tmp_path, documents=2), "--split", "0,1,0"))


def test_split_too_small_for_a_long_run_is_told_with_numbers(tmp_path: Path) -> None:
    config = _config(_corpus(tmp_path, documents=1), "--split", "1,0,0")
    message = (
        r"train split has 1 tokens in 1 documents, so 1,000,000,000,000 samples of 16 repeat it "
        r"16,000,000,000,001 times.* 256,000 GB of memory; this machine has"
    )
    with pytest.raises(MegalithError, match=message):
        _build(config, 10**12, 0, 0)


def test_missing_evaluation_data_is_noted_and_a_share_of_0_is_not(tmp_path: Path) -> None:
    datasets = _build(_config(_corpus(tmp_path, documents=2)))
    assert datasets.valid is datasets.test is None
    assert [notice.split(" split")[0].split()[-1] for notice in datasets.notices] == [
        "valid",
        "test",
    ]
    config = _config(_corpus(tmp_path, documents=2), "--split", "1,0,0")
    assert _build(config).notices == []


def test_tokens_without_embedding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MegalithError, match="holds token 999, but the vocabulary has 257 tokens"):
        _build(_config(_corpus(tmp_path, token=999)))


def test_identity_tells_corpora_and_splits_apart(tmp_path: Path) -> None:
    def identity(token: int = 5, documents: int = 20, *words: str) -> str:
        config = _config(_corpus(tmp_path, documents, token), *words)
        return str(sorted(_build(config).identity.items()))

    base = identity()
    assert base == identity()
    others = [identity(6), identity(5, 21), identity(5, 20, "--split", "80,20,0")]
    assert len({base, *others}) == 4


def _order(folder: Path, lengths: list[int]) -> Any:
    return cached_order(folder, np.array(lengths, np.int32), (0, len(lengths)), 3, 20, 1)


def test_order_is_read_back_and_a_changed_corpus_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _order(tmp_path, [4, 5, 6])
    other = _order(tmp_path, [4, 6, 5])
    monkeypatch.setattr(order_cache, "sample_order", None)  # from now on only the cache is there
    again = _order(tmp_path, [4, 5, 6])
    assert np.array_equal(first.bounds, again.bounds)
    assert np.array_equal(first.shuffle, again.shuffle)
    assert not np.array_equal(other.bounds, again.bounds)


@pytest.mark.parametrize("part", ["documents.raw", "bounds.raw", "shuffle.raw", "json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damaged_cache_is_made_anew(part: str, damage: str, tmp_path: Path) -> None:
    good = _order(tmp_path, [4, 5, 6])
    (path,) = tmp_path.glob(f"*{part}")
    content = path.read_bytes()
    path.unlink()
    if damage != "remove":
        broken = content[:-1] + bytes([content[-1] ^ 1]) if damage == "flip" else content[:-3]
        path.write_bytes(broken)
    again = _order(tmp_path, [4, 5, 6])
    assert np.array_equal(good.bounds, again.bounds)
    assert np.array_equal(good.documents, again.documents)
    assert path.read_bytes() == content


def test_any_bit_flipped_in_a_cache_changes_no_order(tmp_path: Path) -> None:
    good = _order(tmp_path, [4, 5, 6])
    contents = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for path, content in contents.items():
        for place in range(0, 8 * len(content), 29):
            broken = bytearray(content)
            broken[place // 8] ^= 1 << place % 8
            path.unlink()  # a new file, for the old one is mapped
            path.write_bytes(broken)
            again = _order(tmp_path, [4, 5, 6])
            for part in ("documents", "bounds", "shuffle"):
                assert np.array_equal(getattr(good, part), getattr(again, part))


def test_cache_filled_by_many_at_once_holds_one_order(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        orders = list(threads.map(lambda _: _order(tmp_path, [4, 5, 6]), range(32)))
    assert all(np.array_equal(order.shuffle, orders[0].shuffle) for order in orders)
    assert len(list(tmp_path.iterdir())) == 4


def test_folder_that_takes_no_cache_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(_order(tmp_path / "file" / "cache", [4, 5, 6])) >= 20


def test_cyclic_order_passes_over_one_epoch(tmp_path: Path) -> None:
    config = _config(_corpus(tmp_path), "--dataloader-type", "cyclic", "--split", "1,0,0")
    train = _build(config, 1000, 0, 0).train
    single = _build(
        replace(config, data=replace(config.data, dataloader_type="single")), 1000, 0, 0
    )
    assert train is not None and single.train is not None
    assert len(train) < 10 < len(single.train)


def test_cache_lies_where_it_is_asked_for(tmp_path: Path) -> None:
    _build(_config(_corpus(tmp_path), "--data-cache-path", str(tmp_path / "here")))
    assert list((tmp_path / "here").glob("*.raw")) and not (tmp_path / "cache").exists()
    _build(_config(_corpus(tmp_path)))
    assert list((tmp_path / "cache").rglob("*.raw"))
