from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made

from stepscope.diagnose.rules.naive_synchronisation import RULE


def test_blocking_all_reduces_fire_with_what_overlap_returns_at_most() -> None:
    (found,) = RULE.check(bench(made("n", strategy="naive", comm_ms=80)))
    assert found.severity == "problem"
    assert found.stake_fraction == pytest.approx(60 / 177, abs=0.01)  # the backward pass, the shorter of the two
    assert "6 blocking collectives a step, gradient by gradient" in found.evidence
    assert "axes.strategy=[naive,bucketed,ddp]" in (found.advice[0].command or "")


def test_a_measured_cell_that_overlaps_outranks_the_estimate() -> None:
    (found,) = RULE.check(bench(made("n", strategy="naive", comm_ms=80), made("d", comm_ms=40)))
    assert found.stake_fraction == pytest.approx(40 / 177, abs=0.01)
    assert found.confidence.startswith("measured")
