"""Our assignment of parameters to buckets against torch's own, for arbitrary models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from stepscope.strategies import assign_buckets

torch = pytest.importorskip("torch", reason="compares with torch's reducer")


@examples(200)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    caps=st.lists(st.integers(0, 400), min_size=1, max_size=2),
    seed=st.randoms(use_true_random=False),
)
def test_buckets_are_those_of_torchs_reducer(sizes: list[int], caps: list[int], seed: object) -> None:
    order = list(range(len(sizes)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    tensors = [torch.empty(sizes[i]) for i in order]
    theirs, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, caps, [False] * len(sizes), order)
    ours = assign_buckets([("float32", 4 * n) for n in sizes], order=order, caps_bytes=caps)
    assert [list(bucket) for bucket in ours] == theirs


@given(dtypes=st.lists(st.sampled_from(["float32", "bfloat16"]), min_size=1, max_size=20), cap=st.integers(1, 200))
def test_every_tensor_is_in_one_bucket_of_its_own_dtype(dtypes: list[str], cap: int) -> None:
    tensors = [(dtype, 16) for dtype in dtypes]
    buckets = assign_buckets(tensors, order=range(len(tensors)), caps_bytes=[cap])
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(tensors)))
    for bucket in buckets:
        assert len({dtypes[i] for i in bucket}) == 1
        assert 16 * (len(bucket) - 1) < cap
