"""Units too small for the network."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sharded_jobs import fsdp, traces_of
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.rules.fsdp_small_units import RULE
from stepscope.diagnose.trace_facts import steps_ns
from stepscope.records.trace_rules import UnitCall
from stepscope.results.evidence import Evidence

FAST = {"forward_ns": 40_000, "backward_ns": 40_000}


def test_many_small_units_are_named_with_their_size(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(fsdp(units=20, elements=1 << 18, **FAST), tmp_path))
    assert "21 of 21 units gather less than 8.00 MiB, 1.00 MiB in the median" in finding.evidence[0]
    assert finding.stake_fraction is not None
    assert finding.stake_fraction > 0.3
    assert "one unit of several blocks" in finding.advice[0].text


def test_without_sizes_or_sharding_it_is_skipped(tmp_path: Path) -> None:
    assert "no sharded parameters" in skipped(RULE, generated(tmp_path / "ddp", world=2))
    unsized = traces_of(fsdp(elements=1 << 18, nccl_args=False, **FAST), tmp_path / "old")
    assert "sizes of the units are not recorded" in skipped(RULE, unsized)


def timed(evidence: Evidence, *, latency_ns: int, block: int) -> Evidence:
    """Blocks of this size and a root of 4 MiB, whose calls take the latency and 1 ns for 4 bytes, all exposed."""

    def sized(call: UnitCall) -> UnitCall:
        size = 4 << 20 if call.unit == "(root)" else block
        taken = latency_ns + size // 4
        return replace(call, size_bytes=size, end_ns=call.start_ns + taken, exposed_ns=taken)

    (job,) = evidence.traces
    ranks = tuple(
        replace(p, units=replace(p.units, calls=tuple(map(sized, p.units.calls))))
        for p in job.summary.ranks
        if p.units is not None
    )
    return traced(replace(job.summary, ranks=ranks))


@pytest.mark.parametrize(("block", "fires"), [(1 << 20, True), (2 << 20, False)])
def test_on_cpus_the_jobs_own_latency_decides(block: int, fires: bool, tmp_path: Path) -> None:
    """At 0.4 ms of latency and 4 GB/s, 1.5 MiB take as long as the latency."""
    slow = {"forward_ns": 800_000, "backward_ns": 1_600_000}
    evidence = timed(traces_of(fsdp(device="gloo", units=20, **slow), tmp_path), latency_ns=400_000, block=block)
    if not fires:
        assert quiet(RULE, evidence).startswith("0 of 21 units gather less than 1.53 MiB")
        return
    finding = found(RULE, evidence)
    assert "20 of 21 units gather less than 1.53 MiB" in finding.evidence[0]
    (job,) = evidence.traces
    units = [p.units for p in job.summary.ranks if p.units is not None]
    calls = [c for c in units[0].calls if c.unit != "(root)"]
    passes = Counter((c.step, c.op, c.phase) for c in calls)
    gone = sum(count - math.ceil(count / 6.1) for count in passes.values())  # units of 6.1 MiB instead of 1
    whole = steps_ns(job.summary, {c.step for c in calls})
    around = min(each.host_ns for each in units) * gone / len(units[0].calls)
    assert around > 0
    assert finding.stake_fraction == pytest.approx((gone * 400_000 + around) / whole, rel=0.01)
