from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made

from stepscope.diagnose.rules.compute_bound_step import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.training import Measured


def test_a_step_that_computes_is_good_news() -> None:
    one = made("one", strategy="single", world_size=1, known={"samples_per_s": Measured(value=100.0)})
    two = made("c", known={"baseline_id": "one", "samples_per_s": Measured(value=186.0)})
    (found,) = RULE.check(bench(one, two))
    assert found.severity == "info"
    assert found.stake_fraction is None
    assert "of the step is computation on 2 ranks" in found.title
    assert "efficiency 93%, excellent" in found.evidence


def test_a_step_that_communicates_is_none() -> None:
    outcome = RULE.check(bench(made("c", comm_ms=40)))
    assert isinstance(outcome, Quiet)
    assert "exposed communication" in outcome.looked_at


@pytest.mark.parametrize(("comm_ms", "fires"), [(4.5, True), (6.0, False)])
def test_five_per_cent_of_communication_is_the_most(comm_ms: float, fires: bool) -> None:
    assert isinstance(RULE.check(bench(made("c", comm_ms=comm_ms, jitter=0))), tuple) is fires


def test_one_rank_is_not_asked() -> None:
    assert isinstance(RULE.check(bench(made("c", strategy="single", world_size=1))), Skipped)
