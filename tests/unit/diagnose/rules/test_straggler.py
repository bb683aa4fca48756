"""Who the others wait for, and that a faster network does not help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace_builder import build, write_job
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.engine import check, diagnose
from stepscope.diagnose.rules.exposed_communication import RULE as EXPOSED
from stepscope.diagnose.rules.straggler import RULE
from stepscope.records.trace_stragglers import StragglerReport
from stepscope.traces.job import analyse_job

SHARED = Path(__file__).parents[4].parent / "shared" / "data" / "traces"


def test_a_late_rank_is_named_before_the_communication_it_causes(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=4, steps=6, late={2: 900_000}, late_kind="compute")
    finding = found(RULE, evidence)
    assert finding.title.startswith("rank 2")
    assert "more compute" in finding.title
    assert finding.subject == "rank 2"
    assert finding.severity == "problem"
    (report,) = [trace.summary.stragglers for trace in evidence.traces if trace.summary.stragglers is not None]
    windows = [p.budget.parts.window_ns for p in evidence.traces[0].summary.ranks if p.budget is not None]
    saved = report.stragglers[0].saved_ns
    assert finding.stake_fraction == pytest.approx(saved * len(windows) / sum(windows)), "both say the same"
    assert any("faster network does not help" in a.text for a in finding.advice)
    assert any("--rank 2" in (a.command or "") for a in finding.advice)
    both = diagnose(evidence, rules=[EXPOSED, RULE]).findings
    assert both[0].rule == "straggler"


def test_a_chronic_one_on_a_named_host_can_be_left_out(tmp_path: Path) -> None:
    summary = generated(tmp_path, world=4, steps=6, late={2: 900_000}).traces[0].summary
    named = tuple(replace(p, facts=replace(p.facts, host=f"node{p.facts.rank}")) for p in summary.ranks)
    finding = found(RULE, traced(replace(summary, ranks=named)))
    assert finding.title.startswith("rank 2 on node2 is a straggler")
    assert any("exclude node2 from the job" in a.text for a in finding.advice)
    here = tuple(replace(p, facts=replace(p.facts, host="node0")) for p in summary.ranks)
    finding = found(RULE, traced(replace(summary, ranks=here)))
    assert not any("from the job" in a.text for a in finding.advice), "all ranks share that host"


def test_ranks_that_arrive_together_are_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, generated(tmp_path, world=4, steps=6))
    assert "no straggler" in said


@pytest.mark.parametrize(("waiting", "fires"), [(0.10, True), (0.0999, False)])
def test_borderline_skew_that_rotates_is_worth_a_word_from_a_tenth_on(
    tmp_path: Path, waiting: float, fires: bool
) -> None:
    summary = generated(tmp_path, world=4).traces[0].summary
    window = sum(p.budget.parts.window_ns for p in summary.ranks if p.budget)
    report = StragglerReport(
        stragglers=(),
        pattern="rotating",
        skew_ns=1,
        waiting_ns=round(waiting * window + 0.5),
        instances=12,
        steps=3,
        text="no straggler over 12 collectives in 3 steps: the last rank changes",
    )
    evidence = traced(replace(summary, stragglers=report))
    if fires:
        finding = found(RULE, evidence)
        assert finding.severity == "warning"
        assert "each time for a different rank" in finding.title
    else:
        assert quiet(RULE, evidence)


def test_one_rank_of_several_names_nobody(tmp_path: Path) -> None:
    folder = write_job(build(world=4), tmp_path)
    assert "traces of all ranks" in skipped(RULE, traced(analyse_job(folder / "rank-1.json")))


def test_each_of_several_jobs_is_named_as_the_subject(tmp_path: Path) -> None:
    late = generated(tmp_path / "a", world=4, steps=6, late={2: 900_000}).traces[0].summary
    even = generated(tmp_path / "b", world=4, steps=6).traces[0].summary
    outcome = check(RULE, traced(late, even, names=("slow", "fast")))
    assert isinstance(outcome, tuple)
    assert [f.subject for f in outcome] == ["slow, rank 2"]


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not beside this checkout")
def test_rank_7_of_the_real_dlrm_job_is_the_straggler() -> None:
    finding = found(RULE, traced(analyse_job(SHARED / "dlrm-v100-8rank")))
    assert finding.title.startswith("rank 7 is a straggler")
    assert "82%" in finding.evidence[0]
