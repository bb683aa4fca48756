"""A strategy whose collectives differ from its plan."""

from __future__ import annotations

from pathlib import Path

from tests.trace_evidence import found, generated, quiet, skipped, with_ranks

from stepscope.diagnose.rules.plan_broken import RULE
from stepscope.records.trace_collectives import ConformanceCheck


def checked(holds: bool | None, *differences: str, steps: int = 3, certain: bool = True) -> ConformanceCheck:
    return ConformanceCheck(
        rank=0,
        strategy="interleaved",
        steps=steps,
        planned_per_step=4,
        launched_in_backward=12,
        overlap_planned=True,
        holds=holds,
        differences=differences,
        certain=certain,
    )


def test_a_broken_plan_fires_and_names_what_is_missing(tmp_path: Path) -> None:
    broken = checked(False, "step 10: missing 1 x all_reduce of 4 bytes")
    finding = found(RULE, with_ranks(generated(tmp_path, world=2), conformance=broken))
    assert finding.severity == "problem"
    assert finding.title == "strategy 'interleaved' deviates from its communication plan on 2 ranks"
    assert finding.evidence == ("rank 0: step 10: missing 1 x all_reduce of 4 bytes",)


def test_what_batching_or_prefetch_explains_is_worth_knowing_and_not_wrong(tmp_path: Path) -> None:
    other = checked(False, "step 10: 2 x all_reduce of 4 bytes that the plan does not have", certain=False)
    finding = found(RULE, with_ranks(generated(tmp_path, world=2), conformance=other))
    assert (finding.severity, finding.priority, finding.confidence[:6]) == ("info", "performance", "likely")


def test_a_matching_plan_is_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, with_ranks(generated(tmp_path, world=2), conformance=checked(True)))
    assert said == "interleaved: 4 collectives a step as planned, on 2 ranks"


def test_borderline_no_whole_step_decides_nothing(tmp_path: Path) -> None:
    assert skipped(RULE, with_ranks(generated(tmp_path, world=2), conformance=checked(None, steps=0))) == (
        "no whole step was recorded"
    )


def test_traces_of_other_tools_carry_no_plan(tmp_path: Path) -> None:
    assert "have no communication plan" in skipped(RULE, generated(tmp_path, world=2))
