from __future__ import annotations

from typing import Any

import pytest
from tests.evidence import epochs, evidence, run

from stepscope.diagnose.rules.quality_lost import RULE
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.records.training import TrainingRun

WEAK = {"scaling": "weak"}
WOBBLE = [0.002, -0.002, 0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.002, -0.002, 0.001, -0.001]


def learned(
    run_id: str, ranks: int, best: float, *, slow: bool = False, loss: float = 0.2, **known: Any
) -> TrainingRun:
    """Twelve epochs up to ``best``, +- 0.002 from one to the next."""
    rise = [0.12, 0.09, 0.07, 0.05, 0.03, 0.02, 0.01, 0, 0, 0, 0, 0] if slow else [0.08, 0.02] + [0.0] * 10
    accuracy = [best - 0.002 - r + w for r, w in zip(rise, WOBBLE, strict=True)]
    losses = [loss + 0.6 * 0.7**n for n in range(12)]
    timed = epochs(seconds=[12.0 / ranks] * 12, accuracy=accuracy, loss=losses)
    return run(run_id, ranks=ranks, dataset="imdb", epochs=timed, **known)


def fired(*runs: TrainingRun) -> Finding:
    outcome = RULE.check(evidence(*runs))
    assert isinstance(outcome, tuple), outcome
    (found,) = outcome
    return found


def test_faster_and_worse_fires_with_both_speed_ups() -> None:
    found = fired(learned("a", 1, 0.783), learned("b", 4, 0.768, slow=True, loss=0.4))
    assert (
        found.title
        == "accuracy is 1.5 points lower on 4 ranks: 4.00x per epoch, 1.14x to validation accuracy 0.75, 0.77 never reached"
    )
    said = " ".join(found.evidence)
    assert "0.7680 on 4 ranks, 0.7830 on 1 rank: 1.5 points lower" in said
    assert "0.77: never in 12 epochs on 4 ranks" in said
    assert "fewer or smaller updates" in said
    assert found.advice[0].command is None  # a run of another tool has no command of ours


def test_as_good_is_quiet_with_the_numbers() -> None:
    outcome = RULE.check(evidence(learned("a", 1, 0.783), learned("b", 4, 0.783, slow=True)))
    assert isinstance(outcome, Quiet)
    assert "0.7830 against 0.7830" in outcome.looked_at


@pytest.mark.parametrize(("best", "fires"), [(0.774, False), (0.771, True)])
def test_beyond_twice_the_noise(best: float, fires: bool) -> None:
    """Changes of 0.003 and 0.004 with either sign: a spread of 0.0031 each, 0.0044 together, limit 0.0088 to 0.0105."""
    outcome = RULE.check(evidence(learned("a", 1, 0.783), learned("b", 4, best, slow=True)))
    assert isinstance(outcome, tuple) is fires


@pytest.mark.parametrize(
    ("mine", "base", "said"),
    [
        ({"global_batch": 128, **WEAK}, {"global_batch": 32, **WEAK}, "4 times fewer updates an epoch"),
        ({"global_batch": 32}, {"global_batch": 32}, "the number of updates is not the cause"),
        ({"steps_per_epoch": 196}, {"steps_per_epoch": 782}, "updates an epoch: 196 against 782"),
        ({}, {}, "per rank, updates are 4 times fewer"),
        (
            {"settings": {"lr": 1e-3}},
            {"settings": {"optimizer.lr": 1e-3}},
            "learning rate 0.001 on both: not scaled",
        ),
        ({"settings": {"lr": 2e-3}}, {"settings": {"lr": 1e-3}}, "scaled by 2"),
    ],
)
def test_what_the_settings_show_is_said(mine: dict[str, Any], base: dict[str, Any], said: str) -> None:
    found = fired(learned("a", 1, 0.783, **base), learned("b", 4, 0.75, slow=True, **mine))
    assert said in " ".join(found.evidence)


def test_only_equal_epochs_are_compared() -> None:
    """A run that was stopped early is held against what the baseline had by then."""
    from dataclasses import replace

    base = learned("a", 1, 0.783, slow=True)
    whole = learned("b", 4, 0.783, slow=True)
    short = replace(whole, epochs=whole.epochs[:9])
    assert isinstance(RULE.check(evidence(base, short)), Quiet)


def test_random_labels_and_too_few_epochs_are_skipped() -> None:
    from dataclasses import replace

    made_up = [replace(r, dataset="synthetic") for r in (learned("a", 1, 0.783), learned("b", 4, 0.7))]
    assert isinstance(RULE.check(evidence(*made_up)), Skipped)
    taught = [replace(r, settings={"dataset_options.labels": "teacher"}) for r in made_up]
    assert isinstance(RULE.check(evidence(*taught)), tuple)
    bare = [
        replace(r, dataset="imdb", epochs=tuple(replace(e, validation_accuracy=None) for e in r.epochs))
        for r in made_up
    ]
    outcome = RULE.check(evidence(*bare))
    assert isinstance(outcome, Skipped)
    assert outcome.command is not None


@pytest.mark.parametrize(("best", "fires"), [(0.74, False), (0.67, True)])
def test_too_few_epochs_to_know_the_noise_need_five_points(best: float, fires: bool) -> None:
    from dataclasses import replace

    runs = [replace(r, epochs=r.epochs[:3]) for r in (learned("a", 1, 0.783), learned("b", 4, best))]
    outcome = RULE.check(evidence(*runs))
    assert isinstance(outcome, tuple) is fires
    if isinstance(outcome, tuple):
        assert outcome[0].severity == "warning"
        assert "too few epochs to estimate the noise" in outcome[0].evidence[0]
        assert outcome[0].title.startswith("accuracy is 11.3 points lower on 4 ranks")
