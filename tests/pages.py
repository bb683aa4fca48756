"""Evidence for pages made by hand: a bit of everything, or as much of one thing as a test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests import comm_rows, fake_runs
from tests.evidence import MS, epochs, rate, run, step
from tests.trace_builder import build, write_job

from stepscope.records.cell import RunRecord
from stepscope.records.finding import Advice, Diagnosis, Finding, Quiet, Skipped
from stepscope.records.samples import CellResult, RankSamples, SamplesHeader
from stepscope.records.trace_budget import KINDS, KindSpans, NamedSpan, RankBudget, RankSpans
from stepscope.records.trace_summary import RankFacts, RankPass, TraceSummary
from stepscope.records.training import PhaseTimes, TrainingRun
from stepscope.results.evidence import CellEvidence, Evidence, Source, TraceEvidence
from stepscope.results.joining import derived
from stepscope.results.open import load_evidence
from stepscope.stats import spans
from stepscope.stats.spans import Spans, union
from stepscope.traces.activity import Activity, parts_within
from stepscope.traces.timeline_spans import MAX_SPANS, fewer
from stepscope.traces.waits import pack

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '" onmouseover="alert(3)" x="\' onfocus=\'alert(4)',
    "line\u2028separator\u2029and {{ 7 * 7 }} &amp; -->",
    "</style><style>@import url(http://example.invalid/)</style>",
)


def diagnosis(**changes: Any) -> Diagnosis:
    """One finding of each severity, a quiet rule and a skipped one."""
    found = (
        Finding(
            rule="communication-bound", severity="problem", title="31% of the step is exposed communication",
            evidence=("all_reduce of 12.9 MB a step takes 4.1 ms, 3.0 ms of it under no computation",),
            stake_fraction=0.31, confidence="measured", subject="ddp on 4 ranks",
            advice=(Advice(text="accumulate gradients", command="stepscope bench base.yaml --set base.accumulation=4"),),
        ),
        Finding(
            rule="straggler", severity="warning", title="rank 3 is late in 18 of 20 steps", evidence=("by 0.4 ms",),
            stake_fraction=0.04, confidence="likely", advice=(Advice(text="look at its host"),),
        ),
        Finding(
            rule="compute-bound", severity="info", title="mlp large is compute-bound", evidence=("97% compute",),
            stake_fraction=None, confidence="measured", advice=(),
        ),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "findings": found,
        "quiet": (Quiet(rule="clock-skew", looked_at="largest offset 3 us, limit 100 us"),),
        "skipped": (Skipped(rule="slow-link", reason="no link matrix was recorded", command="nvidia-smi topo -m"),),
    }
    return Diagnosis(**(fields | changes))


def runs(count: int = 4, *, group: str = "toy", named: str = "") -> tuple[TrainingRun, ...]:
    """``count`` runs on 1, 2, 4, ... ranks with everything that tables and charts show; the last one failed."""
    made = []
    for at in range(count):
        ranks = 2**at
        made.append(
            run(
                f"{group}-{at}", ranks=ranks, group=group, label=f"ddp {named}on {ranks} ranks", strategy="ddp",
                dataset="digits", precision="fp32", global_batch=256, num_parameters=1_345_000,
                step_ns=step(20.0 / ranks**0.8), samples_per_s=rate(12_800.0 * ranks**0.8),
                exposed_comm_ns=step(0.5 * at), peak_memory_bytes=200 * 2**20,
                memory={"parameters": 50 * 2**20, "activations": 120 * 2**20},
                phases=PhaseTimes(
                    data_wait_ns=0.2 * MS, forward_ns=5 * MS, backward_compute_ns=10 * MS, exposed_comm_ns=0.5 * at * MS,
                    optimizer_ns=1 * MS, other_ns=0.3 * MS,
                ),
                epochs=epochs(
                    seconds=[9.0 / ranks] * 5, loss=[2.0, 1.2, 0.8, 0.6, 0.5], accuracy=[0.5, 0.7, 0.8, 0.84, 0.86]
                ),
            )
        )  # fmt: skip
    failed = run(
        f"{group}-failed", ranks=2**count, group=group, label=f"ddp {named}on {2**count} ranks", strategy="ddp",
        dataset="digits", status="oom", error="rank 3 on node-b: 2.1 GiB over",
    )  # fmt: skip
    return (*made, failed)


def cell(cell_id: str = "cell-a", *, ranks: int = 4) -> CellEvidence:
    """A cell of `bench` with samples: rank r's steps are r ms longer in the forward pass."""
    spec = fake_runs.spec(cell_id, world_size=ranks)
    samples = tuple(
        RankSamples(
            header=SamplesHeader(
                cell_id=cell_id, rank=r, world_size=ranks, clock="perf_counter", comm_source="hook"
            ),
            steps=tuple(
                fake_runs.step(n, 10_000_000 + n * 100_000 + r * 1_000_000, forward_ns=2_000_000 + r * 1_000_000)
                for n in range(11)
            ),
        )
        for r in range(ranks)
    )  # fmt: skip
    own = run(cell_id, ranks=ranks, group="bench cells", label=f"ddp on {ranks} ranks", strategy="ddp")
    return CellEvidence(
        run=own,
        result=CellResult(spec=spec, status=None, samples=samples, summaries=()),
    )


