"""Waiting counts once, and only while nothing of the rank transfers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.communications import Met, group, job

from stepscope.records.trace_collectives import ExactSpans, JobCollectives
from stepscope.stats.spans import union
from stepscope.traces.waiting import job_collectives
from stepscope.traces.waits import exact, exposed_waiting, exposed_waits, waits_of

A, B = group("a", [0, 1]), group("b", [0, 1])


def at(*edges: tuple[int, int]) -> ExactSpans:
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return exact(union(pairs[:, 0], pairs[:, 1]))


def totals(found: JobCollectives, number: int = 0) -> tuple[int, int, int]:
    """Waiting in sum, of it while nothing transfers, of it while nothing computes."""
    each = waits_of(found)[number]
    return each.waiting_ns, each.alone_ns, each.exposed_ns


def test_two_groups_wait_for_the_same_lateness_once() -> None:
    both = [Met(starts={0: 0, 1: 400}, end=1_000, group=g, sequence=0) for g in (A, B)]
    assert totals(job_collectives(job(both))) == (800, 400, 400)


def test_nothing_is_waited_for_while_another_group_transfers() -> None:
    met = [
        Met(starts={0: 0, 1: 600}, end=700, group=A, sequence=0),
        Met(starts={0: 100, 1: 100}, end=500, group=B, sequence=0),
    ]
    assert totals(job_collectives(job(met))) == (600, 200, 200)  # before and after the other group's transfer


def test_waiting_under_computation_is_not_exposed_and_transfer_after_it_is() -> None:
    ranks = job([Met(starts={0: 0, 1: 800}, end=1_200, sequence=0)])
    hidden = [replace(ranks[0], exposed=at((800, 1_200))), ranks[1]]
    assert totals(job_collectives(hidden)) == (800, 800, 0)
    partly = [replace(ranks[0], exposed=at((500, 1_200))), ranks[1]]
    assert totals(job_collectives(partly)) == (800, 800, 300)


def test_a_collective_that_cannot_be_split_transfers_all_the_time() -> None:
    met = [
        Met(starts={0: 0, 1: 600}, end=700, group=A, sequence=0),
        Met(op="send_recv", starts={0: 300, 1: 300}, end=700, peers=(0, 1), comms_id=5, group=B),
    ]
    assert totals(job_collectives(job(met))) == (600, 300, 300)


def test_exposed_waiting_of_windows_and_instances() -> None:
    ranks = job(
        [Met(starts={0: 0, 1: 400}, end=500, sequence=0), Met(starts={0: 1_000, 1: 1_100}, end=1_500, sequence=1)]
    )
    ranks[0] = replace(ranks[0], exposed=at((100, 500), (1_000, 1_500)))
    found = job_collectives(ranks)
    waits = waits_of(found)
    assert [exposed_waiting(instance, waits) for instance in found.instances] == [300, 100]
    assert waits[0].exposed_by_call == (300, 100)
    assert exposed_waits(waits[0], ranks[0]).measure == 400
    assert exposed_waits(waits[1], ranks[1]).measure == 0


@pytest.mark.parametrize("seed", range(20))
def test_as_counted_nanosecond_by_nanosecond(seed: int) -> None:
    rng = random.Random(seed)
    met = []
    for g in (A, B):
        now = 0
        for number in range(5):
            starts = {r: now + rng.randrange(1, 30) for r in (0, 1)}
            now = max(starts.values()) + rng.randrange(1, 20)
            met.append(Met(starts=starts, end=now, group=g, sequence=number))
    ranks = job(met)
    inside = np.zeros(300, dtype=bool)
    waits, transfers, exposed = inside.copy(), inside.copy(), np.array([rng.random() < 0.5 for _ in inside])
    for m in met:
        inside[m.starts[0] : m.end] = True
        waits[m.starts[0] : max(m.starts.values())] = True
        transfers[max(m.starts.values()) : m.end] = True
    exposed &= inside
    moments = np.flatnonzero(exposed).tolist()
    ranks[0] = replace(ranks[0], exposed=at(*((i, i + 1) for i in moments)))
    alone = waits & ~transfers
    found = job_collectives(ranks)
    assert {i.unsplit for i in found.instances} == {None}
    assert totals(found)[1:] == (alone.sum(), (alone & exposed).sum())


def test_transfer_that_the_last_rank_hides_is_exposed_because_it_is_late() -> None:
    ranks = job([Met(starts={0: 0, 1: 400}, end=1_000, sequence=0)])
    ranks[0] = replace(
        ranks[0], exposed=at((500, 1_000)), collectives=(replace(ranks[0].collectives[0], exposed_ns=500),)
    )
    ranks[1] = replace(
        ranks[1], exposed=at((900, 1_000)), collectives=(replace(ranks[1].collectives[0], exposed_ns=100),)
    )
    waits = waits_of(job_collectives(ranks))
    assert (waits[0].exposed_by_call, waits[0].ahead_by_call, waits[1].ahead_by_call) == ((0,), (400,), (0,))
    assert waits[0].ahead_ns == 400
