"""The last bucket of a step, which nothing is left to hide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.rules.exposed_tail_bucket import RULE
from stepscope.records.trace_collectives import BucketRow
from stepscope.results.evidence import Evidence


def bucketed(
    folder: Path,
    *exposed_ns: int,
    steps: int = 3,
    size: int = 8 << 20,
    apart_ns: int = 400_000,
    members: tuple[str, ...] | None = None,
) -> Evidence:
    """Two ranks, steps of 1 ms, buckets of 1 MiB and a last one of ``size`` whose exposed parts these are; rank 1 waits 0.2
    ms more in each. Each is ready when it starts, ``apart_ns`` after the one before; what is not exposed takes 1 us."""
    summary = generated(folder, world=2, steps=steps).traces[0].summary
    ranks = []
    for each in summary.ranks:
        rank = each.facts.rank
        rows = tuple(
            BucketRow(
                rank=rank, step=step.step, index=i, wrapper="ddp", op="all_reduce", dtype="Float",
                size_bytes=size if i == len(exposed_ns) - 1 else 1 << 20, members=members, members_source=None,
                members_unavailable=None, ready_ns=apart_ns * i, launch_ns=apart_ns * i, start_ns=apart_ns * i,
                end_ns=apart_ns * i + max(ns, 1000), waited_ns=0, exposed_ns=ns + 200_000 * rank,
            )
            for step in each.steps
            for i, ns in enumerate(exposed_ns)
        )  # fmt: skip
        timed = tuple(replace(s, parts=replace(s.parts, window_ns=1_000_000)) for s in each.steps)
        ranks.append(replace(each, buckets=rows, steps=timed))
    return traced(replace(summary, ranks=tuple(ranks)))


def test_a_tail_that_is_most_of_what_is_exposed_fires_without_the_waiting(tmp_path: Path) -> None:
    finding = found(RULE, bucketed(tmp_path, 0, 10_000, 190_000))
    assert finding.title.startswith("the last gradient bucket is too large: 19% of the step")
    assert finding.stake_fraction == pytest.approx(0.188, abs=0.002)  # 190 us less a bucket of 64 KiB
    assert "95% of the exposed time of all buckets" in finding.evidence[0]
    assert "8.00 MiB; 190 us of its transfer are exposed" in finding.evidence[1]
    assert "bucket_cap_mb" in finding.advice[1].text


def test_buckets_exposed_alike_are_quiet(tmp_path: Path) -> None:
    assert "limits 50% and 5.0%" in quiet(RULE, bucketed(tmp_path, 90_000, 90_000, 90_000))


@pytest.mark.parametrize(("tail", "fires"), [(50_450, True), (50_300, False)])
def test_borderline_a_twentieth_of_the_step(tmp_path: Path, tail: int, fires: bool) -> None:
    evidence = bucketed(tmp_path, 0, tail)
    if fires:
        assert found(RULE, evidence).severity == "warning"
    else:
        assert quiet(RULE, evidence)


def test_borderline_half_of_what_is_exposed(tmp_path: Path) -> None:
    assert found(RULE, bucketed(tmp_path / "a", 10_000, 10_000, 80_000, 100_000))
    assert quiet(RULE, bucketed(tmp_path / "b", 10_000, 10_000, 80_001, 100_000))


def test_what_latency_takes_no_smaller_bucket_returns(tmp_path: Path) -> None:
    """1 MiB takes 150 us and 2 MiB 160: nearly all of a bucket is latency."""
    assert "returns 0" in quiet(RULE, bucketed(tmp_path, 150_000, 160_000, size=2 << 20))


def test_what_queues_behind_other_buckets_no_smaller_one_returns(tmp_path: Path) -> None:
    """The network is busy with the bucket before until 10 us before the last one starts."""
    assert "returns 1.0%" in quiet(RULE, bucketed(tmp_path, 0, 110_000, 190_000, apart_ns=120_000))


def test_one_gradient_is_not_split_and_no_cap_is_advised(tmp_path: Path) -> None:
    finding = found(RULE, bucketed(tmp_path, 0, 200_000, members=("[50257, 768]",)))
    assert any("does not split a parameter" in line for line in finding.evidence)
    assert not any("bucket_cap_mb" in a.text for a in finding.advice)


def test_one_bucket_a_step_has_no_tail(tmp_path: Path) -> None:
    assert "one bucket per step" in skipped(RULE, bucketed(tmp_path, 200_000))


def test_without_hooks_there_are_no_buckets(tmp_path: Path) -> None:
    assert "no bucket was launched" in skipped(RULE, generated(tmp_path, world=2))
