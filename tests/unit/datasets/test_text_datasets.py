"""AG News and IMDB: what is read from which layout, and one clear error for each way a file can be wrong."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.unit.datasets.conftest import tar_gz

from stepscope.core.errors import DataError, UsageError
from stepscope.datasets import REGISTRY, Prepared, ag_news, imdb
from stepscope.records.plan import InputNeeds

TOKENS = InputNeeds(kind="tokens", seq_len=8, vocab_size=100)
SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def prepare(key: str, data_dir: Path, cache: Path, needs: InputNeeds = TOKENS) -> Prepared:
    dataset = REGISTRY.load(key)
    options = dataset.options()
    return dataset.prepare(options, dataset.resolve(options, needs), dataset.locate(options, data_dir), cache)


def prepare_error(key: str, data_dir: Path, cache: Path) -> str:
    with pytest.raises(DataError) as caught:
        prepare(key, data_dir, cache)
    return str(caught.value)


def test_ag_news_gives_classes_from_zero_and_ids_of_the_training_words(ag_news_dir: Path, tmp_path: Path) -> None:
    data = prepare("ag_news", ag_news_dir, tmp_path)
    assert data.train.y.tolist() == [2, 0, 1, 3]
    assert (data.train.x.dtype, data.train.x.shape) == (np.int32, (4, 8))
    # team 3 times: id 2; chips, fall ... once each, in alphabetical order after stocks (2)
    assert data.train.x[2].tolist()[1:] == [2, 2, 2, 0, 0, 0, 0]
    stocks = data.train.x[0, 2]
    assert stocks == 3
    # "Chips unheard stocks": known, unknown, known
    assert data.test.x[0].tolist()[1:] == [1, 3, 0, 0, 0, 0, 0]
    assert data.test.x[0, 0] == data.train.x[3, 1]


def test_ag_news_leftovers_of_markup_are_not_words() -> None:
    text = "Microsoft #39;s &lt;b&gt;plan&lt;/b&gt; costs #36;5\\now quot;ok quot;"
    assert ag_news._cleaned_text(text).split() == ["Microsoft's", "plan", "costs", "5", "now", "ok"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (b'"1","title"\n', "3 columns in every row; found 2 in line 1"),
        (b'"1","a","b"\n"5","a","b"\n', "a class from 1 to 4; found '5' in line 2"),
        (b'"x","a","b"\n', "a class from 1 to 4; found 'x' in line 1"),
        (b'"1","a","b"\n"2","cut sho', "whole CSV rows; found unexpected end of data in line 2"),
        (b"", "at least one row; found an empty file"),
        (b'"1","a","\xff"\n', "expected UTF-8 text; found byte 9 is not"),
    ],
)
def test_a_damaged_csv_is_one_error(ag_news_dir: Path, tmp_path: Path, rows: bytes, expected: str) -> None:
    (ag_news_dir / "train.csv").write_bytes(rows)
    message = prepare_error("ag_news", ag_news_dir, tmp_path)
    assert str(ag_news_dir / "train.csv") in message
    assert expected in message


def test_a_compressed_csv_cut_short_is_one_error(ag_news_dir: Path, tmp_path: Path) -> None:
    plain = ag_news_dir / "train.csv"
    (ag_news_dir / "train_30k.csv.gz").write_bytes(gzip.compress(plain.read_bytes())[:-5])
    plain.unlink()
    assert "expected a complete gzip file" in prepare_error("ag_news", ag_news_dir, tmp_path)


def test_imdb_reads_archive_and_folder_alike(imdb_archive: Path, imdb_folder: Path, tmp_path: Path) -> None:
    from_archive = prepare("imdb", imdb_archive.parent, tmp_path / "a")
    for root in (imdb_folder, imdb_folder / "aclImdb"):
        from_folder = prepare("imdb", root, tmp_path / "b")
        for ours, theirs in ((from_archive.train, from_folder.train), (from_archive.test, from_folder.test)):
            assert np.array_equal(ours.x, theirs.x)
            assert np.array_equal(ours.y, theirs.y)
    assert from_archive.train.y.tolist() == [0, 1, 1, 1]  # neg; pos 0, 9, 10: by number, not by name
    assert len(from_archive.test) == 2


def test_imdb_leaves_markup_and_unlabelled_reviews_out(imdb_archive: Path) -> None:
    train, _ = imdb._read_reviews({"archive": imdb_archive})
    assert train.texts == ["bad film", "great film great fun", "good", "fine"]


def test_an_imdb_archive_cut_short_anywhere_is_one_error(imdb_archive: Path, tmp_path: Path) -> None:
    whole = imdb_archive.read_bytes()
    for length in range(0, len(whole), 7):
        imdb_archive.write_bytes(whole[:length])
        message = prepare_error("imdb", imdb_archive.parent, tmp_path)
        assert str(imdb_archive) in message
        assert "expected" in message


def test_an_imdb_archive_with_a_flipped_bit_is_one_error(imdb_archive: Path, tmp_path: Path) -> None:
    whole = imdb_archive.read_bytes()
    noticed = 0
    for at in range(10, len(whole), 11):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        imdb_archive.write_bytes(bytes(broken))
        if not same_content(bytes(broken), whole):
            assert "expected" in prepare_error("imdb", imdb_archive.parent, tmp_path)
            noticed += 1
    assert noticed > 20


def same_content(broken: bytes, whole: bytes) -> bool:
    """Some bits of a gzip stream mean nothing."""
    try:
        return gzip.decompress(broken) == gzip.decompress(whole)
    except (OSError, EOFError, zlib.error):
        return False


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "expected reviews train/neg/ID_RATING.txt; found none among 0 reviews"),
        (["train/neg", "train/pos", "test/neg"], "expected reviews test/pos/ID_RATING.txt; found none among 3"),
    ],
)
def test_an_archive_without_one_class_is_one_error(
    imdb_archive: Path, tmp_path: Path, parts: list[str], words: str
) -> None:
    imdb_archive.write_bytes(tar_gz({f"aclImdb/{part}/0_1.txt": b"text" for part in parts}))
    assert words in prepare_error("imdb", imdb_archive.parent, tmp_path)


def test_an_incomplete_imdb_folder_names_what_is_missing(imdb_folder: Path) -> None:
    (imdb_folder / "aclImdb/test/neg/0_2.txt").unlink()
    (imdb_folder / "aclImdb/test/neg").rmdir()
    with pytest.raises(DataError, match=r"expected also the folder test/neg"):
        imdb.DATASET.locate(imdb.DATASET.options(), imdb_folder)


def test_imdb_without_files_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a folder aclImdb or aclImdb\*\.tar\.gz"):
        imdb.DATASET.locate(imdb.DATASET.options(), tmp_path)


@pytest.mark.parametrize(("key", "classes"), [("ag_news", 4), ("imdb", 2)])
def test_texts_have_their_classes_need_a_folder_and_are_no_features(key: str, classes: int) -> None:
    dataset = REGISTRY.load(key)
    assert dataset.resolve(dataset.options(), TOKENS).num_classes == classes
    with pytest.raises(UsageError, match="--data-dir"):
        dataset.locate(dataset.options(), None)
    with pytest.raises(UsageError, match="feature vectors"):
        dataset.resolve(dataset.options(), InputNeeds(kind="features"))


def test_running_text_is_the_same_words_shifted_by_one(ag_news_dir: Path, tmp_path: Path) -> None:
    needs = InputNeeds(kind="lm", seq_len=4, vocab_size=100)
    data = prepare("ag_news", ag_news_dir, tmp_path, needs)
    assert data.train.x.shape == data.train.y.shape == (5, 4)
    assert np.array_equal(data.train.x[:, 1:], data.train.y[:, :-1])
    assert np.array_equal(data.train.x[1:, 0], data.train.y[:-1, -1])


def test_running_text_shorter_than_one_block_is_one_error(ag_news_dir: Path, tmp_path: Path) -> None:
    needs = InputNeeds(kind="lm", seq_len=500, vocab_size=100)
    with pytest.raises(DataError, match="expected more than 500 words"):
        prepare("ag_news", ag_news_dir, tmp_path, needs)


@pytest.mark.shared_data
@pytest.mark.parametrize(("key", "rows"), [("ag_news", (30_000, 7_600)), ("imdb", (5_000, 2_000))])
def test_the_real_files_are_read_whole(tmp_path: Path, key: str, rows: tuple[int, int]) -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared data does not lie beside the checkout")
    data = prepare(key, SHARED, tmp_path, InputNeeds(kind="tokens", seq_len=64, vocab_size=20_000))
    assert (len(data.train), len(data.test)) == rows
    counts = np.bincount(data.train.y)
    assert (counts == rows[0] // len(counts)).all()
    assert (data.train.x[:, 0] != 0).all()
    assert data.train.x.max() == 19_999
