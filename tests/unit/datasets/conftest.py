"""Small data sets on disk, written from scratch."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

MNIST_NAMES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    header = struct.pack(">I", 0x800 + array.ndim if magic is None else magic)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_dir(tmp_path: Path) -> Path:
    """12 training and 5 test images; image i has the value i everywhere and the label i % 10."""
    folder = tmp_path / "data" / "images" / "mnist"
    folder.mkdir(parents=True)
    for split, n in (("train", 12), ("test", 5)):
        images = np.repeat(np.arange(n), 784).reshape(n, 28, 28)
        (folder / MNIST_NAMES[f"{split}_images"]).write_bytes(gzip.compress(idx(images)))
        (folder / MNIST_NAMES[f"{split}_labels"]).write_bytes(gzip.compress(idx(np.arange(n) % 10)))
    return folder


@pytest.fixture
def ag_news_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "text" / "ag_news"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text(
        '"3","Wall St.","stocks fall, stocks rise"\n'
        '"1","World","Peace talks #39;stall #39;s &lt;b&gt;end&lt;/b&gt; \\\\ ""now"""\n'
        '"2","Sports","team team team"\n'
        '"4","Sci","chips"\n'
    )
    (folder / "test.csv").write_text('"4","Chips","unheard stocks"\n')
    return folder


REVIEWS = {
    "aclImdb/train/pos/0_9.txt": b"great film<br />great fun",
    "aclImdb/train/pos/10_7.txt": b"fine",
    "aclImdb/train/pos/9_8.txt": b"good",
    "aclImdb/train/neg/0_1.txt": b"bad film",
    "aclImdb/train/unsup/0_0.txt": b"never read",
    "aclImdb/test/pos/0_10.txt": b"great",
    "aclImdb/test/neg/0_2.txt": b"bad",
    "aclImdb/README": b"readme",
}


def tar_gz(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def imdb_archive(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "imdb" / "aclImdb_v1.tar.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(tar_gz(REVIEWS))
    return path


@pytest.fixture
def imdb_folder(tmp_path: Path) -> Path:
    root = tmp_path / "unpacked"
    for name, content in REVIEWS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root
