"""The device idles, and the rule whose cause was planted says so: here host-sync."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_evidence import found, generated, quiet, skipped, with_idle

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules import data_loading, host_sync, launch_bound
from stepscope.diagnose.rules.host_sync import RULE

IDLE = (data_loading.RULE, host_sync.RULE, launch_bound.RULE)


def test_the_planted_cause_fires_its_own_rule_alone(tmp_path: Path) -> None:
    slow = dict.fromkeys(range(2), 4_000_000)
    evidence = generated(tmp_path, world=2, steps=4, late=slow, late_kind="sync", transfer_ns=10_000)
    finding = found(RULE, evidence)
    assert finding.severity == "problem"
    assert finding.stake_fraction is not None
    assert finding.stake_fraction > 0.2
    assert "mean of 2 ranks" in finding.evidence[0]
    assert {f.rule for f in diagnose(evidence, rules=IDLE).findings} == {"host-sync"}


def test_a_device_that_is_kept_busy_is_quiet(tmp_path: Path) -> None:
    assert "limit 10 %" in quiet(RULE, generated(tmp_path, world=2, steps=4))


@pytest.mark.parametrize(("share", "severity"), [(0.0999, None), (0.1001, "warning"), (0.2001, "problem")])
def test_borderline_a_tenth_and_a_fifth_of_the_window(
    tmp_path: Path, share: float, severity: str | None
) -> None:
    evidence = with_idle(generated(tmp_path, world=2), sync=share)
    if severity is None:
        assert quiet(RULE, evidence)
    else:
        assert found(RULE, evidence).severity == severity


def test_a_cpu_job_has_no_device_to_wait_for(tmp_path: Path) -> None:
    assert "CPU job" in skipped(RULE, generated(tmp_path, world=2, device="gloo", data_ns=300_000))
