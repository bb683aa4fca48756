"""A rank whose experts get most tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sharded_jobs import experts, traces_of
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.rules.expert_skew import RULE


def test_the_rank_of_the_hot_expert_is_named(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(experts(hot={2: 2.5}), tmp_path))
    assert finding.title.startswith("rank 2 has a hot expert: the others wait 26% of the time")
    assert finding.evidence[0].startswith(
        "24 of 48 exchanges wait for the rank that exchanges most, 1.82 times the mean"
    )


def test_even_experts_are_quiet(tmp_path: Path) -> None:
    assert "0 of 48 exchanges" in quiet(RULE, traces_of(experts(), tmp_path))


def test_a_rank_that_is_slow_with_even_sizes_is_left_to_straggler(tmp_path: Path) -> None:
    assert quiet(RULE, traces_of(experts(slow={1: 1.8}), tmp_path))


@pytest.mark.parametrize(("hot", "fires"), [(1.40, True), (1.30, False)])
def test_borderline_a_quarter_above_the_mean(tmp_path: Path, hot: float, fires: bool) -> None:
    """1.4 times the others' is 1.27 times the mean of four, 1.3 times is 1.21."""
    evidence = traces_of(experts(hot={3: hot}, forward_ns=400_000, backward_ns=800_000), tmp_path)
    assert found(RULE, evidence) if fires else quiet(RULE, evidence)


def test_without_exchanges_or_their_sizes_it_is_skipped(tmp_path: Path) -> None:
    assert "no exchange" in skipped(RULE, generated(tmp_path / "ddp", world=2))
    assert skipped(RULE, traces_of(experts(hot={2: 2.5}, nccl_args=False), tmp_path / "old"))
