"""Synthetic data of any shape that a workload wants: numbers from a seed, no files.

``labels: random`` gives labels that have nothing to do with the inputs: good for timing, while loss only falls by
learning rows by heart and accuracy says nothing. ``labels: teacher`` derives them from the inputs by a fixed random
rule, so that loss falls and accuracy on unseen rows means something.

Rows are cut from one stream of noise. A set whose rows would not fit next to each other in ``STREAM_BYTES`` has
overlapping rows: all of them different, but each shifted by a few values against the one before. So 65,536 rows of
4096 features cost 64 MiB per rank, not 1 GiB.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from stepscope.datasets._common import Dataset, Prepared, Split
from stepscope.records.options import OptionsModel
from stepscope.records.plan import InputNeeds

KEY = "synthetic"
VERSION = 1
"""Part of the digest: raise it when the same options give other arrays."""

STREAM_BYTES = 64 * 2**20
NUM_FEATURES, NUM_CLASSES = 784, 10
TEXT_CLASSES = 4
_TEACHER_ROWS = 4096  # at a time


class Options(OptionsModel):
    samples: int = Field(default=65536, ge=1, description="training rows")
    test_samples: int | None = Field(
        default=None, ge=0, description="rows to test on; 0 for random labels, else an eighth of samples, at most 4096"
    )
    seed: int = Field(default=0, ge=0, description="of the data; the training seed does not change it")
    labels: Literal["random", "teacher"] = Field(
        default="random", description="teacher: labels follow from the inputs, so that there is something to learn"
    )


def resolve(options: Options, needs: InputNeeds) -> InputNeeds:  # noqa: ARG001
    """Takes any needs; what the workload leaves open gets MNIST's shape (features) or 4 classes (tokens)."""
    if needs.kind == "features":
        return replace(
            needs, num_features=needs.num_features or NUM_FEATURES, num_classes=needs.num_classes or NUM_CLASSES
        )
    if needs.kind == "tokens":
        return replace(needs, num_classes=needs.num_classes or TEXT_CLASSES)
    return needs


def locate(options: Options, data_dir: Path | None) -> dict[str, Path]:  # noqa: ARG001
    return {}


def digest(options: Options, files: dict[str, Path]) -> str:  # noqa: ARG001
    text = f"{KEY}/{VERSION} {sorted(options.as_dict().items())!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def prepare(options: Options, needs: InputNeeds, files: dict[str, Path], cache_dir: Path) -> Prepared:  # noqa: ARG001
    """Draw the arrays, which every rank does anew in well under a second; nothing is written."""
    rng = np.random.default_rng(options.seed)
    test = _num_test(options)
    make = {"features": _feature_rows, "tokens": _token_rows, "lm": _running_text_rows}[needs.kind]
    x, y, overlap = make(options, needs, options.samples + test, rng)
    notes = []
    if options.labels == "random":
        notes.append("random labels: accuracy has no meaning")
    if overlap:
        notes.append(f"rows overlap: they are cut from one stream of {STREAM_BYTES // 2**20} MiB of noise")
    return Prepared(
        train=Split(x=x[: options.samples], y=y[: options.samples]),
        test=Split(x=x[options.samples :], y=y[options.samples :]),
        real_labels=options.labels != "random",
        notes=tuple(notes),
    )


def _num_test(options: Options) -> int:
    if options.test_samples is not None:
        return options.test_samples
    return 0 if options.labels == "random" else min(max(options.samples // 8, 1), 4096)


Rows = tuple[NDArray[Any], NDArray[Any], bool]


def _feature_rows(options: Options, needs: InputNeeds, count: int, rng: np.random.Generator) -> Rows:
    """Return rows of numbers with their classes."""
    width, classes = _resolved_need(needs.num_features), _resolved_need(needs.num_classes)
    hop = _row_hop(count, width)
    x = _stream_rows(rng.standard_normal((count - 1) * hop + width, dtype=np.float32), count, width, hop)
    if options.labels == "random":
        return x, rng.integers(classes, size=count), hop < width
    # at most 64 classes are in use: a rule over thousands could not be learned from a few rows each
    rule = rng.standard_normal((width, min(classes, 64)))
    parts = (x[i : i + _TEACHER_ROWS] for i in range(0, count, _TEACHER_ROWS))
    # in float64, so that ranks with different thread counts do not round to different labels
    y = np.concatenate([(part.astype(np.float64) @ rule).argmax(axis=1) for part in parts])
    return x, y, hop < width


def _token_rows(options: Options, needs: InputNeeds, count: int, rng: np.random.Generator) -> Rows:
    """Return rows of tokens with their classes."""
    seq_len, vocab_size, classes = (
        _resolved_need(needs.seq_len),
        _resolved_need(needs.vocab_size),
        _resolved_need(needs.num_classes),
    )
    hop = _row_hop(count, seq_len)
    stream = rng.integers(2, vocab_size, size=(count - 1) * hop + seq_len, dtype=np.int32)
    x = _stream_rows(stream, count, seq_len, hop)
    if options.labels == "random":
        return x, rng.integers(classes, size=count), hop < seq_len
    # every word votes for the classes with its own random weights; sums of integers are exact
    votes = rng.integers(-1000, 1001, size=(vocab_size, classes), dtype=np.int32)
    y = np.concatenate(
        [votes[x[i : i + _TEACHER_ROWS]].sum(axis=1).argmax(axis=1) for i in range(0, count, _TEACHER_ROWS)]
    )
    return x, y, hop < seq_len


def _running_text_rows(options: Options, needs: InputNeeds, count: int, rng: np.random.Generator) -> Rows:
    """Return rows of tokens, each with the next ones as targets."""
    seq_len, vocab_size = _resolved_need(needs.seq_len), _resolved_need(needs.vocab_size)
    hop = _row_hop(count, seq_len)
    stream = rng.integers(2, vocab_size, size=(count - 1) * hop + seq_len + 1, dtype=np.int32)
    if options.labels == "teacher":
        # every second token follows from the one before it
        follows = np.concatenate([np.arange(2), 2 + rng.permutation(vocab_size - 2)]).astype(np.int32)
        pairs = len(stream) // 2
        stream[1 : 2 * pairs : 2] = follows[stream[0 : 2 * pairs : 2]]
    rows = _stream_rows(stream, count, seq_len + 1, hop)
    return rows[:, :-1], rows[:, 1:], hop < seq_len


def _row_hop(count: int, width: int) -> int:
    """Values from the start of one row to the start of the next: the width, or less to stay in STREAM_BYTES."""
    return max(1, min(width, STREAM_BYTES // (4 * count)))


def _stream_rows(stream: NDArray[Any], count: int, width: int, hop: int) -> NDArray[Any]:
    return np.lib.stride_tricks.sliding_window_view(stream, width)[: count * hop : hop]


def _resolved_need(value: int | None) -> int:
    if value is None:
        raise ValueError("needs are not resolved")
    return value


DATASET = Dataset(
    key=KEY,
    summary="numbers from a seed in any shape, with random or learnable labels; no files",
    options=Options,
    resolve=resolve,
    locate=locate,
    digest=digest,
    prepare=prepare,
)
