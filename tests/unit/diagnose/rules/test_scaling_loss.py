"""The rule on scaling budgets: as grave as the efficiency is low, with the part that took most; quiet where others speak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.scaling_loss import RULE
from stepscope.records.comparison import ScalingBudget, ScalingPart, ScalingReading
from stepscope.records.finding import Finding, Quiet
from stepscope.records.nouns import Measured
from stepscope.results.evidence import Evidence
from stepscope.results.scaling import rate


def budget(efficiency: float, *, traced: bool = True, comm: float = 1.0, parts: bool = True) -> ScalingBudget:
    """4 ranks against 1, a step of 10 ms; ``comm`` of the loss is exposed communication, the rest compute."""
    lost = 10e6 * (1 - efficiency)

    def part(key: str, share: float) -> ScalingPart:
        return ScalingPart(key=key, base_ns=0, ideal_ns=0, run_ns=share * lost, lost_ns=share * lost, share=share)

    reading = ScalingReading(
        scaling="strong", speedup=4 * efficiency, low=None, high=None, efficiency=efficiency,
        rating=rate(4 * efficiency, world_size=4), ideal_ns=10e6 - lost, lost_ns=lost,
        parts=(part("exposed_comm", comm), part("compute", 1 - comm)) if parts else (),
    )  # fmt: skip
    return ScalingBudget(
        base="one", run="four", base_world_size=1, world_size=4, unit="step", basis="mean of 8 traced steps",
        base_time=Measured(value=40e6 * efficiency), time=Measured(value=10e6), decided_by="shapes", readings=(reading,),
        no_interval="one sample each: no interval", traced=traced,
    )  # fmt: skip


def finding(found: ScalingBudget) -> Finding:
    outcome = check(RULE, Evidence(sources=(), scaling_budgets=(found,)))
    assert isinstance(outcome, tuple)
    return outcome[0]


@pytest.mark.parametrize(
    ("efficiency", "severity"),
    [(0.4, "problem"), (0.5, "problem"), (0.51, "warning"), (0.8, "warning"), (0.81, "info")],
)
def test_as_grave_as_the_efficiency_is_low(efficiency: float, severity: str) -> None:
    found = finding(budget(efficiency))
    assert found.severity == severity
    assert found.stake_fraction == (None if severity == "info" else pytest.approx(1 - efficiency))


def test_the_part_with_most_of_the_loss_is_named() -> None:
    assert "70% of the loss is exposed communication" in finding(budget(0.5, comm=0.7)).title
    assert "80% of the loss is compute" in finding(budget(0.5, comm=0.2)).title
    assert "of the loss" not in finding(budget(0.96)).title
    assert "one sample each: no interval" in finding(budget(0.5)).confidence


@pytest.mark.parametrize(("efficiency", "quiet"), [(0.9, True), (0.7, False), (0.2, True)])
def test_timed_runs_without_parts_are_left_to_the_rules_on_good_and_negative_scaling(
    efficiency: float, quiet: bool
) -> None:
    outcome = check(RULE, Evidence(sources=(), scaling_budgets=(budget(efficiency, traced=False, parts=False),)))
    assert isinstance(outcome, Quiet) is quiet


def test_two_readings_are_a_question_and_no_stake() -> None:
    known = budget(0.4)
    weak = replace(known.readings[0], scaling="weak", speedup=3.6, efficiency=0.9)
    found = finding(replace(known, readings=(known.readings[0], weak), decided_by=None))
    assert (found.severity, found.stake_fraction) == ("warning", None)
    assert "1.60x as strong scaling or 3.60x as weak scaling" in found.title
    assert "--scaling strong or --scaling weak" in found.advice[0].text
