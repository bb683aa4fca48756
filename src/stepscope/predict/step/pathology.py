"""Layouts that waste a large part of the step, and why."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.units import format_percent
from stepscope.predict.step.step import StepPrediction

SYNC, ACROSS, LAUNCHES = "sync per micro-batch", "TP across nodes", "launch-bound"

MUCH_SLOWER = 0.5
"""Speed over that of a better layout below which ``cause_of`` names a cause."""

LAUNCH, BUBBLE, GRADIENTS, TENSOR = 0.1, 0.2, 0.25, 0.2
"""Shares of the step from which on a part is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """cause; share: of the step; advice: what to change."""

    cause: str
    share: float
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}, {format_percent(self.share)} of the step: {self.advice}"


def warnings_of(prediction: StepPrediction) -> tuple[Warned, ...]:
    """Largest share first."""
    layout, budget, step = prediction.layout, prediction.budget, prediction.step_s
    found: list[Warned] = []

    def warn(cause: str, seconds: float, least: float, advice: str) -> None:
        if seconds >= least * step:
            found.append(Warned(cause=cause, share=seconds / step, advice=advice))

    if layout.syncs_each and layout.zero < 2 and layout.micro_batches > 1:
        warn(SYNC, budget.dp, 0.05, "reduce gradients once a step (no_sync, or zero=1)")
    else:
        warn("exposed gradients", budget.dp, GRADIENTS, "a larger batch per rank, or fewer data-parallel ranks")
    warn(LAUNCHES, budget.launch, LAUNCH, "a larger micro-batch, less tensor parallelism, or CUDA graphs")
    if layout.tp > prediction.cluster.domain:
        warn(ACROSS, budget.tp, TENSOR, f"keep tp at {prediction.cluster.domain} or below")
    advice = "more micro-batches, interleaving (vpp), or fewer stages"
    warn("bubble", budget.bubble, BUBBLE, advice)
    return tuple(sorted(found, key=lambda w: -w.share))


def cause_of(prediction: StepPrediction, better: StepPrediction) -> str | None:
    """What takes most time of a token above ``better``'s, in the words of the warnings, else the part of the step; a mistake
    that is worth a warning and costs nothing to correct comes first. None: the layout is not much slower than ``better``."""
    if prediction.tokens_per_s_per_gpu >= MUCH_SLOWER * better.tokens_per_s_per_gpu:
        return None
    if any(warned.cause == SYNC for warned in warnings_of(prediction)):
        return SYNC
    layout = prediction.layout
    each, other = (1 / p.layout.tokens_per_step * p.layout.gpus for p in (prediction, better))
    more = {name: value * each - better.budget.parts[name] * other for name, value in prediction.budget.parts.items()}
    part = max(more, key=lambda name: more[name])
    if part == "tp" and layout.tp > prediction.cluster.domain:
        return ACROSS
    return {"launch": LAUNCHES, "compute": LAUNCHES, "tp": "TP traffic", "dp": "gradient traffic"}.get(part, part)
