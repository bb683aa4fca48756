"""Copies around a unit's collectives that no computation hides."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sharded_jobs import fsdp, traces_of, used_by
from tests.trace_evidence import found, generated, skipped

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules.exposed_memcpy import RULE as ANY_COPY
from stepscope.diagnose.rules.fsdp_wait_on_copy import RULE

TIMES = {"forward_ns": 1_000_000, "backward_ns": 2_000_000, "copy_ns": 0, "optimizer_ns": 0}


@pytest.mark.parametrize("annotated", [True, False])
def test_copies_out_of_the_gathered_buffer_are_named_with_their_time(tmp_path: Path, annotated: bool) -> None:
    """Six units, copied twice a step, each 500 us on the stream that computes."""
    finding = found(RULE, traces_of(fsdp(copy_out_ns=500_000, annotated=annotated, steps=2, **TIMES), tmp_path))
    assert "is copy-out of gathered parameters that no computation hides" in finding.title
    assert finding.evidence[-1] == "copy-out of gathered parameters: 24 copies, 12.0 ms exposed of 12.0 ms a rank"
    assert finding.stake_fraction == pytest.approx(6 / (6 + 18 + 1.6), rel=0.1)
    assert finding.advice[0].text.startswith("FSDP2: MixedPrecisionPolicy(param_dtype=torch.bfloat16)")


def test_parameters_in_host_memory_are_told_from_batches(tmp_path: Path) -> None:
    evidence = traces_of(fsdp(offload_ns=600_000, **TIMES), tmp_path)
    finding = found(RULE, evidence)
    assert "parameters to the device" in finding.title
    assert found(RULE, used_by(evidence, frameworks=("fsdp1",))).advice[0].text.startswith("FSDP1: ")
    said = diagnose(evidence, rules=(RULE, ANY_COPY))
    assert [f.rule for f in said.findings] == ["fsdp-wait-on-copy"], "its cause is named, not told twice"
    assert "no copies of units" in skipped(RULE, traces_of(fsdp(**TIMES | {"copy_ns": 9_000_000}), tmp_path / "batch"))


def test_other_jobs_are_skipped(tmp_path: Path) -> None:
    assert "no sharded parameters" in skipped(RULE, generated(tmp_path / "ddp", world=2))
