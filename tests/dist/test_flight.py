"""Real gloo ranks that do not call the same: seen by reading the recorder while the others hang, and afterwards."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from stepscope.rank.flight import READ_TIMEOUT_S, same_calls, snapshot
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control
from stepscope.records.nccl import FlightDump, FlightFinding
from stepscope.traces.flight import compare_dumps

PATIENCE_S = 2.0


def group_of_its_own(mesh: Mesh) -> dist.ProcessGroup:
    """It breaks in the test; the default group stays whole."""
    group = dist.new_group(list(range(mesh.world_size)), timeout=timedelta(seconds=PATIENCE_S))
    assert group is not None
    return group


def hang_in_the_third(mesh: Mesh) -> tuple[str, FlightDump]:
    group = group_of_its_own(mesh)
    for _ in range(2):
        dist.all_reduce(torch.ones(100), group=group)
    work = None if mesh.rank == 1 else dist.all_reduce(torch.ones(100), group=group, async_op=True)
    time.sleep(PATIENCE_S / 4)
    dump = snapshot(rank=mesh.rank, world_size=mesh.world_size)
    with suppress(RuntimeError):  # gloo gives up
        if work is not None:
            work.wait()
    dist.barrier()
    return group.group_name, dump


def about(answers: list[tuple[str, FlightDump]]) -> list[FlightFinding]:
    """Findings about the test's own group: the pool has lived through other tests before."""
    names = {name for name, _ in answers}
    return [f for f in compare_dumps([dump for _, dump in answers], world_size=len(answers)) if f.group in names]


def test_the_rank_that_never_called_the_third_collective_is_named_while_the_others_hang(pools: Any) -> None:
    answers = pools(3).run(hang_in_the_third)
    (finding,) = about(answers)
    assert finding.cause
    assert finding.sentence == (
        f"rank 1 never called collective 3 of group {answers[0][0]} (all_reduce [100] float32), in which ranks 0, 2 wait"
    )


def something_else(mesh: Mesh, what: str) -> tuple[str, FlightDump]:
    group = group_of_its_own(mesh)
    tensor = torch.ones(100)
    dist.all_reduce(tensor, group=group)
    calls = [
        lambda: dist.all_reduce(tensor, group=group, async_op=True),
        lambda: dist.broadcast(tensor, 0, group=group, async_op=True),
    ]
    if mesh.rank == 1:
        calls = {
            "op": [calls[1], calls[1]],
            "order": calls[::-1],
            "dtype": [lambda: dist.all_reduce(tensor.to(torch.int32), group=group, async_op=True), calls[1]],
        }[what]
    works = [call() for call in calls]
    time.sleep(PATIENCE_S / 4)
    dump = snapshot(rank=mesh.rank, world_size=mesh.world_size)
    for work in works:
        with suppress(RuntimeError):
            work.wait()
    dist.barrier()
    return group.group_name, dump


@pytest.mark.parametrize(
    ("what", "said"),
    [("op", "rank 1 called broadcast [100] float32"), ("order", ""), ("dtype", "all_reduce [100] int32")],
)
def test_a_rank_that_calls_something_else_is_named_although_gloo_says_nothing(pools: Any, what: str, said: str) -> None:
    first = about(pools(3).run(something_else, what))[0]
    assert (first.kind, first.ranks, first.sequence) == (f"{what}_mismatch", (1,), 2)
    assert said in first.sentence


def after_a_cell(mesh: Mesh, name: str, odd_dtype: str) -> str | None:
    store = dist.distributed_c10d._get_default_store()
    control = Control(PrefixStore(name, store), rank=mesh.rank, world_size=mesh.world_size, timeout_s=20)
    group = group_of_its_own(mesh)
    dtype = getattr(torch, odd_dtype) if mesh.rank == 1 else torch.float32
    for _ in range(5):
        dist.all_reduce(torch.ones(64), group=group)
        dist.all_reduce(torch.ones(64, dtype=dtype), group=group)
        uneven = [(mesh.rank + 1) * (peer + 1) for peer in range(mesh.world_size)]
        received = torch.ones(sum(uneven))
        dist.all_to_all_single(received, torch.ones(sum(uneven)), uneven, uneven, group=group)
    return same_calls(control, group)


def test_after_a_cell_in_which_all_called_the_same_there_is_nothing_to_say(pools: Any) -> None:
    assert pools(3).run(after_a_cell, "same", "float32") == [None, None, None]


def test_after_a_cell_every_rank_hears_of_the_dtype_that_gloo_swallowed(pools: Any) -> None:
    texts = pools(3).run(after_a_cell, "other", "int32")
    assert len(set(texts)) == 1
    assert "rank 1 called all_reduce [64] int32 as collective 2 of group" in texts[0]
    assert "4 later collectives of that group differ too" in texts[0]


def seconds_a_call_of_a_snapshot(mesh: Mesh) -> float:
    group = group_of_its_own(mesh)
    for _ in range(100):
        dist.all_reduce(torch.ones(1), group=group)
    start = time.process_time()
    dump = snapshot(rank=mesh.rank, world_size=mesh.world_size)
    return (time.process_time() - start) / len(dump.entries)


def test_a_snapshot_of_2000_calls_is_quick_enough_for_a_rank_that_has_to_leave(pools: Any) -> None:
    assert 2000 * max(pools(3).run(seconds_a_call_of_a_snapshot)) < READ_TIMEOUT_S
