"""Communication that nothing hides, and what of it is waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sharded_jobs import pipeline, traces_of
from tests.trace_evidence import found, generated, traced, written

from stepscope.diagnose.rules.exposed_communication import RULE
from stepscope.traces.job import analyse_job, combine
from stepscope.traces.sections import Wanted


def test_transfers_that_are_waited_for_fire_with_their_share(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=2, steps=4, overlap=False, transfer_ns=300_000)
    finding = found(RULE, evidence)
    parts = [p.budget.parts for p in evidence.traces[0].summary.ranks if p.budget]
    share = sum(p.exposed_comm_fraction for p in parts) / 2
    assert share > 0.2
    assert finding.severity == "problem"
    assert f"{share * 100:.0f}%" in finding.title
    assert finding.stake_fraction == pytest.approx(share, rel=0.1)
    assert any("0% of communication is hidden under computation" in line for line in finding.evidence)
    assert any("stepscope trace" in (a.command or "") for a in finding.advice)


def test_waiting_for_a_late_rank_is_taken_off_the_stake(tmp_path: Path) -> None:
    finding = found(
        RULE,
        generated(tmp_path, world=2, steps=6, late={1: 1_000_000}, late_kind="compute", transfer_ns=500_000),
    )
    assert any("is waiting for the last rank" in line for line in finding.evidence)
    assert finding.stake_fraction is not None
    assert finding.stake_fraction == pytest.approx(float(finding.title.split(": ")[1].split("%")[0]) / 100, abs=0.01)


def test_from_device_events_alone_the_waiting_is_unknown_and_said_so(tmp_path: Path) -> None:
    written(tmp_path, world=2, steps=4, overlap=False, transfer_ns=300_000)
    partly = analyse_job(tmp_path / "job", Wanted(sections=frozenset({"budget"})))
    finding = found(RULE, traced(partly))
    assert "includes waiting" in finding.confidence
    assert "without --show budget" in finding.advice[0].text


def test_tensor_parallel_reductions_of_the_forward_pass_cannot_be_hidden(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, shape="tensor", world=2, steps=4, transfer_ns=300_000))
    said = " ".join(finding.evidence)
    assert "in the forward pass (tensor parallel)" in said
    assert "could hide" not in said
    assert not any("no_sync" in advice.text for advice in finding.advice)


def test_messages_of_a_pipeline_do_not_tell_who_waited(tmp_path: Path) -> None:
    whole = traces_of(pipeline(steps=4), tmp_path)
    finding = found(RULE, whole)
    assert finding.confidence.endswith("includes waiting for late ranks")
    assert finding.advice[0].text.startswith("compare when the ranks enter these calls")
    summary = whole.traces[0].summary
    cut = found(RULE, traced(combine(summary.ranks[:2])))
    assert cut.advice[0].text.startswith("give the traces of all ranks")
