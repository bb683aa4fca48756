"""MFU of a training run: model FLOP per step / (step time x ranks x dense peak of the precision) (METRICS: Utilisation)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.errors import Unavailable

if TYPE_CHECKING:
    from stepscope.records.training import TrainingRun

CONVENTION = "model FLOP (3 x forward, 2 a multiply-add) / (step time x ranks x dense peak of the type in use)"

_TYPES = {"fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "amp_bf16": "bf16", "amp_fp16": "fp16"}
"""Precision of a cell -> type in which it multiplies."""


def mfu(run: TrainingRun) -> float | Unavailable:
    """Of the median step; why it is unknown where FLOP, step time or peak are. Above 1 it is an error of one of them."""
    if run.mfu is not None:
        return run.mfu
    if run.model_flop is None or run.step_ns is None or not run.world_size:
        return Unavailable("the model's FLOP, the ranks or the step time are unknown")
    if run.hardware is None:
        return Unavailable("the device has no name")
    from stepscope.machine.peaks.lookup import find

    found = find(run.hardware)
    if isinstance(found, Unavailable):
        return Unavailable(f"peak unknown: {found.reason}")
    peak = found.peak(_TYPES.get(run.precision or "", run.precision or "unknown"))
    if isinstance(peak, Unavailable):
        return Unavailable(f"peak unknown: {peak.reason}")
    return run.model_flop / (run.step_ns.value / 1e9 * run.world_size * peak)
