"""Records for charts and tables of training runs: a small study in which every figure is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests import fake_runs
from tests.evidence import MS, epochs, rate, run, step

from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.records.samples import CellResult, RankSamples, SamplesHeader
from stepscope.records.trace_budget import Parts, RankBudget
from stepscope.records.trace_summary import RankFacts, RankPass, TraceSummary
from stepscope.records.training import PhaseTimes, ScalingRow, TrainingRun
from stepscope.results.evidence import CellEvidence, TraceEvidence
from stepscope.results.scaling import scaling_rows

BATCH = 256


def trained(run_id: str, ms: float, *, ranks: int = 1, strategy: str = "single", **known: Any) -> TrainingRun:
    """A cell of ``bench``: a step of ``ms`` with all that follows from it."""
    exposed = 0.0 if ranks == 1 else 0.25 * ms
    phases = PhaseTimes(
        data_wait_ns=0.01 * ms * MS,
        forward_ns=0.25 * ms * MS,
        backward_compute_ns=0.4 * ms * MS,
        exposed_comm_ns=exposed * MS,
        optimizer_ns=0.1 * ms * MS,
        other_ns=0.02 * ms * MS,
    )
    fields: dict[str, Any] = {
        "label": f"{strategy} on {counted(ranks, 'rank')}",
        "group": "mlp small on mnist, fp32",
        "model": "mlp small",
        "dataset": "mnist",
        "dataset_size": 60_000,
        "strategy": strategy,
        "precision": "fp32",
        "accumulation": 1,
        "micro_batch": BATCH // ranks,
        "global_batch": BATCH,
        "device": "cpu",
        "backend": "gloo",
        "hardware": "Example CPU",
        "step_ns": step(ms),
        "samples_per_s": rate(BATCH / ms * 1e3),
        "exposed_comm_ns": step(exposed),
        "phases": phases,
        "baseline_id": "one",
        "peak_memory_bytes": 300 * 2**20,
        "epochs": epochs(seconds=[1.5, 1.0, 1.0, 1.1], loss=[2.0, 1.0, 0.7, 0.6], accuracy=[0.4, 0.6, 0.7, 0.75]),
    }
    return run(run_id, ranks=ranks, **(fields | known))


def failed(run_id: str, status: str = "oom", **known: Any) -> TrainingRun:
    """A cell without a result."""
    nothing: dict[str, Any] = {
        "step_ns": None, "samples_per_s": None, "exposed_comm_ns": None, "phases": None, "peak_memory_bytes": None,
        "epochs": (), "error": "rank 1",
    }  # fmt: skip
    return replace(trained(run_id, 1.0, **known), status=status, **nothing)


def study() -> tuple[TrainingRun, ...]:
    """One rank and two, two strategies, two precisions, accumulation, two machines, one failure."""
    kinds = {"parameters": 100 * 2**20, "gradients": 100 * 2**20, "activations": 50 * 2**20}
    other = {"hardware": "Other CPU", "source": "other/run"}
    return (
        trained("one", 20.0),
        trained("naive2", 16.0, ranks=2, strategy="naive", memory=kinds),
        trained("ddp2", 12.0, ranks=2, strategy="ddp"),
        trained("ddp4", 7.0, ranks=4, strategy="ddp"),
        trained("half2", 9.0, ranks=2, strategy="ddp", precision="amp_bf16", group="mlp small on mnist, amp_bf16"),
        trained(
            "ga4",
            40.0,
            ranks=2,
            strategy="ddp",
            accumulation=4,
            global_batch=4 * BATCH,
            samples_per_s=rate(25_600),
        ),
        trained("there2", 6.0, ranks=2, strategy="ddp", baseline_id=None, **other),
        failed("lost4", ranks=4, strategy="naive"),
    )


def imported() -> tuple[TrainingRun, ...]:
    """As from a metrics.csv: epochs and nothing else; four ranks are faster and learn worse."""
    shape: dict[str, Any] = {"group": "transformer on IMDB", "model": "transformer", "dataset": "IMDB"}
    one = [11.8, *[11.0 + 0.1 * (n % 3) for n in range(9)]]
    four = [3.6, *[3.2 + 0.05 * (n % 3) for n in range(9)]]
    return (
        run("exp020", ranks=1, **shape, epochs=epochs(
            seconds=one, loss=[0.6 - 0.03 * n for n in range(10)], accuracy=[0.7 + 0.01 * n for n in range(10)])),
        run("exp021", ranks=4, **shape, epochs=epochs(
            seconds=four, loss=[0.69 - 0.02 * n for n in range(10)], accuracy=[0.6 + 0.015 * n for n in range(10)])),
    )  # fmt: skip


def scaled(runs: Sequence[TrainingRun]) -> tuple[ScalingRow, ...]:
    return scaling_rows(runs)


def cell(of: TrainingRun, *, late: int = 1, by_ms: float = 3.0, steps: int = 40) -> CellEvidence:
    """The samples of a run on two ranks; rank ``late`` needs ``by_ms`` longer in its forward pass."""
    spec = fake_runs.spec(of.run_id)
    samples = []
    for rank in (0, 1):
        extra = int(by_ms * MS) if rank == late else 0
        series = [
            fake_runs.step(n, int(20 * MS) + extra + n * 1000, forward_ns=int(5 * MS) + extra, loss_sum=64.0 / (n + 1))
            for n in range(steps)
        ]
        header = SamplesHeader(cell_id=of.run_id, rank=rank, world_size=2, clock="perf_counter", comm_source="hook")
        samples.append(RankSamples(header=header, steps=tuple(series)))
    summaries = tuple(fake_runs.rank_summary(spec, rank) for rank in (0, 1))
    result = CellResult(spec=spec, status=None, samples=tuple(samples), summaries=summaries)
    return CellEvidence(run=of, result=result)


def trace(name: str = "ddp on 2 ranks", ranks: int = 2) -> TraceEvidence:
    """A trace of ``ranks`` ranks: 60% computation and 30% exposed communication on rank 0, 5% less on each next."""
    return TraceEvidence(
        name=name,
        summary=TraceSummary(
            world_size=ranks,
            ranks=tuple(_rank(rank) for rank in range(ranks)),
            verdicts=(),
            notes=(),
        ),
    )


def _rank(rank: int) -> RankPass:
    compute = 600 - 5 * rank
    parts = Parts(
        window_ns=1000, compute_ns=compute, comm_ns=400, memory_ns=0, overlap_ns=100, exposed_comm_ns=300,
        exposed_memory_ns=20, busy_ns=compute + 320, idle_ns=680 - compute,
    )  # fmt: skip
    facts = RankFacts(
        rank=rank, file=f"rank{rank}.json", size_bytes=1, event_count=1, world_size=2, backend="nccl",
        device_name="GPU", host="node-a",
    )  # fmt: skip
    budget = RankBudget(rank=rank, source="device", start_ns=0, parts=parts, event_count=1)
    return RankPass(facts=facts, notes=(), budget=budget)


def exact(value: float) -> Measured:
    """A figure without an interval."""
    return Measured(value=value)


def everything() -> dict[str, Any]:
    """What charts need of training runs, by the names that they use."""
    runs = (*study(), *imported())
    return {
        "runs": runs,
        "scaling": scaled(runs),
        "cells": (cell(runs[2]),),
        "traces": (trace(),),
        "drop_epochs": 1,
    }
