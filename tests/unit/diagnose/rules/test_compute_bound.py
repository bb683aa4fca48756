"""Good news: the device computes."""

from __future__ import annotations

from pathlib import Path

from tests.bench_evidence import bench, made
from tests.trace_evidence import found, generated, skipped, traced, written

from stepscope.diagnose.rules.compute_bound import RULE
from stepscope.records.nouns import Measured
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted


def test_a_device_that_computes_is_good_news(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=2, steps=4, transfer_ns=20_000, backward_ns=900_000, forward_ns=900_000)
    finding = found(RULE, evidence)
    assert finding.severity == "info"
    assert finding.stake_fraction is None
    assert "(median rank)" in finding.title
    assert finding.evidence[0].startswith("exposed communication ")


def test_without_a_device_no_flop_are_asked_for(tmp_path: Path) -> None:
    finding = found(
        RULE, generated(tmp_path, world=2, device="gloo", transfer_ns=20_000, backward_ns=900_000, forward_ns=900_000)
    )
    assert [a.text for a in finding.advice] == ["list the operators with most time"]


def test_device_events_alone_are_not_enough(tmp_path: Path) -> None:
    written(tmp_path, world=2)
    partly = analyse_job(tmp_path / "job", Wanted(sections=frozenset({"budget"})))
    assert "--show budget" in skipped(RULE, traced(partly))


def test_a_step_that_computes_is_good_news() -> None:
    one = made("one", strategy="single", world_size=1, known={"samples_per_s": Measured(value=100.0)})
    two = made("c", known={"baseline_id": "one", "samples_per_s": Measured(value=186.0)})
    (found,) = RULE.check(bench(one, two))
    assert found.severity == "info"
    assert found.stake_fraction is None
    assert "of the step is computation on 2 ranks" in found.title
    assert "efficiency 93%, excellent" in found.evidence
