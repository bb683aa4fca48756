from __future__ import annotations

from typing import Any

import pytest
from tests import fake_runs
from tests.bench_evidence import bench, environment, made
from tests.borders import held

from stepscope.diagnose.rules.sharding_saves_little import RULE
from stepscope.predict.specs import specs_of
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.results.evidence import Evidence


def whole(**spec: Any) -> int:
    return specs_of(fake_runs.spec("x", **spec)).memory_plan.total_bytes


def said(evidence: Evidence) -> Finding:
    (found,) = RULE.check(evidence)
    assert isinstance(found, Finding)
    return found


def test_a_small_saving_that_costs_time_fires_with_what_it_costs() -> None:
    large = 30 * whole()
    found = said(bench(held("fsdp2", activations=large, ms=130), held("ddp", activations=large, ms=97)))
    assert found.title == "fsdp2 saves 1.2% of a rank's memory"
    assert found.stake_fraction == pytest.approx(1 - 97 / 130, abs=0.03)
    assert "as long as with ddp" in found.evidence[1]
    assert found.advice[0].command is not None
    assert found.advice[0].command.endswith("--set base.strategy=ddp")


def test_without_ddp_beside_it_the_bytes_speak_and_no_stake_is_claimed() -> None:
    found = said(bench(held("zero1", activations=30 * whole())))
    assert found.stake_fraction is None
    assert "it sends " in found.evidence[1]


def test_where_the_whole_state_would_not_fit_the_advice_would_be_wrong() -> None:
    tight = held("fsdp2", activations=30 * whole())
    used = 2 * (tight.run.peak_memory_bytes or 0)  # two ranks on the host
    assert isinstance(RULE.check(bench(tight, environment=environment(memory_bytes=int(used * 1.05)))), Quiet)
    assert isinstance(RULE.check(bench(tight, environment=environment(memory_bytes=int(used * 9)))), tuple)


def test_without_counted_tensors_nothing_is_said() -> None:
    assert isinstance(RULE.check(bench(made("f", strategy="fsdp2"))), Skipped)
