"""The 80% interval of a predicted speed."""

from __future__ import annotations

import math

from stepscope.predict.predicted import Z80
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.fitted import WIDER_PER_DOUBLING

EXTRAPOLATED = 1.5
"""Widening of the interval's logarithm outside of what the calibration has seen."""


def reach_at(calibration: StepCalibration, gpus: int) -> tuple[float, float]:
    """Factors on a speed that give its 80% interval; wider with each doubling of GPUs away from the nearest measurement."""
    spread = math.exp(Z80 * calibration.log_sigma)
    low, high = calibration.reach or (1 / spread, spread)
    away = min((abs(math.log2(gpus / n)) for n in calibration.reach_from), default=0.0)
    wide = math.sqrt(1 + WIDER_PER_DOUBLING * away)
    return low**wide, high**wide
