"""Good news: the device computes."""

from __future__ import annotations

from pathlib import Path

from tests.bench_evidence import bench, made
from tests.trace_evidence import found, generated, skipped, traced, with_parts, written

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules.compute_bound import RULE
from stepscope.diagnose.rules.exposed_communication import RULE as EXPOSED
from stepscope.records.finding import Quiet
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


def test_good_news_comes_last(tmp_path: Path) -> None:
    evidence = with_parts(
        generated(tmp_path, world=2),
        window_ns=1_000_000,
        compute_ns=850_000,
        comm_ns=200_000,
        exposed_comm_ns=150_000,
    )
    assert [f.rule for f in diagnose(evidence, rules=[RULE, EXPOSED]).findings] == [
        "exposed-communication",
        "compute-bound",
    ]


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


def test_a_step_that_communicates_is_none() -> None:
    outcome = RULE.check(bench(made("c", comm_ms=40)))
    assert isinstance(outcome, Quiet)
    assert "exposed communication" in outcome.looked_at
