"""The step model's constants for one GPU and model, as shipped and as measurements correct them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.errors import Unavailable, UsageError
from stepscope.machine.peaks import Accelerator, find
from stepscope.predict.collectives.choose import predict_collective
from stepscope.predict.step.calibration import FAMILY_FACTOR, PUBLISHED, REACH, Range, StepCalibration, gpu_family
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.step import StepPrediction
from stepscope.records.calibration import Calibration, StepFit, StepPart

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
    """Return the calibration fitted on published training runs, with the factor of the GPU's family where it has one. Its
    interval is that of code which nothing was fitted on: nobody has said what will run."""
    return replace(
        PUBLISHED,
        factor=FAMILY_FACTOR.get(gpu_family(gpu.key), 1.0),
        range=SEEN,
        reach=_measured_reach("unseen", model),
    )


def calibrated(c: StepCalibration, measured: Calibration, gpu: Accelerator) -> StepCalibration:
    """Return ``c`` with what ``measured`` says of ``gpu``. Raises UsageError where that is nothing."""
    fit = next((fit for fit in measured.steps if fit.accelerator == gpu.key), None)
    if fit is None:
        accelerators = ", ".join(fit.accelerator for fit in measured.steps)
        raise UsageError(
            f"the calibration of {measured.run} has no steps on {gpu.key}",
            why=f"it has those of {accelerators}"
            if accelerators
            else "it has collectives alone, of no GPU that is in the table",
            fix="`stepscope calibrate ROWS.csv` makes one from measured runs",
        )
    changes = {part.name: getattr(c, part.name) * part.value for part in fit.parts}
    seen = c.range and replace(c.range, accelerators=(*c.range.accelerators, gpu.key))
    parts_text = ", ".join(f"{part.name} x{part.value:.2f}" for part in fit.parts)
    return replace(
        c,
        **changes,
        reach=c.reach if fit.low is None or fit.high is None else (fit.low, fit.high),
        reach_from=fit.gpus,
        range=seen if fit.gpus else c.range,
        name=f"{c.name}, {parts_text} from {measured.run}",
    )


def corrected(
    calibration: StepCalibration, predicted: Mapping[int, StepPrediction], measured: Mapping[int, float]
) -> StepCalibration:
    """Add the factor that brings ``predicted`` to ``measured`` tokens per second of the whole job, both by GPUs.

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
        reach=_measured_reach("scale-out", model) or calibration.reach,
        reach_from=tuple(measured),
        name=f"{calibration.name}, times {factor:.2f} from what was measured",
    )


def _measured_reach(kind: str, model: ModelShape) -> tuple[float, float] | None:
    return REACH.get(f"{kind} moe" if model.experts else kind) or REACH.get(kind)


LARGE = 16 * 2**20
"""Bytes from which on a collective's rate decides, not its latency."""
PLAUSIBLE = (0.1, 1.5)
"""Measured rate over that of the specification; beyond, something else was measured."""
_PRECISIONS = (("bfloat16", "bf16"), ("float16", "fp16"))


def fit_machine(calibration: Calibration) -> tuple[tuple[StepFit, ...], tuple[str, ...]]:
    """Fit a run on GPUs of one kind that the table knows, with a part for each kind of measurement in it; return what could
    not be used, too. A run on CPUs gives nothing: the step model is of GPUs."""
    names = sorted(set(calibration.machine.gpus))
    if not names:
        return (), ()
    gpu = find(names[0])
    if isinstance(gpu, Unavailable) or len(names) > 1:
        why = gpu.reason if isinstance(gpu, Unavailable) else f"GPUs of several kinds: {', '.join(names)}"
        return (), (f"nothing for the step model: {why}",)
    parts, skipped = [], []
    for name, logs in (
        ("gemm_share", _product_ratios(calibration, gpu)),
        ("comm_rate", _collective_ratios(calibration, gpu)),
    ):
        ratios = list(logs)
        if not ratios:
            continue
        middle = statistics.median(ratios)
        if not PLAUSIBLE[0] <= middle <= PLAUSIBLE[1]:
            skipped.append(f"{name}: measured at {middle:.2g} of the specification's rate, which cannot be")
            continue
        before = statistics.fmean(abs(1 / ratio - 1) for ratio in ratios)
        off = statistics.fmean(abs(middle / ratio - 1) for ratio in ratios)
        parts.append(
            StepPart(name=name, value=middle, samples=len(ratios), error_before=before, error=off, left_out_error=None)
        )
    if not parts:
        return (), tuple(skipped)
    return (StepFit(accelerator=gpu.key, gpus=(), parts=tuple(parts), low=None, high=None),), tuple(skipped)


def _product_ratios(calibration: Calibration, gpu: Accelerator) -> Iterator[float]:
    """Yield the best product in each 2-byte type, over what this GPU's best ones reach."""
    for dtype, precision in _PRECISIONS:
        rates = [one.flops_per_s for one in calibration.matmul if one.dtype in (dtype, precision)]
        peak = gpu.peak(precision)
        if rates and not isinstance(peak, Unavailable):
            yield max(rates) / (peak * gpu.reached)


def _collective_ratios(calibration: Calibration, gpu: Accelerator) -> Iterator[float]:
    """Yield predicted over measured time of each large size."""
    for fit in calibration.fits:
        if fit.device != "cuda" or fit.network is not None:
            continue
        per_node = int(fit.placement.split("+")[0]) if fit.placement.replace("+", "").isdecimal() else None
        for error in fit.errors:
            if error.size_bytes < LARGE:
                continue
            try:
                predicted = predict_collective(
                    fit.op, error.size_bytes, n_gpus=fit.world_size, gpu=gpu, gpus_per_node=per_node, dtype=fit.dtype
                )
            except UsageError:
                continue
            yield predicted.time_ns / error.measured_ns
