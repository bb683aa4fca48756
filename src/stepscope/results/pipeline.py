"""The pipeline that a run's settings state (METRICS, Pipeline)."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.records.mesh import PipelineLayout
from stepscope.records.training import TrainingRun

STAGES, MICRO_BATCHES, CHUNKS, SCHEDULE = "pipeline_parallel", "micro_batches", "pipeline_chunks", "pipeline_schedule"
"""Settings that importers write: ranks of a pipeline, micro-batches of a step, chunks of layers a rank, schedule."""

_NO_SIMPLE_BUBBLE = ("zb", "zerobubble", "zero_bubble", "dualpipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """As 1F1B, or interleaved where a rank has several chunks: GPipe has the same bubble."""

    layout: PipelineLayout
    micro_batch: int | None
    global_batch: int | None


def pipeline_of(run: TrainingRun) -> Pipeline | None:
    """None: no pipeline, an unknown number of micro-batches, or a schedule that fills its bubble."""
    settings = run.settings
    stages, micro, chunks = (settings.get(key) for key in (STAGES, MICRO_BATCHES, CHUNKS))
    if micro is None and settings.get(STAGES) is not None:
        micro = run.accumulation
    if not isinstance(stages, int) or not isinstance(micro, int) or stages < 2 or micro < 1:
        return None
    if any(name in str(settings.get(SCHEDULE, "")).lower() for name in _NO_SIMPLE_BUBBLE):
        return None
    several = isinstance(chunks, int) and chunks > 1
    layout = PipelineLayout(
        schedule="interleaved" if several else "1f1b",
        ranks=stages,
        micro_batches=micro,
        chunks=chunks if isinstance(chunks, int) and several else 1,
    )
    return Pipeline(layout=layout, micro_batch=run.micro_batch, global_batch=run.global_batch)
