"""Peak memory of this process: the CUDA allocator's on GPU, the resident set's high-water mark on CPU."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

from stepscope.core.errors import Unavailable

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes, and where the number comes from."""

    size_bytes: int
    source: str


class PeakTracker:
    """The highest peak over the stretches that count: evaluation between epochs, say, does not.

    ``start`` and ``pause`` enclose a stretch; ``unavailable`` holds why the peak covers more than it should.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.unavailable: Unavailable | None = None
        self.peak: PeakMemory | Unavailable = Unavailable("nothing ran")

    def start(self) -> None:
        self.unavailable = reset_peak(self._device) or self.unavailable

    def pause(self) -> None:
        found = read_peak(self._device)
        if (
            isinstance(found, Unavailable)
            or isinstance(self.peak, Unavailable)
            or found.size_bytes > self.peak.size_bytes
        ):
            self.peak = found


def reset_peak(device: torch.device) -> Unavailable | None:
    """Start a new peak; Unavailable when this system cannot (then the peak covers the whole process)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return None
    try:
        _CLEAR_REFS.write_text("5")  # Linux: resets VmHWM to the current resident set
    except OSError as error:
        return Unavailable(f"{_CLEAR_REFS}: {error.strerror}")
    return None


def read_peak(device: torch.device) -> PeakMemory | Unavailable:
    if device.type == "cuda":
        return PeakMemory(int(torch.cuda.max_memory_allocated(device)), "cuda max_memory_allocated")
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError as error:
        return Unavailable(f"{_STATUS}: {error.strerror}")
    for line in lines:
        if line.startswith("VmHWM:"):
            return PeakMemory(int(line.split()[1]) * 1024, "VmHWM")
    return Unavailable(f"{_STATUS} has no VmHWM line")
