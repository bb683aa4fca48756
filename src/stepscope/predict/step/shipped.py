"""The constants that come with stepscope, for one GPU and model, and as a measured step of the user's corrects them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError
from stepscope.machine.peaks import Accelerator
from stepscope.predict.step.calibration import Range, StepCalibration
from stepscope.predict.step.fitted import FAMILY_FACTOR, PUBLISHED, REACH, gpu_family
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.step import StepPrediction

if TYPE_CHECKING:
    from stepscope.records.calibration import Calibration

SEEN = Range(
    gpus=(8, 2048),
    params=(120_000_000, 700_000_000_000),
    accelerators=("a100-sxm4-40gb", "a100-sxm4-80gb", "a800-sxm4-80gb", "h100-sxm", "gb200", "gb300"),
)
"""Of the published training runs, where there are more than a few."""
MOST_MFU = 0.95
"""No training step reaches more of the peak."""
MOST_OFF = 5.0
"""Measured over predicted speed, either way, that no slow machine explains: another job than the one described."""


def shipped(gpu: Accelerator, model: ModelShape) -> StepCalibration:
    """Fitted on published training runs, with the factor of the GPU's family where it has one. Its interval is that of code
    which nothing was fitted on: nobody has said what will run."""
    return replace(
        PUBLISHED,
        factor=FAMILY_FACTOR.get(gpu_family(gpu.key), 1.0),
        range=SEEN,
        reach=_reach("unseen", model),
    )


def calibrated(c: StepCalibration, measured: Calibration, gpu: Accelerator) -> StepCalibration:
    """``c`` with what ``measured`` says of ``gpu``. Raises UsageError where that is nothing."""
    fit = next((fit for fit in measured.steps if fit.accelerator == gpu.key), None)
    if fit is None:
        known = ", ".join(fit.accelerator for fit in measured.steps)
        raise UsageError(
            f"the calibration of {measured.run} has no steps on {gpu.key}",
            why=f"it has those of {known}" if known else "it has collectives alone, of no GPU that is in the table",
            fix="`stepscope calibrate ROWS.csv` makes one from measured runs",
        )
    changes = {part.name: getattr(c, part.name) * part.value for part in fit.parts}
    seen = c.range and replace(c.range, accelerators=(*c.range.accelerators, gpu.key))
    told = ", ".join(f"{part.name} x{part.value:.2f}" for part in fit.parts)
    return replace(
        c,
        **changes,
        reach=c.reach if fit.low is None or fit.high is None else (fit.low, fit.high),
        reach_from=fit.gpus,
        range=seen if fit.gpus else c.range,
        name=f"{c.name}, {told} from {measured.run}",
    )


def corrected(
    calibration: StepCalibration, predicted: Mapping[int, StepPrediction], measured: Mapping[int, float]
) -> StepCalibration:
    """With the factor that brings ``predicted`` to ``measured`` tokens per second of the whole job, both by GPUs.

    Raises UsageError for a speed above the GPU's peak, or far from any that this job can have.
    """
    ratios = []
    for gpus, speed in measured.items():
        p = predicted[gpus]
        ratios.append(speed / p.tokens_per_s)
        mfu = p.mfu["causal"] * ratios[-1]
        if mfu > MOST_MFU:
            raise UsageError(
                f"{speed:,.0f} tokens/s on {gpus} GPUs cannot be",
                why=f"it is {mfu:.0%} of the peak of {p.layout.precision} (6 N + 6 L d s)",
                fix="give tokens of the whole job per second: not samples, not steps, and the GPUs they ran on",
            )
        if not 1 / MOST_OFF <= ratios[-1] <= MOST_OFF:
            raise UsageError(
                f"{speed:,.0f} tokens/s on {gpus} GPUs is {ratios[-1]:.2g} times the predicted {p.tokens_per_s:,.0f}",
                why="that is further off than any machine; another model, layout, or unit was measured",
            )
    model = next(iter(predicted.values())).model
    factor = math.exp(-sum(math.log(ratio) for ratio in ratios) / len(ratios))
    return replace(
        calibration,
        factor=calibration.factor * factor,
        reach=_reach("scale-out", model) or calibration.reach,
        reach_from=tuple(measured),
        name=f"{calibration.name}, times {factor:.2f} from what was measured",
    )


def _reach(kind: str, model: ModelShape) -> tuple[float, float] | None:
    return REACH.get(f"{kind} moe" if model.experts else kind) or REACH.get(kind)