def traced(name: str, *, ranks: int = 8, count: int = 400, limit: int = MAX_SPANS, seed: int = 0) -> TraceEvidence:
    """A traced job: about ``count`` spans a rank, kernels with gaps and all_reduce half under them."""
    return TraceEvidence(
        name=name,
        summary=TraceSummary(
            world_size=ranks,
            ranks=tuple(_rank(rank, count, limit, np.random.default_rng([seed, rank])) for rank in range(ranks)),
            verdicts=(),
            notes=(),
        ),
    )  # fmt: skip


def _rank(rank: int, count: int, limit: int, rng: np.random.Generator) -> RankPass:
    activity = _activity(count, rng)
    compute, comm = activity.compute, activity.comm
    low, high = 0, int(max(compute.ends[-1], comm.ends[-1]))
    by_kind = {
        "compute": compute,
        "hidden_comm": spans.intersect(comm, compute),
        "exposed_comm": spans.subtract(comm, compute),
        "copies": spans.subtract(spans.subtract(activity.memory, compute), comm),
    }
    kept, merged = fewer(by_kind, limit=limit)
    unit = max(1, merged // 8)
    parts = parts_within(activity, low=low, high=high)
    return RankPass(
        facts=RankFacts(
            rank=rank, file=f"rank-{rank}.json", size_bytes=1, event_count=count, world_size=None, backend="nccl",
            device_name="hand-made", host="node-a",
        ),
        notes=(),
        budget=RankBudget(rank=rank, source="device", start_ns=low, parts=parts, event_count=count),
        spans=RankSpans(
            rank=rank, source="device", start_ns=low, window_ns=high - low, unit_ns=unit, merged_ns=merged,
            kinds=tuple(
                KindSpans(
                    kind=kind, total_ns=by_kind[kind].measure, count=len(by_kind[kind]), kept=len(kept[kind]),
                    packed=pack(kept[kind], origin=low, unit=unit),
                )
                for kind in KINDS
            ),
            named=tuple(
                NamedSpan(start_ns=int(s), duration_ns=int(e - s), name=f"ncclDevKernel_AllReduce_{n % 3}")
                for n, (s, e) in enumerate(zip(comm.starts[:100], comm.ends[:100], strict=True))
            ),
        ),
    )  # fmt: skip


def _activity(count: int, rng: np.random.Generator) -> Activity:
    kernels = max(2, count * 6 // 10)
    compute = _spans(rng.integers(2_000, 60_000, kernels), rng.integers(300, 9_000, kernels))
    reduces = max(1, count // 10)
    comm = _spans(
        rng.integers(20_000, 90_000, reduces),
        rng.integers(100_000, 400_000, reduces) * kernels // (10 * reduces),
    )
    copies = _spans(rng.integers(500, 5_000, reduces), rng.integers(100_000, 500_000, reduces))
    end = int(compute.ends[-1])
    empty = np.zeros(0, dtype=np.int64)
    return Activity(
        source="device", compute=compute, comm=spans.clip(comm, low=0, high=end),
        memory=spans.clip(copies, low=0, high=end), indices=empty, work=empty.astype(np.int8),
    )  # fmt: skip


def late_jobs(folder: Path) -> Evidence:
    """Two jobs of 3 ranks, read from traces: rank 1 computes 1.2 times as long as the others in ``late``, 1.6 times in
    ``later``, which comes second.
    """
    for name, factor in (("late", 1.2), ("later", 1.6)):
        write_job(build(shape="ddp", world=3, steps=6, slow={1: factor}), folder / name)
    return load_evidence([folder / "late", folder / "later"], spans=True)


def _spans(lengths: Any, gaps: Any) -> Spans:
    edges = np.cumsum(np.stack([gaps, lengths], axis=1).ravel())
    return union(edges[0::2], edges[1::2])


def evidence(**changes: Any) -> Evidence:
    """A bit of everything; ``changes`` replace parts of it."""
    parts: dict[str, Any] = {
        "sources": (Source(path=Path("results/hand-made"), kind="bench"),),
        "runs": runs(),
        "cells": (cell(),),
        "comm": tuple(comm_rows.sweep("all_reduce", world_size=4, alpha_us=20, rate=10e9)),
        "traces": (traced("mlp, ddp on 8 ranks"),),
        "records": (
            RunRecord(
                kind="bench",
                name="hand-made",
                matrix={"version": 1, "axes": {"world_size": [1, 2, 4]}, "launch": {"max_time": "5min"}},
                cells=("cell-a",),
                argv=("stepscope", "bench", "base.yaml"),
            ),
        ),
        "notes": ("one line of metrics.csv was torn and left out",),
    }
    return derived(Evidence(**(parts | changes)))
