from __future__ import annotations

from typing import Any

import pytest
from tests.evidence import evidence, rate, run

from stepscope.diagnose.rules.scaling_mixed import RULE
from stepscope.records.training import TrainingRun


def ran(run_id: str, ranks: int, global_batch: int | None, scaling: Any = None) -> TrainingRun:
    return run(
        run_id,
        ranks=ranks,
        scaling=scaling,
        global_batch=global_batch,
        samples_per_s=rate(90.0 * ranks),
        baseline_id="a",
    )


def test_both_kinds_against_one_baseline_fire() -> None:
    (found,) = RULE.check(evidence(ran("a", 1, 32), ran("s", 2, 32, "strong"), ran("w", 2, 64, "weak")))
    assert found.title == "strong and weak scaling in one comparison: 2 runs against a on 1 ranks"
    assert found.evidence == ("s on 2 ranks: strong, 2.00x", "w on 2 ranks: weak, 2.00x")


@pytest.mark.parametrize(
    ("batch", "scaling", "title"),
    [
        (64, "strong", "called strong scaling, but its batches are those of weak scaling"),
        (32, "weak", "called weak scaling, but its batches are those of strong scaling"),
        (48, "strong", "neither strong nor weak scaling: global batch 48 on 2 ranks, 32 on 1 rank"),
    ],
)
def test_batches_that_contradict_the_name_fire(batch: int, scaling: str, title: str) -> None:
    (found,) = RULE.check(evidence(ran("a", 1, 32), ran("b", 2, batch, scaling)))
    assert found.title == title
