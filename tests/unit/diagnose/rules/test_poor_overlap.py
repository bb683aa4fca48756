from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made, profile
from tests.calibration_rows import sweep
from tests.fake_runs import spec

from stepscope.diagnose.rules.poor_overlap import RULE
from stepscope.records.finding import Quiet

DEEP = {
    "workload": "deep_mlp", "model": {"depth": 16, "width": 512, "bias": False}, "loss": "mse", "momentum": 0.0,
    "strategy_options": {"bucket_cap_mb": 1.0},
}  # fmt: skip
PROFILE = profile(spec("p", **DEEP))


def wire(bytes_per_s: float) -> tuple:
    """All-reduces of no latency worth mentioning: 16 MiB at 1 GB/s take 17 ms, well under a backward pass of 60 ms."""
    return tuple(sweep(alpha_ns=1000, beta_bytes_per_s=bytes_per_s))


def test_communication_that_could_hide_fires_with_what_is_avoidable() -> None:
    (found,) = RULE.check(bench(made("d", comm_ms=17, profile=PROFILE, **DEEP), comm=wire(1e9)))
    assert "15% of the step is exposed communication; better overlap could recover 14%" in found.title
    assert found.stake_fraction == pytest.approx((17 - 1.05) / 114, abs=0.01)
    assert any(
        "of communication is hidden; 94% could be (from the timeline of its own buckets)" in e for e in found.evidence
    )


def test_communication_too_long_to_hide_is_not_overlaps_fault() -> None:
    """16 MiB at 100 MB/s take 168 ms and backward 60: whatever overlaps, about 112 ms stay exposed."""
    outcome = RULE.check(bench(made("d", comm_ms=112, profile=PROFILE, **DEEP), comm=wire(1e8)))
    assert isinstance(outcome, Quiet)
    assert "of which overlap could recover" in outcome.looked_at


def test_more_exposed_than_all_communication_takes_is_no_negative_share() -> None:
    """16 MiB at 1 GB/s take 17 ms by themselves; 27 ms are exposed. Overlap can return no more than the 17."""
    (found,) = RULE.check(bench(made("d", comm_ms=27, profile=PROFILE, jitter=0, **DEEP), comm=wire(1e9)))
    assert found.stake_fraction == pytest.approx((16.8 - 1.05) / 124, abs=0.01)
    assert not any("-" in e.split("%")[0] for e in found.evidence)
    assert any("the hidden share is unknown: exposed time exceeds the 16.8 ms" in e for e in found.evidence)


def test_waiting_for_a_slow_rank_is_not_counted_as_communication() -> None:
    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += 40 * rank

    outcome = RULE.check(bench(made("d", comm_ms=3, own=own, profile=PROFILE, **DEEP), comm=wire(1e9)))
    assert isinstance(outcome, Quiet)


def test_without_measured_collectives_a_naive_cell_stands_in() -> None:
    naive = made("n", comm_ms=17, profile=PROFILE, **(DEEP | {"strategy": "naive", "strategy_options": {}}))
    (found,) = RULE.check(bench(made("d", comm_ms=17, profile=PROFILE, **DEEP), naive))
    assert any("0% of the 17.0 ms of communication is hidden; 100% could be" in e for e in found.evidence)


def test_without_either_the_bound_is_unknown_and_said_to_be() -> None:
    (found,) = RULE.check(bench(made("d", comm_ms=17, profile=PROFILE, **DEEP)))
    assert "unknown" in found.confidence
    assert "stepscope comm --ops all_reduce" in (found.advice[0].command or "")
