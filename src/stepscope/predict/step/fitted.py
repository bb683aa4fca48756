"""Constants fitted on half of the published training runs; ``python -m benchmarks.fit_step FOLDER`` prints them anew.

docs/reference/validation.md says how they were fitted and what they reach on the rows they have not seen.
"""

from __future__ import annotations

from stepscope.predict.step.calibration import StepCalibration

PUBLISHED = StepCalibration(
    name="published training runs",
    activation_factor=1.07,
    gradient_factor=1.3,
    fragmentation=1.0,
    base_bytes=1.5e9,
)

FAMILY_FACTOR: dict[str, float] = {}
"""On the time of a step, by :func:`gpu_family`."""

REACH: dict[str, tuple[float, float]] = {}
"""Factors on a predicted speed that give its 80% interval, by what is known: quantiles of
rows that nothing was fitted on."""

WIDER_PER_DOUBLING = 0.25
"""Variance that each doubling of GPUs away from the calibrating run adds, of the interval's own."""

MEMORY_LIMIT = 0.95
"""Share of a GPU's memory above which a layout is said not to fit."""


def gpu_family(key: str) -> str:
    """``h100`` of ``h100-sxm``."""
    return key.split("-")[0]
