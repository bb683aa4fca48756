"""What thousands of ranks know of each other is held once, and nothing grows with the square of their number."""

from __future__ import annotations

import pickle
import random

import pytest

from stepscope.stats.spans import median
from stepscope.traces.events import ProcessGroup, TraceMeta
from stepscope.traces.groups import Groups
from stepscope.traces.stragglers import _medians_of_others


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


@pytest.mark.parametrize("count", [2, 3, 4, 7, 50])
def test_the_median_of_the_others_is_that_of_each_list_without_one(count: int) -> None:
    values = {rank: float(random.Random(rank).randint(0, 20)) for rank in range(count + 1)}
    ranks = frozenset(range(1, count + 40))  # one of them is not asked for, others have no value
    found = _medians_of_others(values, ranks)
    known = ranks & values.keys()
    assert found == {rank: median([values[r] for r in known if r != rank]) for rank in known}


def test_a_rank_alone_has_no_others() -> None:
    assert _medians_of_others({3: 1.0}, {3, 4}) == {}
