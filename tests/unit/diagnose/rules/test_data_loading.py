"""The device idles, and the rule whose cause was planted says so: here data-loading."""

from __future__ import annotations

from pathlib import Path

from tests.idle_rules import BORDERS, borderline, fires_alone, quiet_when_busy
from tests.trace_evidence import found, generated, skipped, with_ranks

from stepscope.diagnose.rules.data_loading import RULE


def test_the_planted_cause_fires_its_own_rule_alone(tmp_path: Path) -> None:
    fires_alone(RULE, tmp_path, late_kind="data")


def test_a_device_that_is_kept_busy_is_quiet(tmp_path: Path) -> None:
    quiet_when_busy(RULE, tmp_path)


@BORDERS
def test_borderline_a_tenth_and_a_fifth_of_the_window(tmp_path: Path, share: float, severity: str | None) -> None:
    borderline(RULE, tmp_path, share, severity, cause="data")


def test_a_cpu_job_waits_for_data_too(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, world=2, steps=4, device="gloo", data_ns=2_000_000))
    assert finding.title.startswith("no operator runs")


def test_a_trace_without_any_event_is_skipped(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=1)
    assert "nothing was recorded" in skipped(RULE, with_ranks(evidence, budget=None))
