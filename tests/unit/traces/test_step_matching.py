"""Which collective is which by step, operation, size and sequence, and what that says of clocks. Times in ns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.communications import Met, job

from stepscope.records.trace_collectives import RankCommunication
from stepscope.traces.alignment import align_clocks
from stepscope.traces.matching import match_collectives
from stepscope.traces.stragglers import find_stragglers
from stepscope.traces.waiting import job_collectives

MS = 1_000_000
STEP = 30 * MS


def steps(numbers: Sequence[int], *, sizes: Sequence[int] = (100, 200, 100)) -> list[Met]:
    """Two ranks; in each step one all_reduce per size, 5 ms apart, 4 ms long."""
    return [
        Met(starts={0: t, 1: t + MS}, end=t + 4 * MS, size_bytes=size, step=n)
        for n in numbers
        for i, size in enumerate(sizes)
        for t in (n * STEP + i * 5 * MS,)
    ]


def hosted(ranks: list[RankCommunication], *hosts: str) -> list[RankCommunication]:
    return [replace(r, host=h) for r, h in zip(ranks, hosts, strict=True)]


def later(each: RankCommunication, ns: int, *, numbers: int = 0) -> RankCommunication:
    """The rank with its times moved, and its steps counted from elsewhere."""
    moved = tuple(
        replace(c, start_ns=c.start_ns + ns, end_ns=c.end_ns + ns, step=None if c.step is None else c.step + numbers)
        for c in each.collectives
    )
    return replace(each, collectives=moved)


def joined(ranks: list[RankCommunication]) -> list[tuple[int, ...]]:
    """(step on rank 0, step on rank 1) of every instance of both."""
    look = {r.rank: r.collectives for r in ranks}
    found = [i for i in match_collectives(ranks) if len(i.members) == 2]
    return [tuple(look[m.rank][m.position].step or 0 for m in i.members) for i in found]


def test_steps_that_one_rank_counts_from_elsewhere_are_joined_where_they_ran_together() -> None:
    first, second = job(steps(range(6)))
    ranks = hosted([first, later(second, 0, numbers=-1)], "a", "a")
    assert set(joined(ranks)) == {(n, n - 1) for n in range(6)}
    assert align_clocks(ranks, match_collectives(ranks)).fits[1].offset_ns == 0.0


def test_between_hosts_steps_are_joined_where_their_calls_are_alike() -> None:
    """Every step calls another size; rank 1 counts from one step later, on a clock that is off by exactly a step."""
    met = [m for n in range(6) for m in steps([n], sizes=(100 + n,))]
    first, second = job(met)
    ranks = hosted([first, later(second, STEP, numbers=1)], "a", "b")
    assert set(joined(ranks)) == {(n, n + 1) for n in range(6)}


@pytest.mark.parametrize(("count", "status"), [(2, "unknown"), (3, "corrected"), (6, "corrected")])
def test_an_offset_between_hosts_needs_three_steps_that_agree(count: int, status: str) -> None:
    first, second = job(steps(range(count)))
    ranks = hosted([first, later(second, 7 * MS)], "a", "b")
    assert align_clocks(ranks, match_collectives(ranks)).fits[1].status == status


def test_an_offset_of_a_whole_step_is_no_clock() -> None:
    first, second = job(steps(range(8)))
    for steps_apart in (1, 2):
        ranks = hosted([first, later(second, steps_apart * STEP + 40_000)], "a", "b")
        assert align_clocks(ranks, match_collectives(ranks)).fits[1].status == "unknown"


@pytest.mark.parametrize("apart", [1, 2, -1])
@pytest.mark.parametrize("late", [(1,), (1, 2, 3)])
@pytest.mark.parametrize("marked", [True, False])
def test_captures_some_steps_apart_are_joined_and_no_clock_is_accused(
    apart: int, late: tuple[int, ...], marked: bool
) -> None:
    """Four ranks on hosts of their own record eight steps each; some of them begin one or two steps later, or earlier."""

    def recorded(first: int) -> list[RankCommunication]:
        return job(
            [
                Met(
                    starts={r: t + r * MS // 4 for r in range(4)},
                    end=t + 4 * MS,
                    size_bytes=size,
                    step=n if marked else None,
                )
                for n in range(first, first + 8)
                for i, size in enumerate((100, 200, 300))
                for t in (n * STEP + i * 5 * MS,)
            ]
        )

    early, others = recorded(2), recorded(2 + apart)
    ranks = hosted([(others if r in late else early)[r] for r in range(4)], "a", "b", "c", "d")
    found = match_collectives(ranks)
    look = {r.rank: r.collectives for r in ranks}
    common = [{look[m.rank][m.position].start_ns // STEP for m in i.members} for i in found if len(i.members) == 4]
    assert [len(steps) for steps in common] == [1] * 3 * (8 - abs(apart)), "of one step each"
    assert {f.status for f in align_clocks(ranks, found).fits} == {"reference", "agrees"}


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b")])
def test_ranks_without_a_common_step_are_not_compared(hosts: tuple[str, str]) -> None:
    ranks = hosted([job(steps(range(3)))[0], job(steps(range(3, 6)))[1]], *hosts)
    assert joined(ranks) == []
    found = job_collectives(ranks)
    assert all(i.waiting_ns is None for i in found.instances)
    assert find_stragglers(ranks, found).stragglers == ()
