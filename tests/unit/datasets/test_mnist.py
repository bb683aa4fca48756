"""MNIST from idx files: what is read, and one clear error for each way a file can be wrong."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.datasets.conftest import idx

from stepscope.core.errors import DataError, UsageError
from stepscope.datasets.mnist import DATASET, MEAN, STD
from stepscope.records.plan import InputNeeds

OPTIONS = DATASET.options()
NEEDS = DATASET.resolve(OPTIONS, InputNeeds(kind="features"))
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def packed(array: np.ndarray, magic: int | None = None) -> bytes:
    return gzip.compress(idx(array, magic))


def prepare(data_dir: Path, cache: Path):
    return DATASET.prepare(OPTIONS, NEEDS, DATASET.locate(OPTIONS, data_dir), cache)


def test_images_become_normalised_rows_with_their_labels(mnist_dir: Path, tmp_path: Path) -> None:
    data = prepare(mnist_dir, tmp_path / "cache")
    assert (data.train.x.shape, data.train.x.dtype) == ((12, 784), np.float32)
    assert (len(data.test), data.train.y.dtype, data.real_labels) == (5, np.int64, True)
    assert data.train.y.tolist() == [*range(10), 0, 1]
    expected = (np.arange(12) / 255 - MEAN) / STD
    assert np.allclose(data.train.x, expected[:, None], atol=1e-6)


@pytest.mark.parametrize("up", [0, 1, 2])
def test_files_are_found_in_the_folder_itself_below_its_key_and_one_level_deeper(mnist_dir: Path, up: int) -> None:
    data_dir = [mnist_dir, *mnist_dir.parents][up]
    assert DATASET.locate(OPTIONS, data_dir)["test_labels"].parent == mnist_dir


def test_a_subset_and_plain_files_are_taken(mnist_dir: Path, tmp_path: Path) -> None:
    (mnist_dir / TRAIN_IMAGES).rename(mnist_dir / "train10k-images-idx3-ubyte.gz")
    (mnist_dir / "train-labels-idx1-ubyte").write_bytes(gzip.decompress((mnist_dir / TRAIN_LABELS).read_bytes()))
    (mnist_dir / TRAIN_LABELS).unlink()
    assert len(prepare(mnist_dir, tmp_path / "cache").train) == 12


def test_a_complete_folder_below_wins_over_a_partial_one_above(mnist_dir: Path) -> None:
    shutil.copy(mnist_dir / TRAIN_IMAGES, mnist_dir.parent)
    assert DATASET.locate(OPTIONS, mnist_dir.parent)["train_images"].parent == mnist_dir


def an_empty_one(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def without_labels(folder: Path) -> Path:
    (folder / TRAIN_LABELS).unlink()
    return folder


def with_two_subsets(folder: Path) -> Path:
    (folder / TRAIN_IMAGES).rename(folder / "train10k-images-idx3-ubyte.gz")
    shutil.copy(folder / "train10k-images-idx3-ubyte.gz", folder / "train20k-images-idx3-ubyte.gz")
    return folder


@pytest.mark.parametrize(
    ("folder", "error", "words"),
    [
        (lambda _: None, UsageError, "--data-dir"),
        (lambda full: full.parents[2] / "typo", DataError, "does not exist"),
        (an_empty_one, DataError, r"expected train-images-idx3-ubyte\.gz.*found none"),
        (without_labels, DataError, r"train_labels .*found train-images-idx3-ubyte\.gz"),
        (with_two_subsets, DataError, r"train10k-images-idx3-ubyte\.gz, train20k"),
    ],
)  # fmt: skip
def test_a_folder_that_lacks_a_part_or_has_it_twice_is_one_error(
    mnist_dir: Path, folder: Callable[[Path], Path | None], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        DATASET.locate(OPTIONS, folder(mnist_dir))


def flipped(content: bytes) -> bytes:
    return bytes(byte ^ (0xFF * (at == len(content) // 2)) for at, byte in enumerate(content))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (TRAIN_IMAGES, lambda content: content[:-20], "expected a complete gzip file; found"),
        (TRAIN_IMAGES, flipped, "expected a complete gzip file"),
        (TRAIN_IMAGES, lambda _: b"<html>404</html>", "Not a gzipped file"),
        (TRAIN_IMAGES, lambda _: packed(np.zeros((12, 28, 28)), 0x801), "magic number 2051; found 2049"),
        (TRAIN_IMAGES, lambda _: packed(np.zeros((12, 20, 20))), "images of 28 x 28; found 20 x 20"),
        (TRAIN_LABELS, lambda _: packed(np.zeros(11)), "12 labels, as train-images-idx3-ubyte.gz has images; found 11"),
        (TRAIN_LABELS, lambda _: packed(np.full(12, 10)), "labels 0 to 9; found 10"),
        (TRAIN_LABELS, lambda _: gzip.compress(idx(np.arange(12) % 10)[:-2]),
         "expected 12 bytes of data for 12 items, as its header says; found 10"),
        (TRAIN_LABELS, lambda _: b"", "expected an idx header of 8 bytes; found 0 bytes"),
    ],
)  # fmt: skip
def test_contents_that_do_not_fit_are_one_error(
    mnist_dir: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = mnist_dir / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        prepare(mnist_dir, tmp_path / "cache")
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_the_digest_follows_content_and_not_path(mnist_dir: Path, tmp_path: Path) -> None:
    files = DATASET.locate(OPTIONS, mnist_dir)
    before = DATASET.digest(OPTIONS, files)
    elsewhere = shutil.copytree(mnist_dir, tmp_path / "elsewhere")
    assert DATASET.digest(OPTIONS, DATASET.locate(OPTIONS, elsewhere)) == before
    (elsewhere / TRAIN_LABELS).write_bytes(b"other")
    assert DATASET.digest(OPTIONS, DATASET.locate(OPTIONS, elsewhere)) != before


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (InputNeeds(kind="tokens", seq_len=8, vocab_size=9), "labelled texts"),
        (InputNeeds(kind="features", num_features=4096), "4096 features, mnist has 784"),
        (InputNeeds(kind="features", num_classes=2), "2 classes, mnist needs 10"),
    ],
)
def test_workloads_that_do_not_fit_are_a_usage_error(needs: InputNeeds, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        DATASET.resolve(OPTIONS, needs)


@pytest.mark.shared_data
def test_the_real_files_are_read_whole(tmp_path: Path) -> None:
    shared = Path(__file__).parents[3].parent / "shared" / "data"
    if not shared.is_dir():
        pytest.skip("the shared data does not lie beside the checkout")
    data = prepare(shared, tmp_path)
    assert (len(data.train), len(data.test)) == (10_000, 10_000)
    assert abs(float(data.train.x.mean())) < 0.01
    assert abs(float(data.train.x.std()) - 1) < 0.01
    assert np.bincount(data.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
