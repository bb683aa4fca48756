"""Most kernels shorter than their launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_evidence import by_hand, found, generated, kernels, quiet, skipped

from stepscope.diagnose.rules.small_kernels import RULE

SHORT = ("void at::native::vectorized_elementwise_kernel<4>", 3.0)
LONG = ("ampere_sgemm_128x64_nn", 60.0)


def test_many_short_kernels_with_gaps_fire() -> None:
    finding = found(RULE, by_hand(*kernels(*[SHORT] * 30, LONG, gap_us=2)))
    assert "97% of 31 compute kernels take at most 10.0 us" in finding.title
    assert finding.stake_fraction == pytest.approx((30 * 3 + 30 * 2) / (30 * 3 + 30 * 2 + 60), abs=0.01)
    assert any("3.00 us each" in line for line in finding.evidence)


def test_long_kernels_are_quiet() -> None:
    assert "limits 50% and 10%" in quiet(RULE, by_hand(*kernels(*[LONG] * 20, gap_us=2)))


@pytest.mark.parametrize(("short", "fires"), [(10, True), (9, False)])
def test_borderline_half_of_the_kernels_by_number(short: int, fires: bool) -> None:
    evidence = by_hand(*kernels(*[("a_elementwise", 10.0)] * short, *[("b_elementwise", 10.001)] * (20 - short)))
    if fires:
        assert found(RULE, evidence).severity == "problem"
    else:
        assert quiet(RULE, evidence)


def test_many_that_take_no_time_are_quiet() -> None:
    assert quiet(RULE, by_hand(*kernels(*[("a_elementwise", 1.0)] * 20, ("gemm", 400.0))))


def test_a_cpu_job_has_no_kernels(tmp_path: Path) -> None:
    assert "CPU job" in skipped(RULE, generated(tmp_path, world=2, device="gloo"))
