"""Checks of the GPUs, one by one."""

from __future__ import annotations

from collections import Counter

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_bytes_binary, format_flops
from stepscope.core.words import counted, listed
from stepscope.machine.judging import Outcome, check, failed, gpu_names, no_gpu_reason, passed, skipped, warned
from stepscope.machine.peaks.lookup import find
from stepscope.records.environment import EnvironmentRecord


@check("gpus", "GPUs visible to torch")
def gpu_visibility(record: EnvironmentRecord) -> Outcome:
    """torch can use the GPUs that the driver lists."""
    torch, present = record.torch, len(record.gpus)
    if torch is None:
        return skipped("torch does not respond")
    if torch.cuda_error is not None and (present or torch.device_count):
        return failed(
            f"CUDA does not start: {torch.cuda_error}",
            fix=f"install a driver that supports CUDA {torch.cuda_version}, or a torch built for the driver's CUDA",
        )
    if not present and not torch.device_count:
        return skipped(no_gpu_reason(record))
    if not present:
        return passed(f"torch sees {counted(torch.device_count, 'GPU')}")
    if not torch.device_count:
        return _none_usable(record, present)
    hidden = present - torch.device_count
    if hidden <= 0:
        return passed(
            f"torch sees all {present}" if hidden == 0 else f"torch sees {counted(torch.device_count, 'device')} (MIG)"
        )
    count_text = f"torch sees {torch.device_count} of {counted(present, 'GPU')}"
    setting = _visible_devices_setting(record)
    if record.scheduler is not None:
        return passed(f"{count_text}: those that {record.scheduler} granted")
    return warned(
        f"{count_text}{f' because {setting}' if setting else ''}",
        fix="unset CUDA_VISIBLE_DEVICES to use them all" if setting else "compare `nvidia-smi -L` with the container's",
    )


def _none_usable(record: EnvironmentRecord, present: int) -> Outcome:
    """Say why torch can use none of the GPUs that are present."""
    assert record.torch is not None
    gpus = counted(present, "GPU")
    setting = _visible_devices_setting(record)
    if record.torch.cuda_version is None and record.torch.hip_version is None:
        return failed(f"{gpus} here, but torch is a CPU build", fix="install the CUDA build of torch (pytorch.org)")
    if setting:
        return warned(f"{setting} hides all {gpus}", fix="unset CUDA_VISIBLE_DEVICES")
    return failed(f"{gpus} here, torch sees none", fix="check `nvidia-smi` and the permissions of /dev/nvidia*")


def _visible_devices_setting(record: EnvironmentRecord) -> str | None:
    value = record.variables.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else f"CUDA_VISIBLE_DEVICES={value!r}"


@check("gpus", "one GPU model")
def gpu_models(record: EnvironmentRecord) -> Outcome:
    """All GPUs of one model: in data-parallel training the slowest one sets the pace."""
    models = Counter(gpu_names(record))
    if not models:
        return skipped(no_gpu_reason(record))
    shown = ", ".join(f"{count} x {name}" for name, count in models.items())
    if len(models) > 1:
        return warned(
            f"mixed models: {shown}; every step waits for the slowest",
            fix="choose GPUs of one model with CUDA_VISIBLE_DEVICES",
        )
    return passed(shown)


@check("gpus", "peak rates known")
def gpu_peak(record: EnvironmentRecord) -> Outcome:
    """The peak rate of each GPU is in the accelerator table; without it MFU is unknown."""
    names = tuple(dict.fromkeys(gpu_names(record)))
    if not names:
        return skipped(no_gpu_reason(record))
    peak_texts: list[str] = []
    for name in names:
        entry = find(name)
        if isinstance(entry, Unavailable):
            return warned(f"{entry.reason}: MFU stays unknown", fix="see `stepscope hardware` for the known ones")
        dtype = "bf16" if "bf16" in entry.peak_flops_per_s else "fp16"
        peak = entry.peak(dtype)
        if not isinstance(peak, Unavailable):
            peak_texts.append(f"{entry.name}: {format_flops(peak)} dense {dtype}")
    return passed("; ".join(peak_texts))


FREE_BYTES = 2 * 2**30  # the driver's own share is up to about 1 GiB
FREE_FRACTION = 0.05


@check("gpus", "GPUs idle")
def gpu_in_use(record: EnvironmentRecord) -> Outcome:
    """Nobody else computes on the GPUs."""
    memory_use = [
        (gpu.index, gpu.memory_used_bytes, gpu.memory_bytes)
        for gpu in record.gpus
        if gpu.memory_used_bytes is not None and gpu.memory_bytes
    ]
    if not memory_use:
        return skipped("the driver does not report it" if record.gpus else no_gpu_reason(record))
    busy = [
        f"GPU {index}: {format_bytes_binary(used)} of {format_bytes_binary(total)}"
        for index, used, total in memory_use
        if used > max(FREE_BYTES, FREE_FRACTION * total)
    ]
    if busy:
        return warned(
            f"memory in use already ({listed(busy)}): timings will suffer",
            fix="stop the other processes (`nvidia-smi` lists them)",
        )
    return passed("memory free on all of them")


@check("gpus", "power limit")
def gpu_power(record: EnvironmentRecord) -> Outcome:
    """GPUs may draw the power they were specified with."""
    limits = [
        (gpu.index, gpu.power_limit_w, gpu.power_limit_default_w)
        for gpu in record.gpus
        if gpu.power_limit_w is not None and gpu.power_limit_default_w is not None
    ]
    if not limits:
        return skipped("the driver does not report it" if record.gpus else no_gpu_reason(record))
    capped = [f"GPU {index}: {limit:.0f} of {full:.0f} W" for index, limit, full in limits if limit < 0.98 * full]
    if capped:
        return warned(
            f"power limit lowered ({listed(capped)}): clocks drop under load",
            fix="ask the administrator, or run as root: nvidia-smi -pl WATTS",
        )
    return passed(listed(dict.fromkeys(f"{limit:.0f} W" for _, limit, _ in limits)))


@check("gpus", "whole GPUs")
def mig(record: EnvironmentRecord) -> Outcome:
    """GPUs are whole: ranks on MIG slices cannot use NCCL between slices of one GPU."""
    if not record.gpus:
        return skipped(no_gpu_reason(record))
    split = [f"GPU {gpu.index}" for gpu in record.gpus if gpu.mig]
    if split:
        return warned(
            f"split into MIG slices: {listed(split)}; peaks in the accelerator table are those of a whole GPU",
            fix="use GPUs without MIG for multi-rank training",
        )
    return passed("no MIG slices")


@check("gpus", "PCIe lanes")
def pcie_width(record: EnvironmentRecord) -> Outcome:
    """Every GPU has all its PCIe lanes; a badly seated card or a shared slot runs with fewer."""
    widths = [
        (gpu.index, gpu.pcie_width, gpu.pcie_width_max) for gpu in record.gpus if gpu.pcie_width and gpu.pcie_width_max
    ]
    if not widths:
        return skipped("the driver does not report it" if record.gpus else no_gpu_reason(record))
    narrow = [f"GPU {index}: x{width} of x{full}" for index, width, full in widths if width < full]
    if narrow:
        return warned(
            f"fewer PCIe lanes than possible ({listed(narrow)})",
            fix="check the slot, the riser and the BIOS's lane settings",
        )
    return passed(listed(dict.fromkeys(f"x{width}" for _, width, _ in widths)))
