"""The device idles, and the rule whose cause was planted says so: here data-loading."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hand_events import mark, op
from tests.idle_rules import BORDERS, borderline, fires_alone, quiet_when_busy
from tests.sharded_jobs import used_by
from tests.trace_evidence import by_hand, found, generated, quiet, skipped, with_ranks

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules.data_loading import RULE
from stepscope.diagnose.trace_findings import trace_rules


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
    assert "no device work, operators" in skipped(RULE, with_ranks(evidence, budget=None))


@pytest.mark.parametrize("category", ["annotation", "operator"])
def test_operators_inside_the_loader_of_a_cpu_job_are_data_loading(category: str) -> None:
    """40 of 100 us of each step are spent in collation, which runs operators itself; the rest computes."""
    rows, make = [], mark if category == "annotation" else op
    for i in range(10):
        at = i * 100_000
        rows += [
            mark(f"ProfilerStep#{i}", at, at + 100_000),
            op("aten::mm", at, at + 60_000),
            make("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 60_000, at + 100_000),
            op("aten::stack", at + 60_500, at + 99_000), op("aten::cat", at + 61_000, at + 98_000),
        ]  # fmt: skip
    evidence = by_hand(*rows, op("aten::mm", 1_000_000, 1_060_000))
    finding = found(RULE, evidence)
    assert finding.stake_fraction == pytest.approx(400 / 1060, abs=0.001)
    (rank,) = evidence.traces[0].summary.ranks
    phases = {p.phase: p for p in rank.phases}
    assert (phases["data"].idle_ns, phases["data"].compute_ns) == (400_000, 0)
    assert phases["forward"].compute_ns == 660_000
    assert {f.rule for f in diagnose(evidence, rules=trace_rules()).findings} == {"data-loading"}


def test_operators_of_other_threads_beside_the_loader_compute() -> None:
    rows = [
        mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 10_000, 90_000),
        op("aten::mm", 0, 100_000, thread="autograd"),
    ]
    assert quiet(RULE, by_hand(*rows))


def test_the_option_has_the_name_of_the_jobs_own_framework(tmp_path: Path) -> None:
    evidence = generated(tmp_path, world=2, steps=4, device="gloo", data_ns=2_000_000)
    assert not any("dataloader_num_workers" in a.text for a in found(RULE, evidence).advice)
    trainer = used_by(evidence, frameworks=("transformers",))
    assert any("HF Trainer: dataloader_num_workers" in a.text for a in found(RULE, trainer).advice)
