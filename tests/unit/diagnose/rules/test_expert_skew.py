"""A rank whose experts get most tokens."""

from __future__ import annotations

from pathlib import Path

from tests.sharded_jobs import experts, traces_of
from tests.trace_evidence import found, generated, skipped

from stepscope.diagnose.rules.expert_skew import RULE


def test_the_rank_of_the_hot_expert_is_named(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(experts(hot={2: 2.5}), tmp_path))
    assert finding.title.startswith("rank 2 has a hot expert: the others wait 26% of the window")
    assert finding.evidence[0].startswith(
        "24 of 48 exchanges wait for the rank that exchanges most, 1.82 times the mean"
    )


def test_without_exchanges_or_their_sizes_it_is_skipped(tmp_path: Path) -> None:
    assert "no exchange" in skipped(RULE, generated(tmp_path / "ddp", world=2))
    assert skipped(RULE, traces_of(experts(hot={2: 2.5}, nccl_args=False), tmp_path / "old"))
