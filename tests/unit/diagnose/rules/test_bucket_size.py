from __future__ import annotations

import pytest
from tests.bench_evidence import bench, made, profile
from tests.borders import DEEP, bucket_cell, wire
from tests.fake_runs import spec

from stepscope.diagnose.rules.bucket_size import RULE
from stepscope.records.finding import Quiet, Skipped


def test_large_buckets_on_a_slow_wire_are_too_large() -> None:
    (found,) = RULE.check(bench(bucket_cell("d", 25.0), comm=wire(latency_ms=0.2, bytes_per_s=2e8)))
    assert found.title.startswith("a bucket size of 25 MiB is too large: ")
    assert "(predicted)" in found.title
    assert found.stake_fraction is not None
    assert 0.2 < found.stake_fraction < 0.5
    assert found.severity == "problem"
    assert "--set 'axes.strategy_options.bucket_cap_mb=[25," in (found.advice[0].command or "")


def test_small_buckets_on_a_slow_switch_are_too_small() -> None:
    (found,) = RULE.check(bench(bucket_cell("d", 1.0), comm=wire(latency_ms=20, bytes_per_s=2e9)))
    assert found.title.startswith("a bucket size of 1 MiB is too small: ")


def test_torchs_default_is_called_so() -> None:
    (found,) = RULE.check(bench(bucket_cell("d", None), comm=wire(latency_ms=0.2, bytes_per_s=2e8)))
    assert found.title.startswith("torch's default bucket size (25 MiB) is too large: ")


def test_a_sweep_has_one_finding_for_each_direction() -> None:
    """What was measured wins over the timeline, which names 4 MiB and errs by more than that gains."""
    sizes = [bucket_cell(f"d{cap:g}", cap, comm_ms=ms) for cap, ms in ((1.0, 60), (8.0, 20), (25.0, 90))]
    found = RULE.check(bench(*sizes, comm=wire(latency_ms=20, bytes_per_s=4e8)))
    assert isinstance(found, tuple)
    assert ["too large" in f.title for f in found] == [True, False]
    assert {f.confidence for f in found} == {"measured"}
    large, small = (f.stake_fraction for f in found)
    assert large == pytest.approx(70 / sizes[2].run.step_ns.value * 1e6, rel=0.02)
    assert small == pytest.approx(40 / sizes[0].run.step_ns.value * 1e6, rel=0.02)
    assert all("bucket_cap_mb=[" in f.advice[0].command and ",8]" in f.advice[0].command for f in found)


def test_the_best_size_is_quiet() -> None:
    (found,) = RULE.check(bench(bucket_cell("d", 25.0), comm=wire(latency_ms=0.2, bytes_per_s=2e8)))
    named = float(found.title.partition(": ")[2].partition(" MiB")[0])
    outcome = RULE.check(bench(bucket_cell("d", named), comm=wire(latency_ms=0.2, bytes_per_s=2e8)))
    assert isinstance(outcome, Quiet)
    assert "0% gain" in outcome.looked_at


def test_gradients_that_make_one_bucket_whatever_the_size_are_quiet() -> None:
    one = {"model": {"depth": 1, "width": 4096, "bias": False}}
    own = made("d", **(DEEP | one), comm_ms=30, profile=profile(spec("p", **(DEEP | one))))
    outcome = RULE.check(bench(own, comm=wire(latency_ms=0.2, bytes_per_s=2e8)))
    assert isinstance(outcome, Quiet)
    assert "all sizes make the same 1 bucket of up to 64 MiB" in outcome.looked_at


def test_what_is_missing_is_named_with_the_command() -> None:
    no_collectives = RULE.check(bench(bucket_cell("d", 25.0, network="2gbit:2")))
    assert isinstance(no_collectives, Skipped)
    assert "--emulate-network 2gbit:2" in (no_collectives.command or "")
    comm = wire(latency_ms=0.2, bytes_per_s=2e8)
    elsewhere = RULE.check(bench(bucket_cell("d", 25.0, network="2gbit:2"), comm=comm))
    assert isinstance(elsewhere, Skipped)
    assert "not calibrated with network 2gbit:2" in elsewhere.reason
    no_profile = RULE.check(bench(bucket_cell("d", 25.0, profile=None), comm=comm))
    assert isinstance(no_profile, Skipped)
    assert "no backward profile" in no_profile.reason
    assert isinstance(RULE.check(bench(made("n", strategy="naive"), comm=comm)), Skipped)
