from __future__ import annotations

from typing import Any

import pytest
from tests.borders import four_ranks, one_rank
from tests.evidence import evidence, run

from stepscope.diagnose.rules import communication_bound
from stepscope.diagnose.rules.duplicated_data import RULE
from stepscope.records.finding import Finding, Quiet, Skipped


def fired(outcome: object) -> Finding:
    assert isinstance(outcome, tuple), outcome
    (found,) = outcome
    return found


def test_lower_losses_in_no_less_time_fire() -> None:
    found = fired(RULE.check(evidence(one_rank(), four_ranks([0.47, 0.15, 0.07, 0.04, 0.03], 125.0))))
    assert "first epoch's loss is 22% lower than on 1 rank, and the epoch is no faster" in found.title
    assert found.stake_fraction == pytest.approx(0.75)
    said = " ".join(found.evidence)
    assert "0.4700 on 4 ranks, 0.6000 on 1 rank" in said
    assert "what 4 ranks reach in 2 epochs takes 1 rank 5 epochs" in said
    assert "epoch time: 1.25x that of 1 rank, not 0.25x" in said


@pytest.mark.parametrize(
    "known",
    [
        {"settings": {"training.learning_rate": 0.004}},
        {"dataset_size": 480_000},
        {"global_batch": 8},
    ],
    ids=["another learning rate", "more data", "smaller batches"],
)
def test_what_also_lowers_the_first_loss_is_not_taken_for_it(known: dict[str, Any]) -> None:
    first = one_rank(dataset_size=120_000, global_batch=32, settings={"training.learning_rate": 0.001})
    same = {"dataset_size": 120_000, "global_batch": 32, "settings": {"training.learning_rate": 0.001}}
    assert isinstance(RULE.check(evidence(first, four_ranks([0.4] * 5, 100.0, **same))), tuple)
    outcome = RULE.check(evidence(first, four_ranks([0.4] * 5, 100.0, **{**same, **known})))
    assert isinstance(outcome, Skipped)


def test_counted_samples_decide_without_a_baseline() -> None:
    copies = run("two", ranks=2, dataset_size=1000, samples_seen_per_rank=(1000, 1000))
    found = fired(RULE.check(evidence(copies)))
    assert found.title == "2 ranks train on the same data: each sample 2.0 times per epoch"
    assert found.stake_fraction == pytest.approx(0.5)
    assert found.confidence.startswith("measured")


def test_nothing_to_judge_by_says_what_to_run() -> None:
    outcome = RULE.check(evidence(run("two", ranks=2)))
    assert isinstance(outcome, Skipped)
    assert outcome.command is not None


def test_communication_is_not_blamed_for_it() -> None:
    """A small batch and a poor speed-up would do for communication-bound, were it not for the data."""
    small = {"micro_batch": 8}
    copies = evidence(one_rank(), four_ranks([0.47, 0.15, 0.07, 0.04, 0.03], 125.0, **small))
    assert isinstance(communication_bound.RULE.check(copies), Quiet)
    shared = evidence(one_rank(), four_ranks([0.69, 0.6, 0.5, 0.5, 0.5], 125.0, **small))
    assert isinstance(communication_bound.RULE.check(shared), tuple)
