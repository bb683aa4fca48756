"""Layouts that waste a large part of the step, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepscope.core.units import format_percent
from stepscope.predict.step.step import StepPrediction

Cause = Literal["sync per micro-batch", "launch-bound", "TP across nodes", "bubble", "exposed gradients"]

LAUNCH, BUBBLE, GRADIENTS, TENSOR = 0.1, 0.2, 0.25, 0.2
"""Shares of the step from which on a part is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """cause; share: of the step; advice: what to change."""

    cause: Cause
    share: float
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}, {format_percent(self.share)} of the step: {self.advice}"


def warnings_of(prediction: StepPrediction) -> tuple[Warned, ...]:
    """Largest share first."""
    layout, budget, step = prediction.layout, prediction.budget, prediction.step_s
    found: list[Warned] = []

    def warn(cause: Cause, seconds: float, least: float, advice: str) -> None:
        if seconds >= least * step:
            found.append(Warned(cause=cause, share=seconds / step, advice=advice))

    if layout.syncs_each and layout.zero < 2 and layout.micro_batches > 1:
        warn("sync per micro-batch", budget.dp, 0.05, "reduce gradients once a step (no_sync, or zero=1)")
    else:
        warn("exposed gradients", budget.dp, GRADIENTS, "a larger batch per rank, or fewer data-parallel ranks")
    warn("launch-bound", budget.launch, LAUNCH, "a larger micro-batch, less tensor parallelism, or CUDA graphs")
    if layout.tp > prediction.cluster.domain:
        warn("TP across nodes", budget.tp, TENSOR, f"keep tp at {prediction.cluster.domain} or below")
    advice = "more micro-batches, interleaving (vpp), or fewer stages"
    warn("bubble", budget.bubble, BUBBLE, advice)
    return tuple(sorted(found, key=lambda w: -w.share))
