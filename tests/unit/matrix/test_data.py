"""Data is read once for all cells that share it, before any rank starts."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from tests.unit.cells import cell_spec

from stepscope.core.errors import DataError
from stepscope.matrix.kinds import prepare_data


def _idx(*lengths: int) -> bytes:
    magic = 0x800 + len(lengths)
    size = 1
    for length in lengths:
        size *= length
    return struct.pack(f">{1 + len(lengths)}I", magic, *lengths) + bytes(size)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(64, 28, 28)))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(64)))
    return folder


def prepared(tmp_path: Path, data_dir: Path) -> tuple[dict[str, str], list[str]]:
    """Reasons by cell id, and the data sets that were read, of two cells on mnist and one on synthetic data."""
    read: list[str] = []
    cells = [cell_spec(cell_id=f"m{n}", dataset="mnist", seed=n) for n in (1, 2)]
    unusable = prepare_data(
        [*cells, cell_spec(cell_id="s")], data_dir=data_dir, cache_dir=tmp_path / "cache", announce=read.append
    )
    assert all(isinstance(error, DataError) for error in unusable.values())
    return {cell_id: error.line for cell_id, error in unusable.items()}, read


def test_cells_share_one_reading_and_ranks_find_the_arrays(tmp_path: Path, mnist: Path) -> None:
    assert prepared(tmp_path, mnist) == ({}, ["mnist"])
    assert list((tmp_path / "cache").glob("mnist-*/train_x.npy"))


def test_cells_share_the_reason_why_their_data_cannot_be_used(tmp_path: Path, mnist: Path) -> None:
    images = mnist / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    reasons, read = prepared(tmp_path, mnist)
    assert set(reasons) == {"m1", "m2"}
    assert len(set(reasons.values())) == 1
    assert read == ["mnist"]
    for words in (str(images), "expected a complete gzip file", "it ends early"):
        assert words in reasons["m1"]
    assert "\n" not in reasons["m1"]
