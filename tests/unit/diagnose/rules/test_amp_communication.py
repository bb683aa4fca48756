from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made
from tests.borders import FULL

from stepscope.diagnose.rules.amp_communication import RULE
from stepscope.records.finding import Quiet, Skipped


def test_amp_with_the_bytes_of_fp32_is_a_warning_where_communication_matters() -> None:
    cells = (
        made("f", known=FULL, comm_ms=40),
        made("a", precision="amp_bf16", known=FULL, comm_ms=40, phases={"forward": 15.0}),
    )
    (found,) = RULE.check(bench(*cells))
    assert found.severity == "warning"
    assert found.title == "AMP does not make the all-reduce smaller: 5.38 MB per step, as in FP32"
    assert found.stake_fraction == pytest.approx(40 / 122 / 2, abs=0.01)
    assert "'axes.strategy_options.hook=[none,bf16]'" in (found.advice[0].command or "")
    assert "precision" in (found.advice[1].command or "")


def test_a_hook_that_halves_the_bytes_is_quiet() -> None:
    half = {"comm_bytes_per_step": 2 * 1_345_000}
    cells = (
        made("f", known=FULL),
        made("a", precision="amp_bf16", strategy_options={"hook": "bf16"}, known=half),
    )
    outcome = RULE.check(bench(*cells))
    assert isinstance(outcome, Quiet)
    assert "50% of the bytes of FP32" in outcome.looked_at


def test_without_amp_it_says_what_to_run() -> None:
    outcome = RULE.check(bench(made("f", known=FULL)))
    assert isinstance(outcome, Skipped)
    assert outcome.command == "stepscope bench --preset precision"
