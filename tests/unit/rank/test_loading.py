"""The loader: right rows in the right order, lazily, with and without worker processes, and no process left over."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import torch

from stepscope.datasets import Split
from stepscope.rank.loading import Loader, eval_batches
from stepscope.rank.sampling import Sampling, plan_epoch

CPU = torch.device("cpu")
WORKERS = [(0, False), (2, False), (2, True)]


def split(n: int) -> Split:
    return Split(x=np.arange(3 * n, dtype=np.float32).reshape(n, 3), y=np.arange(n))


OTHERS: set[int] = set()
"""Processes that were there before: the pool of ranks, where tests on ranks ran first."""


def workers() -> list[psutil.Process]:
    mine = (p for p in psutil.Process().children(recursive=True) if p.pid not in OTHERS)
    return [p for p in mine if p.status() != psutil.STATUS_ZOMBIE]


def wait_for_workers(count: int) -> None:
    deadline = time.monotonic() + 10
    while len(workers()) != count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(workers()) == count


@pytest.fixture(autouse=True, scope="module")
def _others() -> None:
    OTHERS.update(p.pid for p in psutil.Process().children(recursive=True))


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    wait_for_workers(0)
    yield
    wait_for_workers(0)


def rows_of_epoch(loader: Loader, number: int) -> list[list[list[int]]]:
    return [[y.tolist() for _, y in batches] for _, batches in loader.epoch(number)]


@pytest.mark.parametrize(("num_workers", "persistent"), WORKERS)
def test_batches_are_this_ranks_pieces_epoch_after_epoch(num_workers: int, persistent: bool) -> None:
    data = split(23)
    for rank in range(3):
        sampling = Sampling(num_samples=23, world_size=3, micro_batch=2, accumulation=2, seed=5)
        with Loader(
            data, sampling, rank=rank, device=CPU, num_workers=num_workers, persistent_workers=persistent
        ) as loader:
            for epoch in (0, 1):
                planned = [
                    [w.piece(m, rank).tolist() for m in range(w.micro_steps)] for w in plan_epoch(sampling, epoch)
                ]
                assert rows_of_epoch(loader, epoch) == planned
                total = sum(len(piece) for window in planned for piece in window)
                assert (loader.seen.epoch, loader.seen.samples, loader.seen.distinct_samples) == (epoch, total, total)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_empty_piece_arrives_as_an_empty_batch_of_the_right_shape(num_workers: int) -> None:
    sampling = Sampling(num_samples=5, world_size=4, micro_batch=1)
    with Loader(split(5), sampling, rank=3, device=CPU, num_workers=num_workers) as loader:
        tail = [(x, y) for _, batches in loader.epoch(0) for x, y in batches][-1]
    assert (tuple(tail[0].shape), tail[0].dtype) == ((0, 3), torch.float32)
    assert (tuple(tail[1].shape), tail[1].dtype) == ((0,), torch.int64)


def test_inputs_and_targets_of_a_batch_belong_together() -> None:
    sampling = Sampling(num_samples=23, world_size=1, micro_batch=4)
    with Loader(split(23), sampling, rank=0, device=CPU) as loader:
        for _, batches in loader.epoch(0):
            for x, y in batches:
                assert torch.equal(x[:, 0], 3.0 * y)


def test_batches_can_be_written_to_although_the_data_is_a_read_only_map() -> None:
    data = split(4)
    data.x.flags.writeable = False
    with Loader(data, Sampling(num_samples=4, world_size=1, micro_batch=4), rank=0, device=CPU) as loader:
        for _, batches in loader.epoch(0):
            for x, _ in batches:
                x.zero_()
    assert data.x[3, 2] == 11


def test_windows_stay_aligned_when_micro_batches_are_not_taken() -> None:
    sampling = Sampling(num_samples=16, world_size=1, micro_batch=2, accumulation=4)
    with Loader(split(16), sampling, rank=0, device=CPU) as loader:
        firsts = [next(batches)[1].tolist() for _, batches in loader.epoch(0)]
    assert firsts == [w.piece(0, 0).tolist() for w in plan_epoch(sampling, 0)]


def test_endless_goes_from_epoch_to_epoch() -> None:
    sampling = Sampling(num_samples=6, world_size=1, micro_batch=4)
    with Loader(split(6), sampling, rank=0, device=CPU) as loader:
        stream = loader.endless(start=2)
        seen = [(w.epoch, w.step, w.full) for w, _ in (next(stream) for _ in range(5))]
    assert seen == [(2, 0, True), (2, 1, False), (3, 0, True), (3, 1, False), (4, 0, True)]


@pytest.mark.parametrize("persistent", [False, True])
def test_close_ends_workers_while_their_batches_are_still_held(persistent: bool) -> None:
    sampling = Sampling(num_samples=40, world_size=1, micro_batch=2)
    loader = Loader(split(40), sampling, rank=0, device=CPU, num_workers=2, persistent_workers=persistent)
    epoch = loader.epoch(0)
    _, batches = next(epoch)
    next(batches)
    assert len(workers()) == 2
    loader.close()
    loader.close()
    wait_for_workers(0)
    with pytest.raises(RuntimeError, match="closed"):
        list(epoch)


def test_workers_ignore_ctrl_c() -> None:
    sampling = Sampling(num_samples=400, world_size=1, micro_batch=2)
    with Loader(split(400), sampling, rank=0, device=CPU, num_workers=1) as loader:
        epoch = loader.epoch(0)
        next(next(epoch)[1])
        workers()[0].send_signal(2)
        assert sum(w.global_samples for w, _ in epoch) == 398


def test_a_new_epoch_makes_batches_of_the_old_one_unusable() -> None:
    sampling = Sampling(num_samples=8, world_size=1, micro_batch=2)
    with Loader(split(8), sampling, rank=0, device=CPU) as loader:
        _, old = next(loader.epoch(0))
        new = loader.epoch(1)
        next(new)
        with pytest.raises(RuntimeError, match="was abandoned"):
            next(old)


def test_a_plan_for_another_number_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="4 samples"):
        Loader(split(5), Sampling(num_samples=4, world_size=1, micro_batch=1), rank=0, device=CPU)


@pytest.mark.parametrize(("n", "world_size"), [(10, 1), (10, 3), (2, 3), (0, 2)])
def test_evaluation_gives_every_row_to_exactly_one_rank(n: int, world_size: int) -> None:
    batches = [
        y.tolist()
        for rank in range(world_size)
        for _, y in eval_batches(split(n), rank=rank, world_size=world_size, micro_batch=2, device=CPU)
    ]
    assert [row for batch in batches for row in batch] == list(range(n))
    assert all(len(batch) <= 2 for batch in batches)
