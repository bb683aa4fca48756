"""What the NVIDIA driver knows of the GPUs (NVML, without initialising CUDA), and the text of ``nvidia-smi topo -m``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from stepscope.core.errors import Unavailable
from stepscope.core.processes import ask
from stepscope.machine.probes._common import Facts, ProbeContext, probe
from stepscope.records.environment import GpuFact


@probe("NVIDIA GPUs, driver, memory, PCIe and power limits (NVML)")
def gpus(context: ProbeContext) -> Facts | Unavailable:  # noqa: ARG001
    """One GpuFact per GPU of the machine, whatever CUDA_VISIBLE_DEVICES says."""
    try:
        import pynvml
    except ImportError as error:
        return Unavailable(f"the package nvidia-ml-py cannot be imported: {error}")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Unavailable(_no_driver(pynvml, error))
    try:
        return _all_gpus(pynvml)
    except pynvml.NVMLError as error:
        return Unavailable(f"the NVIDIA driver answers with an error: {error}")
    finally:
        pynvml.nvmlShutdown()


def _no_driver(nvml: Any, error: Exception) -> str:
    """Say why the driver does not answer."""
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver library (libnvidia-ml.so) on this machine"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the NVIDIA driver library is here but its kernel module is not loaded"
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return "no permission to use the NVIDIA driver: check the permissions of /dev/nvidia*"
    if code == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", object()):
        return "driver library and kernel module have different versions: reboot after the driver update"
    return f"the NVIDIA driver does not start: {error}"


def _all_gpus(nvml: Any) -> Facts:
    """Return all GPUs; those that may not be read are noted."""
    driver = _decoded_answer(_answer_or_none(nvml, nvml.nvmlSystemGetDriverVersion))
    gpus: list[GpuFact] = []
    closed: dict[str, Unavailable] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(_gpu_fact(nvml, handle, index, driver))
        except nvml.NVMLError as error:
            closed[f"gpu {index}"] = Unavailable(f"the driver lists it and cannot open it: {error}")
    return {"gpus": tuple(gpus), **closed}


def _gpu_fact(nvml: Any, handle: Any, index: int, driver: str | None) -> GpuFact:
    """Return what the driver says of one GPU; None for each fact that it does not have."""

    def ask(function: str, *arguments: Any) -> Any:
        return _answer_or_none(nvml, getattr(nvml, function), handle, *arguments)

    memory = ask("nvmlDeviceGetMemoryInfo")
    capability = ask("nvmlDeviceGetCudaComputeCapability")
    mig = ask("nvmlDeviceGetMigMode")
    return GpuFact(
        index=index,
        name=_decoded_answer(nvml.nvmlDeviceGetName(handle)) or "",
        uuid=_decoded_answer(ask("nvmlDeviceGetUUID")),
        memory_bytes=int(memory.total) if memory else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        driver_version=driver,
        memory_used_bytes=int(memory.used) if memory else None,
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        power_limit_w=_as_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        power_limit_default_w=_as_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        mig=bool(mig[0]) if mig else None,
    )


def _answer_or_none(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the answer, or None where this GPU or driver does not have it."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        absent = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION)
        if getattr(error, "value", None) in absent:
            return None
        raise


def _decoded_answer(value: Any) -> str | None:
    """Decode an answer, which nvidia-ml-py before 12 gives in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _as_watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


@probe("links between GPUs and NICs (nvidia-smi topo -m)")
def topology(context: ProbeContext) -> Facts | Unavailable:
    """The raw text; a driver in trouble makes nvidia-smi hang, so it is killed after ``command_timeout_s``."""
    program = shutil.which("nvidia-smi", path=context.environ.get("PATH"))
    if program is None:
        return Unavailable("nvidia-smi is not on PATH")
    environ = {**context.environ, "LC_ALL": "C"}
    try:
        answer = ask([program, "topo", "-m"], environ=environ, timeout_s=context.command_timeout_s)
    except OSError as error:
        return Unavailable(f"{program} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Unavailable(f"`nvidia-smi topo -m` did not answer within {context.command_timeout_s:g} s")
    if answer.returncode != 0:
        message = (answer.stderr.strip() or answer.stdout.strip() or "no message").splitlines()[-1]
        return Unavailable(f"`nvidia-smi topo -m` failed with exit code {answer.returncode}: {message}")
    if not answer.stdout.strip():
        return Unavailable("`nvidia-smi topo -m` printed nothing")
    return {"topology": answer.stdout}
