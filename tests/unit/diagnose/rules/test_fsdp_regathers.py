"""Units gathered twice although memory has room."""

from __future__ import annotations

from pathlib import Path

from tests.sharded_jobs import fsdp, traces_of
from tests.trace_evidence import found, quiet

from stepscope.diagnose.rules.fsdp_regathers import RULE

SLOW_NETWORK = {"elements": 64 << 20, "forward_ns": 1_000_000, "backward_ns": 2_000_000}


def test_second_gathers_with_room_are_named(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(fsdp(**SLOW_NETWORK), tmp_path))
    assert finding.evidence[0].startswith("6 units are gathered")
    assert "they take 1.50 GiB at most; the allocator reserves 1.00 GiB of 80.0 GiB" in finding.evidence[1]
    assert finding.advice[0].text == "FSDP2: fully_shard(block, reshard_after_forward=False)"


def test_second_gathers_that_computation_hides_are_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, traces_of(fsdp(units=10, forward_ns=2_000_000, backward_ns=4_000_000), tmp_path))
    assert said.startswith("10 units are gathered twice")


def test_on_cpus_the_room_is_not_known_and_said_so(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(fsdp(device="gloo", forward_ns=100_000, backward_ns=100_000), tmp_path))
    assert "whether host memory has room is not recorded" in finding.confidence
    assert any("reshard_after_forward=False" in a.text for a in finding.advice)
