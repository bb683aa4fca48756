"""Slow links found among pairs of ranks, and no others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.comm_rows import KIB, MIB, pairs, row

from stepscope.results.slow_pairs import Pair, PairsVerdict, slow_pairs


def slow_peers(found: PairsVerdict) -> set[Pair]:
    return {pair.peer for pair in found.pairs}


def verdict(rows) -> PairsVerdict:
    (found,) = slow_pairs(rows)
    return found


@pytest.mark.parametrize(
    ("ranks", "slow", "named", "seen"),
    [
        (8, {"slow_ingress": {2: 2.0}}, ((2,), "ingress"), (7, 7)),
        (8, {"slow_ingress": {2: 3.0}, "slow_egress": {2: 3.0}}, ((2,), "both"), (14, 14)),
        (8, {"slow_egress": {4: 5.0}, "bidirectional": True}, ((4,), "both"), (7, 7)),
        (3, {"slow_egress": {0: 4.0}, "slow_ingress": {0: 4.0}}, ((0,), "both"), (4, 4)),
    ],
)
def test_the_slow_rank_is_named_with_its_direction(ranks: int, slow: dict, named: tuple, seen: tuple) -> None:
    (end,) = verdict(pairs(ranks, noise=random.Random(0), **slow)).ends
    assert (end.ranks, end.direction) == named
    assert (end.slow, end.of) == seen


def test_two_slow_hosts_are_both_named() -> None:
    found = verdict(pairs(8, slow_egress={1: 3.0, 6: 5.0}, noise=random.Random(5)))
    assert [end.ranks for end in found.ends] == [(6,), (1,)]


def test_ranks_of_one_host_are_named_as_the_host() -> None:
    hosts = tuple(name for name in "abcd" for _ in range(2))
    slow = {(a, b): 4.0 for a in (2, 3) for b in range(8) if b not in (2, 3)}
    found = verdict(pairs(8, slow_links=slow, noise=random.Random(2), rank_hosts=hosts))
    (end,) = found.ends
    assert (end.host, end.ranks, end.direction, end.slow, end.of) == ("b", (2, 3), "egress", 12, 12)


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("ranks", [4, 8])
def test_clean_noise_names_no_host(ranks: int, sigma: float) -> None:
    named = sum(bool(verdict(pairs(ranks, noise=random.Random(seed), sigma=sigma)).ends) for seed in range(100))
    assert named == 0


@pytest.mark.parametrize("sigma", [0.02, 0.1])
def test_quiet_clean_pairs_are_all_passed(sigma: float) -> None:
    slow = sum(len(verdict(pairs(8, noise=random.Random(seed), sigma=sigma)).pairs) for seed in range(50))
    assert slow <= 1  # of 2800


def test_single_disturbed_measurements_name_no_host_and_are_not_confirmed() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        rows = [replace(r, time_ns_min=r.time_ns_min * 3) if rng.random() < 0.04 else r for r in pairs(8, noise=rng)]
        found = verdict(rows)
        assert not found.ends
        slow = slow_peers(found)
        assert all(p.confirmed == (p.peer[::-1] in slow) for p in found.pairs)


def test_a_slow_link_seen_both_ways_is_confirmed() -> None:
    found = verdict(pairs(8, slow_links={(2, 5): 2.0, (5, 2): 2.0}, noise=random.Random(1)))
    assert not found.ends
    assert [(p.peer, p.confirmed, p.explained) for p in sorted(found.pairs, key=lambda p: p.peer)] == [
        ((2, 5), True, False),
        ((5, 2), True, False),
    ]


def test_a_slow_link_seen_at_two_sizes_is_confirmed() -> None:
    rows = [r for size in (64 * KIB, 4 * MIB) for r in pairs(4, size_bytes=size, slow_links={(0, 1): 3.0})]
    found = verdict(rows)
    assert {p.size_bytes for p in found.pairs} == {64 * KIB, 4 * MIB}
    assert all(p.confirmed for p in found.pairs)


def test_half_the_rate_is_slow_and_a_quarter_less_is_not() -> None:
    assert slow_peers(verdict(pairs(8, slow_links={(0, 1): 2.0}))) == {(0, 1)}
    assert not verdict(pairs(8, slow_links={(0, 1): 4 / 3})).pairs


def test_pairs_between_hosts_are_not_slow_for_being_slower_than_those_inside() -> None:
    hosts = ("a",) * 4 + ("b",) * 4
    between = {(x, y): 20.0 for x in range(8) for y in range(8) if hosts[x] != hosts[y]}
    assert not verdict(pairs(8, slow_links=between, noise=random.Random(0), rank_hosts=hosts)).pairs
    slower = between | {(1, 6): 60.0, (6, 1): 60.0}
    found = verdict(pairs(8, slow_links=slower, noise=random.Random(0), rank_hosts=hosts))
    assert slow_peers(found) == {(1, 6), (6, 1)}
    assert {p.path for p in found.pairs} == {"between hosts"}
    assert found.pairs[0].ratio == pytest.approx(3.0, rel=0.15)


def test_two_ranks_or_pairs_without_results_cannot_be_judged() -> None:
    for rows in (pairs(2, slow_egress={0: 5.0}), [row(kind="pairs", status="timeout", error="rank 1")]):
        assert not verdict(rows).pairs
        assert verdict(rows).unavailable
    assert slow_pairs([row()]) == ()


def test_each_cell_has_its_own_verdict() -> None:
    rows = pairs(4, slow_egress={0: 5.0}, cell_id="one") + pairs(4, cell_id="two")
    assert [(v.cell_id, len(v.ends)) for v in slow_pairs(rows)] == [("one", 1), ("two", 0)]


def test_the_order_of_rows_is_irrelevant() -> None:
    rows = pairs(8, slow_egress={3: 5.0}, slow_links={(0, 1): 2.0}, noise=random.Random(9))
    mixed = list(rows)
    random.Random(1).shuffle(mixed)
    assert verdict(rows) == verdict(mixed)


def test_what_slowed_a_host_for_a_moment_and_not_again_accuses_nobody() -> None:
    one_way = pairs(8, slow_ingress={2: 2.3}, noise=random.Random(1))
    both_ways = pairs(8, noise=random.Random(2), bidirectional=True)
    assert verdict(one_way).ends
    assert not verdict([*one_way, *both_ways]).ends


def test_a_slow_host_is_slow_both_ways_too_and_stays_named() -> None:
    one_way = pairs(8, slow_egress={2: 5.0}, noise=random.Random(1))
    both_ways = pairs(8, slow_egress={2: 5.0}, noise=random.Random(2), bidirectional=True)
    (end,) = verdict([*one_way, *both_ways]).ends
    assert (end.ranks, end.direction) == ((2,), "egress")
