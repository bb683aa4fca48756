"""Cells with a pipeline whose ranks did exactly what the simulation says."""

from __future__ import annotations

from dataclasses import replace

from tests import fake_runs
from tests.training_records import trained

from stepscope.predict.pipeline import StageTime, simulate
from stepscope.records.mesh import PipelineLayout, PipelineProfile, PipelineSpan
from stepscope.records.samples import CellResult
from stepscope.results.evidence import CellEvidence

MS = 1_000_000
STEPS = 8


def pipeline_cell(
    layout: PipelineLayout,
    times: list[StageTime],
    split: tuple[int, ...],
    *,
    clocks: tuple[int, ...] = (),
    host: str = "h",
) -> CellEvidence:
    """clocks: what each rank's clock shows when all leave the barrier; with one of its own each rank has its own host."""
    run_id = f"{layout.schedule}-{layout.micro_batches}"
    spec = fake_runs.spec(
        run_id,
        strategy="pipeline",
        strategy_options={"schedule": layout.schedule, "micro_batches": layout.micro_batches, "split": list(split)},
        workload="deep_mlp",
        model={"depth": sum(split), "width": 8},
        loss="mse",
        world_size=layout.ranks,
        mesh={"pp": layout.ranks},
        micro_batch=layout.micro_batches * 4,
        global_batch=layout.micro_batches * 4,
    )
    spans = simulate(layout, times).spans()
    summaries = []
    for rank in range(layout.ranks):
        zero = clocks[rank] if clocks else 5 * MS
        own = tuple(_at(span, zero) for span in spans if span.rank == rank)
        profile = PipelineProfile(layout=layout, split=split, synced_ns=zero, steps=(own,) * STEPS)
        where = f"{host}{rank}" if clocks else host
        summaries.append(fake_runs.rank_summary(spec, rank, pipeline=profile, model_part=rank, host=where))
    run = trained(run_id, 20.0, ranks=layout.ranks, strategy="pipeline", label=f"pipeline {run_id}")
    return CellEvidence(run=run, result=CellResult(spec=spec, status=None, samples=(), summaries=tuple(summaries)))


def _at(span: PipelineSpan, zero: int) -> PipelineSpan:
    return replace(span, start_ns=span.start_ns + zero, end_ns=span.end_ns + zero)
