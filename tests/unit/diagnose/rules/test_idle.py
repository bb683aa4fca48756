"""Rules about a device that idles or computes: each fires on its own cause alone, and on devices only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules import REGISTRY

CAUSES = {"data_loading": "data", "host_sync": "sync", "launch_bound": "launch"}
ON_DEVICES = (
    "exposed_memcpy", "fp32_matmul", "host_sync", "launch_bound", "low_mfu", "memory_bandwidth_bound", "no_tensor_cores",
    "queued_idle", "small_kernels",
)  # fmt: skip


@pytest.mark.parametrize("key", CAUSES)
def test_a_planted_cause_fires_its_own_rule_alone(key: str, tmp_path: Path) -> None:
    slow = dict.fromkeys(range(2), 4_000_000)
    evidence = generated(tmp_path, world=2, steps=4, late=slow, late_kind=CAUSES[key], transfer_ns=10_000)
    rule = REGISTRY.load(key)
    finding = found(rule, evidence)
    assert finding.severity == "problem"
    assert finding.stake_fraction is not None
    assert finding.stake_fraction > 0.2
    assert "mean of 2 ranks" in finding.evidence[0]
    assert {f.rule for f in diagnose(evidence, rules=map(REGISTRY.load, CAUSES)).findings} == {rule.name}


@pytest.mark.parametrize("key", CAUSES)
def test_a_device_that_is_kept_busy_is_quiet(key: str, tmp_path: Path) -> None:
    assert quiet(REGISTRY.load(key), generated(tmp_path, world=2, steps=4))


def test_rules_on_devices_have_nothing_to_look_at_in_a_cpu_job(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=2, device="gloo")
    assert all(" CPU " in skipped(REGISTRY.load(key), evidence) for key in ON_DEVICES)
