"""The last bucket of a step, which nothing is left to hide."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.borders import bucketed
from tests.trace_evidence import found, generated, quiet, skipped

from stepscope.diagnose.rules.exposed_tail_bucket import RULE


def test_a_tail_that_is_most_of_what_is_exposed_fires_without_the_waiting(tmp_path: Path) -> None:
    finding = found(RULE, bucketed(tmp_path, 0, 10_000, 190_000))
    assert finding.title.startswith("the last gradient bucket is too large: 19% of the step")
    assert finding.stake_fraction == pytest.approx(0.188, abs=0.002)  # 190 us less a bucket of 64 KiB
    assert "95% of the exposed time of all buckets" in finding.evidence[0]
    assert "8.00 MiB; 190 us of its transfer are exposed" in finding.evidence[1]
    assert "bucket_cap_mb" in finding.advice[1].text


def test_what_latency_takes_no_smaller_bucket_returns(tmp_path: Path) -> None:
    """1 MiB takes 150 us and 2 MiB 160: nearly all of a bucket is latency."""
    assert "returns 0" in quiet(RULE, bucketed(tmp_path, 150_000, 160_000, size=2 << 20))


def test_what_queues_behind_other_buckets_no_smaller_one_returns(tmp_path: Path) -> None:
    """The network is busy with the bucket before until 10 us before the last one starts."""
    assert "returns 1.0%" in quiet(RULE, bucketed(tmp_path, 0, 110_000, 190_000, apart_ns=120_000))


def test_one_bucket_a_step_has_no_tail(tmp_path: Path) -> None:
    assert "one bucket per step" in skipped(RULE, bucketed(tmp_path, 200_000))


def test_without_hooks_there_are_no_buckets(tmp_path: Path) -> None:
    assert "no bucket was launched" in skipped(RULE, generated(tmp_path, world=2))
