from __future__ import annotations

from typing import Any

from tests.evidence import evidence, run, step

from stepscope.diagnose.rules.fastest_strategy import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun


def of(run_id: str, ms: float, strategy: str, *, sure: bool = True, **known: Any) -> TrainingRun:
    measured = step(ms, spread=0.02) if sure else Measured(value=ms * 1e6)
    return run(run_id, ranks=2, strategy=strategy, step_ns=measured, **known)


def test_the_fastest_is_named_with_its_gain_over_the_slowest() -> None:
    (found,) = RULE.check(evidence(of("a", 15, "naive"), of("b", 10, "ddp"), of("c", 10.1, "bucketed")))
    assert found.title == "ddp is 50% faster than naive on 2 ranks"
    assert found.evidence[1] == "gain by the 95% intervals: 44% to 56%"
    assert found.evidence[2].startswith("not significantly slower than the fastest:")
    assert found.severity == "info"


def test_strategies_within_their_intervals_are_not_ranked() -> None:
    outcome = RULE.check(evidence(of("a", 10, "ddp"), of("b", 10.2, "naive")))
    assert isinstance(outcome, Quiet)
    assert "no significant difference between" in outcome.looked_at


def test_without_intervals_nothing_is_ranked() -> None:
    assert isinstance(RULE.check(evidence(of("a", 10, "ddp", sure=False), of("b", 15, "naive", sure=False))), Quiet)


def test_runs_that_differ_in_anything_else_are_not_compared() -> None:
    other = of("b", 50, "naive", global_batch=128)
    assert isinstance(RULE.check(evidence(of("a", 10, "ddp"), other)), Skipped)
    other = of("b", 50, "naive", settings={"lr": 0.2})
    assert isinstance(RULE.check(evidence(of("a", 10, "ddp"), other)), Skipped)


def test_a_mesh_and_the_micro_batch_that_it_implies_belong_to_the_strategy() -> None:
    """Of one global batch a rank of a tensor-parallel group takes all, one of two data-parallel ranks half."""
    whole, half = ({"mesh": mesh, "micro_batch": n} for mesh, n in (({"tp": 2}, 8), ({}, 4)))
    (found,) = RULE.check(
        evidence(
            of("a", 10, "tensor_parallel", settings=whole, varied=whole), of("b", 15, "ddp", settings=half, varied=half)
        )
    )
    assert found.title == "tensor_parallel is 50% faster than ddp on 2 ranks"
    inside = whole | {"mesh": {"dp": 2, "tp": 2}}
    (found,) = RULE.check(
        evidence(
            of("a", 10, "tp", label="tp mesh=dp2xtp2", settings=inside),
            of("b", 15, "tp", label="tp mesh=tp4", settings=whole),
        )
    )
    assert found.title == "tp mesh=dp2xtp2 is 50% faster than tp mesh=tp4"


def test_groups_of_several_batches_are_told_apart() -> None:
    runs = [of(f"{s}{n}", ms, s, global_batch=n) for n in (4, 32) for s, ms in (("ddp", 10), ("naive", 15))]
    assert [f.title for f in RULE.check(evidence(*runs))] == [
        f"ddp is 50% faster than naive on 2 ranks, global batch {n}" for n in (4, 32)
    ]


def test_twins_that_nothing_shown_tells_apart_are_not_compared() -> None:
    assert isinstance(RULE.check(evidence(of("a", 10, "ddp"), of("b", 50, "ddp"))), Skipped)
