"""Synthetic data: shapes, memory, determinism, and labels that can or cannot be learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from stepscope.datasets import Prepared
from stepscope.datasets.synthetic import DATASET, STREAM_BYTES
from stepscope.records.plan import InputNeeds

FEATURES = InputNeeds(kind="features", num_features=20, num_classes=3)
TOKENS = InputNeeds(kind="tokens", num_classes=3, seq_len=12, vocab_size=30)
RUNNING = InputNeeds(kind="lm", seq_len=12, vocab_size=30)


def make(needs: InputNeeds, **options: Any) -> Prepared:
    chosen = DATASET.options.model_validate({"samples": 600, **options})
    return DATASET.prepare(chosen, DATASET.resolve(chosen, needs), {}, Path("unused"))


def test_open_needs_get_the_shape_of_the_usual_benchmark() -> None:
    resolved = DATASET.resolve(DATASET.options(), InputNeeds(kind="features"))
    assert (resolved.num_features, resolved.num_classes) == (784, 10)
    resolved = DATASET.resolve(DATASET.options(), InputNeeds(kind="tokens", seq_len=8, vocab_size=9))
    assert resolved.num_classes == 4


@pytest.mark.parametrize("labels", ["random", "teacher"])
@pytest.mark.parametrize(
    ("needs", "x", "y"),
    [
        (FEATURES, ((600, 20), np.float32), ((600,), np.int64)),
        (TOKENS, ((600, 12), np.int32), ((600,), np.int64)),
        (RUNNING, ((600, 12), np.int32), ((600, 12), np.int32)),
    ],
)
def test_shapes_and_types_are_the_splits_contract(needs: InputNeeds, x: Any, y: Any, labels: str) -> None:
    data = make(needs, labels=labels, test_samples=50)
    assert ((data.train.x.shape, data.train.x.dtype), (data.train.y.shape, data.train.y.dtype)) == (x, y)
    assert len(data.test) == 50
    assert data.real_labels == (labels == "teacher")
    if needs.kind == "lm":
        assert np.array_equal(data.train.x[:, 1:], data.train.y[:, :-1])
    if needs.kind != "features":
        assert data.train.x.min() >= 2
        assert data.train.x.max() < 30
    else:
        assert set(np.unique(data.train.y)) == {0, 1, 2}


@pytest.mark.parametrize("needs", [FEATURES, TOKENS, RUNNING])
def test_the_seed_alone_decides_the_data(needs: InputNeeds) -> None:
    one, same, other = make(needs, seed=1), make(needs, seed=1), make(needs, seed=2)
    assert np.array_equal(one.train.x, same.train.x)
    assert np.array_equal(one.train.y, same.train.y)
    assert not np.array_equal(one.train.x, other.train.x)


def test_random_labels_are_said_to_mean_nothing_and_are_not_tested_on() -> None:
    data = make(FEATURES)
    assert (data.real_labels, len(data.test)) == (False, 0)
    assert any("accuracy has no meaning" in note for note in data.notes)


def test_teacher_labels_follow_from_the_inputs() -> None:
    data = make(FEATURES, labels="teacher", samples=4000)
    weights, *_ = np.linalg.lstsq(data.train.x, np.eye(3)[data.train.y], rcond=None)
    right = (data.test.x @ weights).argmax(axis=1) == data.test.y
    assert right.mean() > 0.85
    random = make(FEATURES, samples=4000, test_samples=500)
    weights, *_ = np.linalg.lstsq(random.train.x, np.eye(3)[random.train.y], rcond=None)
    assert ((random.test.x @ weights).argmax(axis=1) == random.test.y).mean() < 0.45


def test_every_second_token_of_teacher_text_follows_from_the_one_before() -> None:
    data = make(RUNNING, labels="teacher")
    pairs = {(int(a), int(b)) for a, b in zip(data.train.x[:, ::2].ravel(), data.train.x[:, 1::2].ravel(), strict=True)}
    assert len(pairs) <= 28


def test_large_sets_stay_within_the_memory_bound_with_all_rows_different() -> None:
    data = make(InputNeeds(kind="features", num_features=4096, num_classes=4096), samples=65536)
    rows, width = data.train.x.shape
    span_bytes = (rows - 1) * data.train.x.strides[0] + width * data.train.x.strides[1]
    assert span_bytes <= STREAM_BYTES + 4 * 4096
    assert data.train.x.shape == (65536, 4096)
    assert len({row.tobytes() for row in data.train.x[::997]}) == len(range(0, 65536, 997))
    assert not np.array_equal(data.train.x[0], data.train.x[1])
    assert any("overlap" in note for note in data.notes)


def test_small_sets_have_independent_rows() -> None:
    data = make(FEATURES)
    assert not any("overlap" in note for note in data.notes)
    assert len(np.unique(data.train.x)) > 0.99 * data.train.x.size


def test_the_digest_follows_the_options() -> None:
    digests = {
        DATASET.digest(DATASET.options.model_validate(o), {})
        for o in ({}, {"seed": 1}, {"samples": 5}, {"labels": "teacher"}, {"test_samples": 5})
    }
    assert len(digests) == 5


def test_no_files_are_needed() -> None:
    assert DATASET.locate(DATASET.options(), None) == {}
    assert DATASET.download is None


@pytest.mark.parametrize("options", [{"samples": 0}, {"sample": 5}, {"labels": "real"}, {"test_samples": -1}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DATASET.options.model_validate(options)
