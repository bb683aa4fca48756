"""torch can use the GPUs that the driver lists."""

from __future__ import annotations

from stepscope.core.words import counted
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    failed,
    no_gpu_reason,
    passed,
    skipped,
    warned,
)
from stepscope.records.environment import EnvironmentRecord


def run(record: EnvironmentRecord) -> Outcome:
    torch, present = record.torch, len(record.gpus)
    if torch is None:
        return skipped("torch does not answer")
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
    found = f"torch sees {torch.device_count} of {counted(present, 'GPU')}"
    setting = _setting(record)
    if record.scheduler is not None:
        return passed(f"{found}: those that {record.scheduler} granted")
    return warned(
        f"{found}{f' because {setting}' if setting else ''}",
        fix="unset CUDA_VISIBLE_DEVICES to use them all" if setting else "compare `nvidia-smi -L` with the container's",
    )


def _none_usable(record: EnvironmentRecord, present: int) -> Outcome:
    assert record.torch is not None
    gpus = counted(present, "GPU")
    setting = _setting(record)
    if record.torch.cuda_version is None and record.torch.hip_version is None:
        return failed(f"{gpus} here, but torch is a CPU build", fix="install the CUDA build of torch (pytorch.org)")
    if setting:
        return warned(f"{setting} hides all {gpus}", fix="unset CUDA_VISIBLE_DEVICES")
    return failed(f"{gpus} here, torch sees none", fix="check `nvidia-smi` and the rights of /dev/nvidia*")


def _setting(record: EnvironmentRecord) -> str | None:
    value = record.variables.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else f"CUDA_VISIBLE_DEVICES={value!r}"


CHECK = Check(section="gpus", title="GPUs visible to torch", run=run, order=0)
