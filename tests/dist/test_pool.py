"""The rank pool itself: a test that fails, hangs or dies on one rank must say so, and soon."""

from __future__ import annotations

import os
import signal
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

from stepscope.rank.mesh import Mesh


def place(mesh: Mesh, word: str) -> tuple[int, int, str, int, int]:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return mesh.rank, int(tensor), word, torch.get_num_threads(), os.sched_getscheduler(0)


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_answers_in_order_with_one_thread_under_sched_batch(pools: Any, world_size: int) -> None:
    answers = pools(world_size).run(place, "hello")
    assert answers == [(rank, world_size, "hello", 1, os.SCHED_BATCH) for rank in range(world_size)]


def raise_on_rank_1(mesh: Mesh) -> None:
    if mesh.rank == 1:
        raise ValueError("the cause")
    dist.all_reduce(torch.ones(1))  # waits for rank 1


def warn(mesh: Mesh) -> None:
    warnings.warn(f"from rank {mesh.rank}", UserWarning, stacklevel=1)


def leave_silently(mesh: Mesh) -> None:
    if mesh.rank == 0:
        os._exit(7)
    dist.all_reduce(torch.ones(1))


def be_killed(mesh: Mesh) -> None:
    if mesh.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def oversleep(mesh: Mesh) -> None:
    if mesh.rank == 1:
        time.sleep(600)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raise_on_rank_1, ["rank 1 raised", "ValueError: the cause"]),
        (warn, ["UserWarning: from rank"]),
        (leave_silently, ["rank 0 died", "exited with code 7"]),
        (be_killed, ["rank 1 died", "killed by SIGKILL"]),
        (oversleep, ["rank 1 did not answer", "in oversleep"]),
    ],
)
def test_a_failure_names_the_rank_and_the_pool_is_replaced(
    pools: Any, rank_failed: type[AssertionError], function: Any, said: list[str]
) -> None:
    pool = pools(2)
    started = time.monotonic()
    with pytest.raises(rank_failed) as failure:
        pool.run(function, timeout_s=3.0)
    assert time.monotonic() - started < 60, "the pool waits for no dead rank"
    for text in said:
        assert text in str(failure.value)
    assert pool.broken
    fresh = pools(2)
    assert fresh is not pool
    assert fresh.run(place, "again")[1][2] == "again"
