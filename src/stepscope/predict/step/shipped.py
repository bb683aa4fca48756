"""The constants that come with stepscope, for one GPU."""

from __future__ import annotations

from dataclasses import replace

from stepscope.hardware import Accelerator
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.fitted import FAMILY_FACTOR, PUBLISHED, gpu_family


def shipped(gpu: Accelerator) -> StepCalibration:
    """Fitted on published training runs, with the factor of the GPU's family where it has one."""
    return replace(PUBLISHED, factor=FAMILY_FACTOR.get(gpu_family(gpu.key), 1.0))
