"""Units too small for the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sharded_jobs import fsdp, traces_of
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.rules.fsdp_small_units import RULE

FAST = {"forward_ns": 40_000, "backward_ns": 40_000}


def test_many_small_units_are_named_with_their_size(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(fsdp(units=20, elements=1 << 18, **FAST), tmp_path))
    assert "21 of 21 units gather less than 8.00 MiB, 1.00 MiB in the median" in finding.evidence[0]
    assert finding.stake_fraction is not None
    assert finding.stake_fraction > 0.3
    assert "one unit of several blocks" in finding.advice[0].text


@pytest.mark.parametrize(("elements", "fires"), [((2 << 20) - 4, True), (2 << 20, False)])
def test_borderline_eight_mebibytes(tmp_path: Path, elements: int, fires: bool) -> None:
    evidence = traces_of(fsdp(elements=elements, **FAST), tmp_path)
    assert found(RULE, evidence) if fires else "1 of 7 units" in quiet(RULE, evidence)


def test_small_units_that_computation_hides_are_quiet(tmp_path: Path) -> None:
    said = quiet(RULE, traces_of(fsdp(units=20, elements=1 << 18, forward_ns=400_000, backward_ns=800_000), tmp_path))
    assert said.startswith("21 of 21 units")


def test_three_units_have_little_to_merge(tmp_path: Path) -> None:
    assert quiet(RULE, traces_of(fsdp(units=2, elements=1 << 18, **FAST), tmp_path))


def test_without_sizes_or_sharding_it_is_skipped(tmp_path: Path) -> None:
    assert "no sharded parameters" in skipped(RULE, generated(tmp_path / "ddp", world=2))
    unsized = traces_of(fsdp(elements=1 << 18, nccl_args=False, **FAST), tmp_path / "old")
    assert "sizes of the units are not recorded" in skipped(RULE, unsized)
