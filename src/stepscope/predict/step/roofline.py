"""What one kernel takes on a GPU, s: FLOP / rate + bytes / rate + its least time."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable, UsageError
from stepscope.machine.peaks import Accelerator
from stepscope.predict.step.calibration import StepCalibration


@dataclass(frozen=True, slots=True)
class Roofline:
    """A GPU, and the shares of its specification that kernels reach. precision: of the hardware table."""

    gpu: Accelerator
    calibration: StepCalibration

    @property
    def least(self) -> float:
        """Return the least time of a kernel."""
        return self.calibration.kernel_us / 1e6

    def specified(self, precision: str) -> float:
        """FLOP/s by specification. Raises UsageError where the GPU has no such rate."""
        peak = self.gpu.peak(precision)
        if isinstance(peak, Unavailable):
            raise UsageError(peak.reason)
        return peak

    def peak(self, precision: str) -> float:
        """FLOP/s reached by large products."""
        c = self.calibration
        share = c.gemm_fp8_share if precision == "fp8" else c.gemm_share
        return self.specified(precision) * self.gpu.reached * share

    def moved(self, size_bytes: float) -> float:
        """Seconds to read or write so many bytes of device memory."""
        return size_bytes / (self.gpu.memory_bytes_per_s * self.calibration.memory_share)

    def optimized(self, size_bytes: float) -> float:
        """Likewise in the optimizer."""
        return size_bytes / (self.gpu.memory_bytes_per_s * self.calibration.optimizer_share)

    def product(self, flop: float, size_bytes: float, precision: str) -> float:
        """One matrix product; size_bytes: of its operands and its result."""
        moved = self.moved(size_bytes * self.calibration.gemm_traffic)
        return flop / self.peak(precision) + moved + self.least

    def attention(self, flop: float, precision: str, *, backward: bool = False) -> float:
        """Fused attention, its least time left out."""
        c = self.calibration
        return flop / (self.specified(precision) * (c.attention_backward_share if backward else c.attention_share))
