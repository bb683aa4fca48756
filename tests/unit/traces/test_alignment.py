"""Clocks of ranks from the ends of collectives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.communications import Met, group, job

from stepscope.records.trace_collectives import ClockAlignment, RankCommunication
from stepscope.traces.alignment import AGREE_NS, align_clocks, corrected
from stepscope.traces.matching import match_collectives
from stepscope.traces.waiting import job_collectives


def _met(count: int, ranks: Sequence[int] = (0, 1, 2), *, seed: int = 1, last: int | None = None) -> list[Met]:
    """All_reduces at uneven times that all ranks leave together; ``last`` arrives 300 us after the others."""
    rng = random.Random(seed)
    met, now = [], 1_000_000
    for n in range(count):
        now += rng.randrange(800_000, 1_200_000)
        starts = {r: now - rng.randrange(2_000, 60_000) + (300_000 if r == last else 0) for r in ranks}
        met.append(Met(starts=starts, end=now + 400_000, sequence=n, group=group("0", ranks)))
    return met


def _aligned(ranks: list[RankCommunication]) -> ClockAlignment:
    return align_clocks(ranks, match_collectives(ranks))


@pytest.mark.parametrize(("offset", "drift"), [(5_000_000, 0.0), (-80_000_000, 3e-5), (0, -4e-4), (200_000, 1e-6)])
def test_planted_offset_and_drift_come_back(offset: int, drift: float) -> None:
    ranks = job(_met(300, last=2), clocks={1: (offset, drift)})
    fits = {f.rank: f for f in _aligned(ranks).fits}
    assert fits[1].status == "corrected"
    assert fits[1].drift == pytest.approx(drift, rel=1e-3, abs=2e-8)
    for c, true in zip(ranks[1].collectives, ranks[0].collectives, strict=True):
        assert corrected(fits[1], c.end_ns) == pytest.approx(true.end_ns, abs=3)
    assert {fits[0].status, fits[2].status} == {"reference", "agrees"}


def test_skew_is_measured_after_alignment() -> None:
    ranks = job(_met(100, last=2), clocks={1: (7_000_000, 2e-5), 2: (-3_000_000, 0.0)})
    plain = job(_met(100, last=2))
    for a, b in zip(job_collectives(ranks).instances, job_collectives(plain).instances, strict=True):
        assert a.skew_ns == pytest.approx(b.skew_ns, abs=50)
        assert a.last_rank == 2


def test_clocks_that_agree_are_left_alone() -> None:
    ranks = job(_met(100), clocks={1: (AGREE_NS // 2, 0.0)})
    found = _aligned(ranks)
    assert [f.status for f in found.fits] == ["reference", "agrees", "agrees"]
    assert "agree" in found.text
    assert corrected(found.fits[1], 123_456_789) == 123_456_789


def test_ranks_of_one_host_share_its_clock() -> None:
    ranks = job(_met(100, range(4)), clocks={2: (9_000_000, 0.0), 3: (9_004_000, 0.0)})
    hosted = [replace(r, host="a" if r.rank < 2 else "b") for r in ranks]
    fits = _aligned(hosted).fits
    assert [f.status for f in fits] == ["reference", "same_host", "corrected", "corrected"]
    assert fits[2].offset_ns == fits[3].offset_ns


def test_two_machines_of_one_name_are_not_taken_for_one() -> None:
    ranks = [replace(r, host="localhost") for r in job(_met(100), clocks={1: (9_000_000, 0.0)})]
    fits = _aligned(ranks).fits
    assert (fits[1].status, round(fits[1].offset_ns)) == ("corrected", 9_000_000)


def test_ranks_that_share_nothing_with_the_reference_are_reached_through_others() -> None:
    met = []
    for n, m in enumerate(_met(90, (0,))):
        pair = [(0, 1), (1, 2), (2, 3)][n % 3]
        met.append(Met(starts=dict.fromkeys(pair, m.starts[0]), end=m.end, sequence=n, group=group(f"g{pair}", pair)))
    ranks = job(met, clocks={1: (5_000_000, 0.0), 2: (-6_000_000, 0.0), 3: (7_000_000, 0.0)})
    found = _aligned(ranks)
    offsets = {f.rank: round(f.offset_ns) for f in found.fits}
    base = offsets[0]
    assert [offsets[r] - base for r in range(4)] == [0, 5_000_000, -6_000_000, 7_000_000]


def test_clocks_that_jump_by_more_than_a_call_do_not_tell_who_waited() -> None:
    """Nobody leaves a collective before everybody has entered it, and nobody waits longer than it is inside."""
    rng = random.Random(7)
    met = _met(40)
    (jumps, *rest) = job(met)
    moved = tuple(
        replace(c, start_ns=c.start_ns + jump, end_ns=c.end_ns + jump)
        for c in jumps.collectives
        for jump in (rng.choice((-1, 1)) * rng.randrange(2_000_000, 9_000_000),)
    )
    found = job_collectives([replace(jumps, collectives=moved), *rest])
    assert "do not agree" in found.clocks.text
    for instance in found.instances:
        assert instance.waiting_ns is None
        assert "before another entered" in (instance.unsplit or "")


def test_a_late_rank_is_waited_for_no_longer_than_the_others_are_inside() -> None:
    ranks = job(_met(100, last=2), clocks={1: (AGREE_NS // 2, 0.0)})
    for instance in job_collectives(ranks).instances:
        assert instance.waiting_ns is not None
        for each in instance.ranks:
            assert 0 <= (each.waiting_ns or 0) <= each.end_ns - each.start_ns


def test_too_few_collectives_correct_nothing() -> None:
    found = _aligned(job(_met(2), clocks={1: (5_000_000, 0.0)}))
    assert [f.status for f in found.fits] == ["reference", "unknown", "unknown"]
    assert "only 2" in found.fits[1].reason


def test_files_that_count_from_different_base_times_are_brought_together() -> None:
    month = 90 * 86_400 * 1_000_000_000
    ranks = job(_met(50), clocks={1: (-month, 0.0)})
    based = [replace(r, base_time_ns=month if r.rank == 1 else 0) for r in ranks]
    found = job_collectives(based)
    assert all(len(m.ranks) == 3 for m in found.instances)
    for m, plain in zip(found.instances, job_collectives(job(_met(50))).instances, strict=True):
        assert [(r.rank, r.start_ns) for r in m.ranks] == [(r.rank, r.start_ns) for r in plain.ranks]
