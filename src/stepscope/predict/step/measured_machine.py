"""What a comm run on GPUs says of the step model: its matrix products and its collectives against the specification's."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from stepscope.core.errors import Unavailable, UsageError
from stepscope.machine.peaks import Accelerator, find
from stepscope.predict.collectives.choose import predict_collective
from stepscope.predict.step.kernels import reached
from stepscope.records.calibration import Calibration, StepFit, StepPart

LARGE = 16 * 2**20
"""Bytes from which on a collective's rate decides, not its latency."""
PLAUSIBLE = (0.1, 1.5)
"""Measured rate over that of the specification; beyond, something else was measured."""
_PRECISIONS = (("bfloat16", "bf16"), ("float16", "fp16"))


def fit_machine(calibration: Calibration) -> tuple[tuple[StepFit, ...], tuple[str, ...]]:
    """A fit where the run was on GPUs of one kind that the table knows, with a part for each kind of measurement in it; and
    what could not be used. Nothing of a run on CPUs: the step model is of GPUs."""
    names = sorted(set(calibration.machine.gpus))
    if not names:
        return (), ()
    gpu = find(names[0])
    if isinstance(gpu, Unavailable) or len(names) > 1:
        why = gpu.reason if isinstance(gpu, Unavailable) else f"GPUs of several kinds: {', '.join(names)}"
        return (), (f"nothing for the step model: {why}",)
    parts, skipped = [], []
    for name, logs in (("gemm_share", _products(calibration, gpu)), ("comm_rate", _collectives(calibration, gpu))):
        ratios = list(logs)
        if not ratios:
            continue
        middle = statistics.median(ratios)
        if not PLAUSIBLE[0] <= middle <= PLAUSIBLE[1]:
            skipped.append(f"{name}: measured at {middle:.2g} of the specification's rate, which cannot be")
            continue
        off = statistics.fmean(abs(middle / each - 1) for each in ratios)
        parts.append(
            StepPart(
                name=name, value=middle, samples=len(ratios), error_before=_off(ratios), error=off, left_out_error=None
            )
        )
    if not parts:
        return (), tuple(skipped)
    return (StepFit(accelerator=gpu.key, gpus=(), parts=tuple(parts), low=None, high=None),), tuple(skipped)


def _off(ratios: Sequence[float]) -> float:
    return statistics.fmean(abs(1 / each - 1) for each in ratios)


def _products(calibration: Calibration, gpu: Accelerator) -> Iterator[float]:
    """The best product in each 2-byte type, over what this GPU's best ones reach."""
    for dtype, precision in _PRECISIONS:
        rates = [one.flops_per_s for one in calibration.matmul if one.dtype in (dtype, precision)]
        peak = gpu.peak(precision)
        if rates and not isinstance(peak, Unavailable):
            yield max(rates) / (peak * reached(gpu))


def _collectives(calibration: Calibration, gpu: Accelerator) -> Iterator[float]:
    """Predicted over measured time of each large size."""
    for fit in calibration.fits:
        if fit.device != "cuda" or fit.network is not None:
            continue
        per_node = int(fit.placement.split("+")[0]) if fit.placement.replace("+", "").isdecimal() else None
        for error in fit.errors:
            if error.size_bytes < LARGE:
                continue
            try:
                told = predict_collective(
                    fit.op, error.size_bytes, n_gpus=fit.world_size, gpu=gpu, gpus_per_node=per_node, dtype=fit.dtype
                )
            except UsageError:
                continue
            yield told.time_ns / error.measured_ns
