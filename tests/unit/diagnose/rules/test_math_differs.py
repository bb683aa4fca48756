from __future__ import annotations

from typing import Any

import pytest
from tests.borders import first_losses
from tests.evidence import evidence, run

from stepscope.diagnose.rules.math_differs import RULE
from stepscope.records.finding import Quiet, Skipped


def test_curves_apart_fire_against_the_fewest_ranks() -> None:
    (found,) = RULE.check(
        evidence(first_losses("ddp", 2.0), first_losses("naive", 2.2), first_losses("single", 2.001, ranks=1))
    )
    assert found.title == "losses of naive and single differ by 9.9% after one epoch"
    assert "training loss after the first epoch: 2.2000 (naive), 2.0010 (single)" in found.evidence
    assert "after 2 epochs: 1.1000 and 1.0005" in found.evidence


def test_curves_that_coincide_are_quiet_with_the_worst() -> None:
    outcome = RULE.check(evidence(first_losses("ddp", 2.0), first_losses("naive", 2.01), first_losses("other", 2.0)))
    assert isinstance(outcome, Quiet)
    assert "2 pairs of runs: first losses at most 0.5% apart" in outcome.looked_at


@pytest.mark.parametrize(
    "other",
    [
        {"global_batch": 64},
        {"global_batch": None},
        {"settings": {"seed": 2, "lr": 0.1}},
        {"settings": {"seed": 1, "lr": 0.2}},
        {"settings": {"seed": 1, "lr": 0.1, "strategy_options.hook": "powersgd"}},
        {"settings": {"seed": 1, "lr": 0.1, "duplicate_epochs": (1,)}},
        {"group": "another model"},
    ],
)
def test_what_need_not_coincide_is_not_compared(other: dict[str, Any]) -> None:
    outcome = RULE.check(evidence(first_losses("ddp", 2.0), first_losses("naive", 3.0, **other)))
    assert isinstance(outcome, Skipped)


def test_replicas_that_differ_fire_without_any_curve() -> None:
    note = "replicas differ: 2 different parameter sets over 2 ranks"
    (found,) = RULE.check(evidence(run("b", ranks=2, notes=(note,))))
    assert found.evidence == (note,)
    assert found.confidence.startswith("measured")
