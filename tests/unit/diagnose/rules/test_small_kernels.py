"""Most kernels shorter than their launch."""

from __future__ import annotations

import pytest
from tests.trace_evidence import by_hand, found, kernels

from stepscope.diagnose.rules.small_kernels import RULE

SHORT = ("void at::native::vectorized_elementwise_kernel<4>", 3.0)
LONG = ("ampere_sgemm_128x64_nn", 60.0)


def test_many_short_kernels_with_gaps_fire() -> None:
    finding = found(RULE, by_hand(*kernels(*[SHORT] * 30, LONG, gap_us=2)))
    assert "97% of 31 compute kernels take at most 10.0 us" in finding.title
    assert finding.stake_fraction == pytest.approx((30 * 3 + 30 * 2) / (30 * 3 + 30 * 2 + 60), abs=0.01)
    assert any("3.00 us each" in line for line in finding.evidence)
