"""MNIST: 28 x 28 grey images of handwritten digits, idx files, gzip or plain.

A subset of the training images under a name like ``train10k-images-idx3-ubyte.gz`` is taken too.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import UsageError
from stepscope.datasets import _files
from stepscope.datasets._common import (
    LABELLED,
    Arrays,
    NoOptions,
    Prepared,
    files_dataset,
    labelled,
    misfit,
    prepared_arrays,
)
from stepscope.records.plan import InputNeeds

KEY = "mnist"
NUM_FEATURES, NUM_CLASSES = 784, 10
MEAN, STD = 0.1307, 0.3081
"""Mean and deviation of pixels / 255 over the 60,000 training images; used for any subset, so that inputs mean the same."""

_IMAGES_MAGIC, _LABELS_MAGIC = 0x803, 0x801  # unsigned bytes in 3 dimensions and in 1

_ROLES = {
    f"{split}_{what}": [
        name
        for stem in stems
        for name in (f"{stem}-{what}-idx{dimensions}-ubyte.gz", f"{stem}-{what}-idx{dimensions}-ubyte")
    ]
    for split, stems in (("train", ("train", "train[0-9]*")), ("test", ("t10k",)))
    for what, dimensions in (("images", 3), ("labels", 1))
}
_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_SOURCES = [
    _files.PublicFile(name=name, url=_URL + name, md5=md5)
    for name, md5 in (
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
]


def _resolved_needs(options: NoOptions, needs: InputNeeds) -> InputNeeds:  # noqa: ARG001
    """Return the needs with the data's sizes filled in. Raises UsageError for a workload that reads something else."""
    if needs.kind != "features":
        raise misfit(KEY, needs.kind, "use a workload that reads feature vectors, such as mlp")
    if needs.num_features not in (None, NUM_FEATURES):
        raise UsageError(
            f"the workload needs {needs.num_features} features, {KEY} has {NUM_FEATURES}",
            fix=f"set the model's input width to {NUM_FEATURES}, or use the dataset synthetic",
        )
    if needs.num_classes is not None and needs.num_classes < NUM_CLASSES:
        raise UsageError(f"the workload has {needs.num_classes} classes, {KEY} needs {NUM_CLASSES}")
    return replace(needs, num_features=NUM_FEATURES, num_classes=needs.num_classes or NUM_CLASSES)


def _prepared_images(needs: InputNeeds, files: dict[str, Path], content: str, cache_dir: Path) -> Prepared:  # noqa: ARG001
    """Return both splits, from the cache or built."""

    def build() -> Arrays:
        train_x, train_y = _read_split(files["train_images"], files["train_labels"])
        test_x, test_y = _read_split(files["test_images"], files["test_labels"])
        return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}

    return labelled(prepared_arrays(cache_dir, name=KEY, identity=content, names=LABELLED, build=build))


def _read_split(images: Path, labels: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images as rows of numbers from 0 to 1, and their classes."""
    pixels, classes = _read_idx(images, _IMAGES_MAGIC), _read_idx(labels, _LABELS_MAGIC)
    if pixels.shape[1:] != (28, 28):
        raise _files.damaged(images, expected="images of 28 x 28", actual=" x ".join(map(str, pixels.shape[1:])))
    if len(pixels) != len(classes):
        raise _files.damaged(
            labels, expected=f"{len(pixels)} labels, as {images.name} has images", actual=f"{len(classes)}"
        )
    if len(classes) == 0:
        raise _files.damaged(images, expected="at least one image", actual="none")
    if classes.max() >= NUM_CLASSES:
        raise _files.damaged(labels, expected=f"labels 0 to {NUM_CLASSES - 1}", actual=f"{classes.max()}")
    x = pixels.reshape(len(pixels), NUM_FEATURES).astype(np.float32)
    x *= np.float32(1 / (255 * STD))
    x -= np.float32(MEAN / STD)
    return x, classes.astype(np.int64)


def _read_idx(path: Path, magic: int) -> NDArray[Any]:
    """The array of an idx file of unsigned bytes: big-endian magic number, one length per dimension, data."""
    content = _files.read_bytes(path)
    dimensions = magic & 0xFF
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise _files.damaged(path, expected=f"an idx header of {header} bytes", actual=f"{len(content)} bytes")
    found_magic, *lengths = struct.unpack(f">{1 + dimensions}I", content[:header])
    if found_magic != magic:
        raise _files.damaged(path, expected=f"an idx file with magic number {magic}", actual=f"{found_magic}")
    expected = int(np.prod(lengths, dtype=np.int64))
    if len(content) - header != expected:
        raise _files.damaged(
            path,
            expected=f"{expected} bytes of data for {lengths[0]} items, as its header says",
            actual=f"{len(content) - header}",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(lengths)


DATASET = files_dataset(
    KEY,
    version=1,
    summary="handwritten digits, 784 pixels, 10 classes (idx files)",
    resolve=_resolved_needs,
    locate=lambda data_dir: _files.locate(KEY, data_dir, _ROLES),
    prepare=_prepared_images,
    sources=_SOURCES,
)
