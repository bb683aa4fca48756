from __future__ import annotations

import pytest
from tests.bench_evidence import bench, environment, made

from stepscope.diagnose.rules.input_bound import RULE
from stepscope.records.finding import Quiet


def test_waiting_for_data_fires_with_its_share_and_settings() -> None:
    (found,) = RULE.check(
        bench(made("c", phases={"data_wait": 60.0}, known={"threads_per_rank": 1}), environment=environment())
    )
    assert found.severity == "problem"
    assert found.stake_fraction == pytest.approx(60 / 160, abs=0.02)
    assert "num_workers 0, persistent_workers off, pin_memory off" in found.evidence
    assert found.advice[0].command == "stepscope bench MATRIX.yaml --set 'axes.num_workers=[0,1,2]'"
    assert "need cores" not in found.advice[0].text


def test_a_short_wait_is_quiet() -> None:
    outcome = RULE.check(bench(made("c")))
    assert isinstance(outcome, Quiet)
    assert "1.0% of the step waits for data, limit 10%" in outcome.looked_at


@pytest.mark.parametrize(("wait_ms", "fires"), [(10.8, False), (11.6, True)])
def test_a_tenth_of_the_step_decides(wait_ms: float, fires: bool) -> None:
    """99 ms beside the wait: the limit of 10% lies at 11 ms."""
    outcome = RULE.check(bench(made("c", phases={"data_wait": wait_ms}, jitter=0)))
    assert isinstance(outcome, tuple) is fires


def test_the_advice_follows_from_the_settings() -> None:
    cell = made("c", phases={"data_wait": 30.0}, num_workers=2, device="cuda", backend="nccl", epochs=2, steps=40)
    (found,) = RULE.check(bench(cell))
    texts = " | ".join(a.text for a in found.advice)
    assert "use 4 workers instead of 2" in texts
    assert "keep workers alive" in texts
    assert "pinned memory" in texts


def test_workers_that_have_no_core_are_not_praised() -> None:
    cell = made("c", phases={"data_wait": 30.0}, known={"threads_per_rank": 1})
    (found,) = RULE.check(bench(cell, environment=environment(usable_cores=2)))
    assert "workers need cores: 2 compute threads on 2 cores already" in found.advice[0].text
