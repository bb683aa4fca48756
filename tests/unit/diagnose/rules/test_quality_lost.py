from __future__ import annotations

from typing import Any

import pytest
from tests.borders import learned
from tests.evidence import evidence

from stepscope.diagnose.rules.quality_lost import RULE
from stepscope.records.finding import Finding, Skipped
from stepscope.records.training import TrainingRun

WEAK = {"scaling": "weak"}


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
