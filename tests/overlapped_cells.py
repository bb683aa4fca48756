"""Cells that reduce after the backward pass and inside it, with traces whose hidden share is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests import bench_evidence
from tests.bench_evidence import Made, made

from stepscope.records.trace_budget import KindSpans, Parts, RankBudget, RankSpans, StepBudget
from stepscope.records.trace_summary import RankFacts, RankPass, TraceSummary
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.stats.spans import Spans, union
from stepscope.traces.waits import pack

MS = 1_000_000


def two(naive_ms: float, ddp_ms: float, *, jitter: float = 0.01, **spec: Any) -> tuple[Made, Made]:
    """Steps of 97 ms of work and so much exposed communication."""
    return (
        made("naive-cell", strategy="naive", world_size=2, comm_ms=naive_ms, jitter=jitter, **spec),
        made("ddp-cell", strategy="ddp", world_size=2, comm_ms=ddp_ms, jitter=jitter, **spec),
    )


def evidence(*cells: Made, **hidden: Sequence[float]) -> Evidence:
    """With a trace of each cell named: hidden share of 40 ms of communication in each of its steps, on both ranks."""
    found = bench_evidence.bench(*cells)
    return replace(found, traces=tuple(traced(f"{cell}-cell", shares) for cell, shares in hidden.items()))


def traced(cell_id: str, shares: Sequence[float]) -> TraceEvidence:
    ranks = tuple(rank_pass(rank, shares) for rank in range(2))
    return TraceEvidence(
        name=cell_id,
        cell_id=cell_id,
        summary=TraceSummary(world_size=2, ranks=ranks, verdicts=(), notes=()),
    )


def rank_pass(rank: int, shares: Sequence[float]) -> RankPass:
    """Steps of 140 ms that compute for 100 ms from their start; communication ends 40 ms after what is hidden begins."""
    steps: list[StepBudget] = []
    kinds: dict[str, list[tuple[int, int]]] = {"compute": [], "hidden_comm": [], "exposed_comm": []}
    for number, share in enumerate(shares):
        at, hidden = number * 140 * MS, round(share * 40 * MS)
        parts = Parts(
            window_ns=140 * MS, compute_ns=100 * MS, comm_ns=40 * MS, memory_ns=0, overlap_ns=hidden,
            exposed_comm_ns=40 * MS - hidden, exposed_memory_ns=0, busy_ns=140 * MS - hidden, idle_ns=hidden,
        )  # fmt: skip
        steps.append(StepBudget(rank=rank, step=number, boundary="launch", start_ns=at, host_ns=140 * MS, parts=parts))
        kinds["compute"].append((at, at + 100 * MS))
        kinds["hidden_comm"].append((at + 100 * MS - hidden, at + 100 * MS))
        kinds["exposed_comm"].append((at + 100 * MS, at + 140 * MS - hidden))
    window = len(shares) * 140 * MS
    spans = RankSpans(
        rank=rank, source="device", start_ns=0, window_ns=window, unit_ns=1, merged_ns=0,
        kinds=tuple(packed(kind, ends) for kind, ends in kinds.items()),
    )  # fmt: skip
    facts = RankFacts(
        rank=rank, file="f", size_bytes=1, event_count=1, world_size=2, backend="gloo", device_name=None, host="node-a"
    )
    budget = RankBudget(rank=rank, source="device", start_ns=0, parts=steps[0].parts, event_count=1)
    return RankPass(facts=facts, notes=(), budget=budget, steps=tuple(steps), spans=spans)


def packed(kind: str, ends: Sequence[tuple[int, int]]) -> KindSpans:
    found: Spans = union(*(np.array(side, dtype=np.int64) for side in zip(*ends, strict=True)))
    return KindSpans(
        kind=kind, total_ns=found.measure, count=len(found), kept=len(found), packed=pack(found, origin=0, unit=1)
    )
