"""What thousands of ranks know of each other is held once, and nothing grows with the square of their number."""

from __future__ import annotations

import pickle

import pytest

from stepscope.traces.events import ProcessGroup, TraceMeta
from stepscope.traces.groups import Groups


@pytest.mark.parametrize(
    "ranks", [tuple(range(4096)), tuple(range(3, 4096, 8)), (5, 1, 3), (0, 2, 3), (7,)], ids=lambda r: f"{len(r)} ranks"
)
def test_a_group_comes_out_of_another_process_as_the_one_object_of_the_job(ranks: tuple[int, ...]) -> None:
    recorded = ProcessGroup(name="dp", description="default_pg", size=len(ranks), ranks=ranks, backend="nccl")
    group = Groups(TraceMeta(rank=ranks[0], world_size=4096, groups=(recorded,))).only
    assert group is not None
    assert group.ranks == ranks
    text = pickle.dumps(group)
    assert pickle.loads(text) is group
    assert len(text) < 300
