from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.optimizer_heavy import RULE


def test_a_long_update_fires_and_says_what_sharding_would_save() -> None:
    known = {"num_parameters": 1_345_000}
    (found,) = RULE.check(bench(made("c", phases={"optimizer": 50.0}, world_size=4, optimizer="adamw", known=known)))
    assert found.stake_fraction == pytest.approx(50 / 145, abs=0.02)
    assert "adamw over 1.34M parameters" in found.evidence[0] or "adamw over 1.35M parameters" in found.evidence[0]
    assert any("each rank updates 1/4, up to 26% of the step" in a.text for a in found.advice)
    assert found.advice[0].command == (
        "stepscope bench MATRIX.yaml --set base.accumulation=2 --set base.global_batch=128"
    ), "the global batch is fixed: without it the micro-batches would halve"


def test_the_update_of_zero1_holds_its_broadcasts() -> None:
    outcome = check(RULE, bench(made("c", phases={"optimizer": 50.0}, world_size=4, strategy="zero1")))
    assert isinstance(outcome, tuple)
    (found,) = outcome
    assert found.title.endswith("is the optimizer update and the broadcasts of new parameters")
    assert "zero1 sends the updated parameters in this phase: how much of it is transfer, traces show" in found.evidence
    assert not any("shard the update" in each.text for each in found.advice)
