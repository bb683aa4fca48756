"""A slow host, a slow rail and one bad rank are told apart, and none is seen where all are alike."""

from __future__ import annotations

import numpy as np
import pytest
from tests.diaries import MS, Planted, drawn_slow, own_times

from stepscope.results.slow_ranks import slow_ranks
from stepscope.stats.step_table import StepTable


def said(times: StepTable) -> set[tuple[str, str | int | None]]:
    return {each.about for each in slow_ranks(times) if each.kind == "chronic"}


@pytest.mark.parametrize("kind", ["clean", "rank", "host", "rail"])
@pytest.mark.parametrize(("ranks", "repeats"), [(64, 15), (512, 4), (4096, 1)])
def test_what_is_slow_is_named_as_what_it_is(ranks: int, repeats: int, kind: str) -> None:
    rng = np.random.default_rng([ranks, len(kind)])
    for _ in range(repeats):
        slow, wanted = drawn_slow(rng, kind, ranks=ranks, per_host=8, factor=1.1)
        assert said(own_times(rng, ranks=ranks, per_host=8, steps=100, slow=slow)) == wanted


def test_a_slow_host_and_a_bad_rank_beside_it() -> None:
    slow = Planted(hosts={1: 1.2}, ranks={30: 1.5})
    times = own_times(np.random.default_rng(0), ranks=32, per_host=8, steps=60, slow=slow)
    found = slow_ranks(times)
    assert said(times) == {("host", "n1"), ("rank", 30)}
    assert {each.rank for each in found} == {*range(8, 16), 30}
    assert found[0].rank == 30
    assert found[0].excess_ns == pytest.approx(6 * MS, rel=0.05)
    assert found[0].part == "backward"
    assert found[-1].excess_ns == pytest.approx(2.4 * MS, rel=0.2)


@pytest.mark.parametrize(
    ("slow", "wanted"),
    [
        (Planted(hosts={1: 1.2}), {("host", "n1")}),
        (Planted(rails={0: 1.2}), {("rail", 0)}),
        (Planted(ranks={2: 1.2}), {("rank", 2)}),
        (Planted(ranks={3: 0.8}), set()),
    ],
)
def test_of_two_hosts_with_two_ranks_each(slow: Planted, wanted: set[tuple[str, str | int | None]]) -> None:
    times = own_times(np.random.default_rng(3), ranks=4, per_host=2, steps=100, slow=slow, spread=0.02)
    assert said(times) == wanted


def test_ranks_that_differ_by_themselves_are_not_slow() -> None:
    rng = np.random.default_rng(4)
    slow = Planted(ranks=dict(enumerate(1 + rng.normal(0, 0.02, 2048))))
    assert said(own_times(rng, ranks=2048, per_host=8, steps=60, slow=slow)) == set()
