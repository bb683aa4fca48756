"""Dealing samples out: nothing lost, nothing twice, the same windows for every world."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.rank.sampling import Sampling, permutation, plan_epoch, share

counts = st.integers(1, 400)
samplings = st.builds(
    Sampling,
    num_samples=counts,
    world_size=st.integers(1, 7),
    micro_batch=st.integers(1, 9),
    accumulation=st.integers(1, 5),
    seed=st.integers(0, 3),
)
epochs = st.integers(0, 3)


@given(samplings, epochs)
def test_pieces_join_to_their_window_in_order_and_windows_hold_every_sample_once(
    sampling: Sampling, epoch: int
) -> None:
    windows = plan_epoch(sampling, epoch)
    assert sorted(index for window in windows for index in window.indices.tolist()) == list(range(sampling.num_samples))
    for window in windows:
        joined = [
            window.piece(micro_step, rank)
            for micro_step in range(window.micro_steps)
            for rank in range(sampling.world_size)
        ]
        assert np.array_equal(np.concatenate(joined), window.indices)


@given(samplings, epochs)
def test_full_windows_give_every_rank_full_micro_batches(sampling: Sampling, epoch: int) -> None:
    windows = plan_epoch(sampling, epoch)
    assert [w.full for w in windows[:-1]] == [True] * (len(windows) - 1)
    assert len(windows) == sampling.windows_per_epoch
    for window in windows:
        assert window.full == (window.global_samples == sampling.global_batch)
        if window.full:
            assert window.micro_steps == sampling.accumulation
            sizes = {len(window.piece(m, r)) for m in range(window.micro_steps) for r in range(sampling.world_size)}
            assert sizes == {sampling.micro_batch}


@given(samplings, epochs)
def test_a_tail_micro_step_differs_by_at_most_one_sample_between_ranks(sampling: Sampling, epoch: int) -> None:
    tail = plan_epoch(sampling, epoch)[-1]
    for micro_step in range(tail.micro_steps):
        sizes = [len(tail.piece(micro_step, rank)) for rank in range(sampling.world_size)]
        assert max(sizes) - min(sizes) <= 1
        assert 0 < sum(sizes) <= sampling.chunk
        assert sizes == [len(part) for part in np.array_split(np.empty(sum(sizes)), sampling.world_size)]


@given(num_samples=counts, seed=st.integers(0, 3), epoch=epochs, factors=st.permutations([2, 3, 4]))
def test_windows_do_not_depend_on_world_size_or_accumulation(
    num_samples: int, seed: int, epoch: int, factors: list[int]
) -> None:
    micro_batch, world_size, accumulation = factors
    ours = Sampling(
        num_samples=num_samples, world_size=world_size, micro_batch=micro_batch, accumulation=accumulation, seed=seed
    )
    alone = Sampling(num_samples=num_samples, world_size=1, micro_batch=24, seed=seed)
    for a, b in zip(plan_epoch(ours, epoch), plan_epoch(alone, epoch), strict=True):
        assert np.array_equal(a.indices, b.indices)


@given(samplings)
def test_every_epoch_has_an_order_of_its_own(sampling: Sampling) -> None:
    first, second = permutation(sampling, 0), permutation(sampling, 1)
    assert np.array_equal(first, permutation(sampling, 0))
    if sampling.num_samples > 20:
        assert not np.array_equal(first, second)


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_cover_everything_without_overlap(length: int, parts: int) -> None:
    bounds = [share(length, parts, part) for part in range(parts)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == length
    assert all(a[1] == b[0] for a, b in pairwise(bounds))


def test_a_tail_smaller_than_the_world_leaves_ranks_without_samples() -> None:
    sampling = Sampling(num_samples=17, world_size=4, micro_batch=2, accumulation=2)
    tail = plan_epoch(sampling, 0)[-1]
    assert [len(tail.piece(0, rank)) for rank in range(4)] == [1, 0, 0, 0]
    assert (tail.micro_steps, tail.full) == (1, False)


def test_ranks_and_micro_steps_that_do_not_exist_and_counts_below_one_are_refused() -> None:
    window = plan_epoch(Sampling(num_samples=8, world_size=2, micro_batch=2), 0)[0]
    for place in ((0, 2), (1, 0)):
        with pytest.raises(IndexError):
            window.piece(*place)
    with pytest.raises(ValueError, match="at least 1"):
        Sampling(num_samples=8, world_size=2, micro_batch=0)
