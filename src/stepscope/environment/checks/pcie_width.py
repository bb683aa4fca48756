"""Every GPU has all its PCIe lanes; a badly seated card or a shared slot runs with fewer."""

from __future__ import annotations

from stepscope.environment.checks._common import (
    Check,
    Outcome,
    listed,
    no_gpu_reason,
    passed,
    skipped,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    known = [
        (gpu.index, gpu.pcie_width, gpu.pcie_width_max) for gpu in record.gpus if gpu.pcie_width and gpu.pcie_width_max
    ]
    if not known:
        return skipped("the driver does not tell" if record.gpus else no_gpu_reason(record))
    narrow = [f"GPU {index}: x{width} of x{full}" for index, width, full in known if width < full]
    if narrow:
        return warned(
            f"fewer PCIe lanes than possible ({listed(narrow)})",
            fix="check the slot, the riser and the BIOS's lane settings",
        )
    return passed(listed(dict.fromkeys(f"x{width}" for _, width, _ in known)))


CHECK = Check(section="gpus", title="PCIe lanes", run=run)
