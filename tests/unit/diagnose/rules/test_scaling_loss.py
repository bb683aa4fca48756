"""The rule on scaling budgets: as grave as the efficiency is low, with the part that took most; quiet where others speak."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.borders import budget

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.scaling_loss import RULE
from stepscope.records.finding import Finding, Quiet
from stepscope.results.evidence import Evidence


def finding(given: Evidence) -> Finding:
    outcome = check(RULE, given)
    assert isinstance(outcome, tuple)
    return outcome[0]


def test_the_part_with_most_of_the_loss_is_named() -> None:
    assert "70% of the loss is exposed communication" in finding(budget(0.5, comm=0.7)).title
    assert "80% of the loss is compute" in finding(budget(0.5, comm=0.2)).title
    assert "of the loss" not in finding(budget(0.96)).title
    assert "one sample each: no interval" in finding(budget(0.5)).confidence


@pytest.mark.parametrize(("efficiency", "quiet"), [(0.9, True), (0.7, False), (0.2, True)])
def test_timed_runs_without_parts_are_left_to_the_rules_on_good_and_negative_scaling(
    efficiency: float, quiet: bool
) -> None:
    outcome = check(RULE, budget(efficiency, is_traced=False, parts=False))
    assert isinstance(outcome, Quiet) is quiet


def test_two_readings_are_a_question_and_no_stake() -> None:
    (known,) = budget(0.4).scaling_budgets
    weak = replace(known.readings[0], scaling="weak", speedup=3.6, efficiency=0.9)
    asked = replace(known, readings=(known.readings[0], weak), decided_by=None)
    found = finding(Evidence(sources=(), scaling_budgets=(asked,)))
    assert (found.severity, found.stake_fraction) == ("warning", None)
    assert "1.60x as strong scaling or 3.60x as weak scaling" in found.title
    assert "--scaling strong or --scaling weak" in found.advice[0].text
