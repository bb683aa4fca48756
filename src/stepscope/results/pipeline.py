"""The pipeline that a run's settings state, and the bubble that follows from them (METRICS, Pipeline)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepscope.records.training import TrainingRun

STAGES, MICRO_BATCHES, CHUNKS, SCHEDULE = "pipeline_parallel", "micro_batches", "pipeline_chunks", "pipeline_schedule"
"""Settings that importers write: ranks of a pipeline, micro-batches of a step, chunks of layers a rank, schedule."""

_NO_SIMPLE_BUBBLE = ("zb", "zerobubble", "zero_bubble", "dualpipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """stages: ranks of one pipeline. chunks: of layers a rank, 1 unless interleaved."""

    stages: int
    micro_batches: int
    chunks: int
    micro_batch: int | None
    global_batch: int | None

    @property
    def bubble(self) -> float:
        """Idle share of the step: (p - 1) / (v m + p - 1)."""
        return (self.stages - 1) / (self.chunks * self.micro_batches + self.stages - 1)

    @property
    def formula(self) -> str:
        work = f"{self.chunks} x {self.micro_batches}" if self.chunks > 1 else f"{self.micro_batches}"
        return f"({self.stages} - 1) / ({work} + {self.stages} - 1)"

    def micro_batches_for(self, bubble: float) -> int:
        """The fewest micro-batches with at most this bubble."""
        return math.ceil((self.stages - 1) * (1 - bubble) / bubble / self.chunks - 1e-9)


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
    return Pipeline(
        stages=stages,
        micro_batches=micro,
        chunks=chunks if isinstance(chunks, int) and chunks > 1 else 1,
        micro_batch=run.micro_batch,
        global_batch=run.global_batch,
    )
