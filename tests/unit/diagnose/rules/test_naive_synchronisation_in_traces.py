"""Reductions after the backward pass, or waited for inside it, as traces show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trace_evidence import found, generated, quiet, skipped, traced, with_ranks

from stepscope.diagnose.rules.naive_synchronisation import RULE
from stepscope.records.trace_collectives import BucketRow
from stepscope.records.trace_rules import GradientSync, SyncPlace

NONE = SyncPlace(positions=(), total_ns=0, exposed_ns=0)


def test_reductions_after_backward_fire(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, shape="naive", world=2, steps=4, transfer_ns=300_000))
    assert finding.title.startswith("gradients are reduced after backward: ")
    assert finding.severity == "problem"
    assert "4 reductions a step" in finding.evidence[0]
    assert "DistributedDataParallel" in finding.advice[0].text


def test_reductions_inside_backward_that_are_waited_for_fire(tmp_path: Path) -> None:
    finding = found(RULE, generated(tmp_path, world=2, steps=4, overlap=False, transfer_ns=300_000))
    assert "waited for one by one" in finding.title
    assert "async_op=True" in finding.advice[1].text


def test_what_overlap_can_hide_bounds_the_stake(tmp_path: Path) -> None:
    evidence = generated(
        tmp_path, shape="naive", world=2, steps=4, transfer_ns=900_000, backward_ns=50_000, forward_ns=50_000
    )
    finding = found(RULE, evidence)
    assert finding.stake_fraction is not None
    assert finding.stake_fraction < 0.1


def test_many_small_messages_return_more_than_the_backward_pass_hides(tmp_path: Path) -> None:
    """Gradients of 1, 2, 3 and 4 KiB take 0.9 ms each, nearly all of it latency: one bucket takes 0.9 ms for all."""
    evidence = generated(
        tmp_path, shape="naive", world=2, steps=4, layers=4, transfer_ns=900_000, backward_ns=50_000, forward_ns=50_000
    )
    summary = evidence.traces[0].summary
    exposed = [p.budget.parts.exposed_comm_fraction for p in summary.ranks if p.budget]
    assert summary.collectives is not None

    def sized(calls: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(replace(each, size_bytes=1024 * (1 + n % 4)) for n, each in enumerate(calls))

    matched = replace(summary.collectives, instances=sized(summary.collectives.instances))
    ranks = tuple(
        replace(p, communication=replace(p.communication, collectives=sized(p.communication.collectives)))
        for p in summary.ranks
        if p.communication is not None
    )
    finding = found(RULE, traced(replace(summary, collectives=matched, ranks=ranks)))
    assert finding.stake_fraction == pytest.approx(0.75 * min(exposed), rel=0.1)


def test_waiting_for_a_late_loader_is_not_overlaps_to_give(tmp_path: Path) -> None:
    plan = {
        "shape": "naive",
        "world": 4,
        "steps": 4,
        "transfer_ns": 20_000,
        "forward_ns": 300_000,
        "backward_ns": 500_000,
    }
    evidence = generated(tmp_path, late={2: 3_000_000}, late_kind="data", **plan)
    parts = [p.budget.parts for p in evidence.traces[0].summary.ranks if p.budget]
    assert sum(p.exposed_comm_fraction for p in parts) / 4 > 0.2
    assert "exposed reductions transfer for" in quiet(RULE, evidence)


def test_buckets_under_the_backward_pass_are_quiet(tmp_path: Path) -> None:
    assert quiet(RULE, generated(tmp_path, world=2, steps=4, transfer_ns=150_000, backward_ns=200_000))


def test_tensor_parallel_reductions_are_none_of_gradients(tmp_path: Path) -> None:
    said = quiet(RULE, generated(tmp_path, shape="tensor", world=2, steps=4, transfer_ns=300_000))
    assert "forward pass" in said


@pytest.mark.parametrize(("after", "fires"), [(90, True), (89, False)])
def test_borderline_nine_tenths_after_backward(tmp_path: Path, after: int, fires: bool) -> None:
    evidence = generated(tmp_path, world=1)
    window = evidence.traces[0].summary.ranks[0].budget
    assert window is not None
    unit = window.parts.window_ns // 200
    sync = GradientSync(
        rank=0,
        steps=3,
        before=NONE,
        inside=SyncPlace(positions=(0, 1, 2), total_ns=(100 - after) * unit, exposed_ns=0),
        after=SyncPlace(positions=tuple(range(12)), total_ns=after * unit, exposed_ns=after * unit),
    )
    edited = with_ranks(evidence, gradient_sync=sync)
    if fires:
        assert found(RULE, edited)
    else:
        assert "89% of the reductions come after backward" in quiet(RULE, edited)


def test_a_trace_without_steps_or_backward_cannot_tell(tmp_path: Path) -> None:
    evidence = with_ranks(generated(tmp_path, world=2), gradient_sync=None)
    assert "no recorded step has a backward pass" in skipped(RULE, evidence)


def test_a_traced_cell_without_its_samples_is_looked_at_as_any_trace(tmp_path: Path) -> None:
    evidence = generated(tmp_path, shape="naive", world=2, steps=4, transfer_ns=300_000)
    job = replace(evidence.traces[0], cell_id="mlp-naive-1")
    assert found(RULE, replace(traced(job.summary), traces=(job,)))


@pytest.mark.parametrize(("wrapper", "fires"), [("ddp", False), ("hooks", True)])
def test_ddp_is_not_told_to_do_as_ddp_does(tmp_path: Path, wrapper: str, fires: bool) -> None:
    """That little of DDP's buckets hides is for exposed-communication to say; own hooks may wait one by one."""
    evidence = generated(tmp_path, world=2, steps=4, overlap=False, transfer_ns=300_000)
    row = BucketRow(
        rank=0, step=1, index=0, wrapper=wrapper, op="all_reduce", dtype=None, size_bytes=1 << 20, members=None,
        members_source=None, members_unavailable=None, ready_ns=None, launch_ns=0, start_ns=0, end_ns=300_000,
        waited_ns=None, exposed_ns=300_000,
    )  # fmt: skip
    edited = with_ranks(evidence, buckets=(row,))
    if fires:
        assert found(RULE, edited)
    else:
        assert "DistributedDataParallel reduces in buckets" in quiet(RULE, edited)
