"""The device idles, and the rule whose cause was planted says so: here host-sync."""

from __future__ import annotations

from pathlib import Path

from tests.idle_rules import BORDERS, borderline, fires_alone, quiet_when_busy
from tests.trace_evidence import generated, skipped

from stepscope.diagnose.rules.host_sync import RULE


def test_the_planted_cause_fires_its_own_rule_alone(tmp_path: Path) -> None:
    fires_alone(RULE, tmp_path, late_kind="sync")


def test_a_device_that_is_kept_busy_is_quiet(tmp_path: Path) -> None:
    quiet_when_busy(RULE, tmp_path)


@BORDERS
def test_borderline_a_tenth_and_a_fifth_of_the_window(tmp_path: Path, share: float, severity: str | None) -> None:
    borderline(RULE, tmp_path, share, severity, cause="sync")


def test_a_cpu_job_has_no_device_to_wait_for(tmp_path: Path) -> None:
    assert "CPU job" in skipped(RULE, generated(tmp_path, world=2, device="gloo", data_ns=300_000))
