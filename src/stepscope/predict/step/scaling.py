"""The same job on several numbers of GPUs: its scaling curve and where it bends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.core.errors import UsageError
from stepscope.predict.step.step import StepPrediction

KNEE = 0.8
"""Efficiency against the smallest number of GPUs below which adding GPUs is no longer good (METRICS, Scaling)."""

MOST_DOUBLINGS = 6


def efficiency(prediction: StepPrediction, base: StepPrediction) -> float:
    """Tokens per second and GPU over those of ``base``."""
    return prediction.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu


def speedup(after: StepPrediction, before: StepPrediction) -> float:
    """Tokens per second of the whole job over those of ``before``."""
    return after.tokens_per_s / before.tokens_per_s


def knee(base: StepPrediction, at: Callable[[int], StepPrediction]) -> int | None:
    """The largest number of GPUs, doubling from that of ``base``, up to which efficiency stays above :data:`KNEE`; None:
    it stays above in all doublings looked at, or until the batch cannot be split any further."""
    gpus = base.layout.gpus
    for _ in range(MOST_DOUBLINGS):
        try:
            if efficiency(at(2 * gpus), base) < KNEE:
                return gpus
        except UsageError:
            return None
        gpus *= 2
    return None


def base_of(predictions: Sequence[StepPrediction]) -> StepPrediction:
    """The one on fewest GPUs."""
    return min(predictions, key=lambda p: p.layout.gpus)
