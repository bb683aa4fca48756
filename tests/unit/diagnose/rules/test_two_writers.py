from __future__ import annotations

from typing import Any

import pytest
from tests.evidence import evidence, run

from stepscope.diagnose.rules.two_writers import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.training import Epoch, TrainingRun


def wrote(*numbers: int, ranks: int | None = 1, **settings: Any) -> TrainingRun:
    rows = tuple(Epoch(number=n, duration_ns=1e9, train_loss=0.5) for n in numbers)
    return run("exp7", ranks=ranks, epochs=rows, settings=settings)


@pytest.mark.parametrize(
    ("numbers", "ranks", "cause"),
    [
        ((1, 2, 3, 2, 4, 3, 4), 1, "two jobs wrote it"),
        ((1, 1, 2, 2, 3, 3), 2, "each of 2 ranks writes"),
        ((1, 2, 3, 1, 2, 3, 4), 4, "the job was restarted"),
    ],
)
def test_repeated_epochs_fire_with_their_likely_cause(numbers: tuple[int, ...], ranks: int, cause: str) -> None:
    (found,) = RULE.check(evidence(wrote(*numbers, ranks=ranks)))
    assert found.title.endswith(f"in one metrics file, probably because {cause}")
    assert found.severity == "problem"


def test_the_numbers_are_in_the_evidence() -> None:
    (found,) = RULE.check(evidence(wrote(1, 2, 3, 2, 4, 3)))
    assert found.title.startswith("exp7: 2 epochs twice")
    assert found.evidence == (
        "written more than once: epoch 2, 3",
        "epoch 2 follows epoch 3, and so on, 2 times in all",
    )


def test_what_an_importer_marked_counts_as_well() -> None:
    (found,) = RULE.check(evidence(wrote(1, 2, 3, duplicate_epochs=(2, 3), epoch_series_alternate=True)))
    assert "two jobs wrote it" in found.title
    (found,) = RULE.check(evidence(wrote(1, 2, 3, duplicate_epochs=(3,), epoch_series_alternate=False)))
    assert "the job was restarted" in found.title


def test_order_with_gaps_is_quiet() -> None:
    outcome = RULE.check(evidence(wrote(0, 1, 2, 5, 6)))
    assert isinstance(outcome, Quiet)


def test_one_step_back_is_enough() -> None:
    (found,) = RULE.check(evidence(wrote(1, 3, 2)))
    assert "epochs that go backwards" in found.title


def test_without_epochs_it_is_skipped() -> None:
    assert isinstance(RULE.check(evidence(run("a"))), Skipped)
