from __future__ import annotations

import pytest
from tests.borders import shared
from tests.comm_rows import KIB

from stepscope.core.units import format_size
from stepscope.diagnose.rules.network_contention import LEAST_CALLS, RULE
from stepscope.records.finding import Skipped
from stepscope.results.comm_facts import LARGE_BYTES


def test_varying_calls_of_ranks_that_are_alike_fire() -> None:
    (found,) = RULE.check(shared(2.1))
    assert found.title == (
        "all_reduce on 4 ranks on 4 hosts at 4 MiB: the slowest tenth of the calls takes 2.1x the median"
    )
    assert found.evidence[0] == "median 10.0 ms, slowest tenth from 21.0 ms, worst 30.0 ms of 40 calls"
    assert "differ by 3.0%" in found.evidence[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"rank_spread": 0.3},  # a slow rank explains it
        {"iterations": 12},
        {"hosts": 1, "network": None},  # loopback shares cores
        {"size": 64 * KIB},
    ],
)
def test_what_other_things_explain_is_not_judged(changes: dict[str, object]) -> None:
    assert isinstance(RULE.check(shared(3.0, **changes)), Skipped)


def test_means_alone_say_nothing_about_single_calls() -> None:
    row = shared(2.0, time_ns_p90=None, time_ns_median=None, rank_spread=None)
    assert isinstance(RULE.check(row), Skipped)


def test_what_it_lacks_is_said_with_its_limits() -> None:
    assert f"with {LEAST_CALLS.value:.0f} calls of {format_size(LARGE_BYTES)} and more" in RULE.unseen
