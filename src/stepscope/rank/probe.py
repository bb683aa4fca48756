"""What torch knows about this machine, as one JSON line on stdout: ``python -m stepscope.rank --probe``.

Importing torch and touching CUDA happen inside :func:`main`, so that a broken installation is reported, not raised.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import ExitCode
from stepscope.records.codec import to_builtins
from stepscope.records.environment import TorchFact

if TYPE_CHECKING:
    from types import ModuleType


def main() -> int:
    """Print TorchFact as one line of JSON. Exit code 3 with the reason on stderr when torch cannot be imported."""
    try:
        import torch
        import torch.distributed
    except (ImportError, OSError) as error:  # OSError: a shared library of torch is missing or damaged
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        reason = "torch is not installed" if missing else f"torch is installed but does not import: {error}"
        sys.stderr.write(" ".join(f"{reason} (Python: {sys.executable})".split()) + "\n")
        return ExitCode.ENVIRONMENT
    sys.stdout.write(json.dumps(to_builtins(probe(torch))) + "\n")
    sys.stdout.flush()
    return ExitCode.OK


def probe(torch: ModuleType) -> TorchFact:
    """Return the facts of the imported ``torch``. Initialises CUDA where there is a device: only call it in a process of its
    own."""
    devices, error = _devices_and_reason(torch)
    distributed = torch.distributed.is_available()
    nccl = distributed and torch.distributed.is_nccl_available()
    return TorchFact(
        version=str(torch.__version__),
        cuda_version=torch.version.cuda,
        nccl_version=_nccl_version() if nccl else None,
        hip_version=torch.version.hip,
        gloo=distributed and torch.distributed.is_gloo_available(),
        nccl=nccl,
        cuda_available=bool(devices),
        device_count=len(devices),
        device_names=tuple(device.name for device in devices),
        device_memory_bytes=tuple(int(device.total_memory) for device in devices),
        bf16=_has_bf16(torch, len(devices)),
        cuda_error=error,
        bf16_cpu_native=_bf16_cpu_native(torch),
        device_capabilities=tuple(f"{device.major}.{device.minor}" for device in devices),
        no_peer_access=_no_peer_access(torch, len(devices)),
        intra_op_threads=torch.get_num_threads(),
    )


def _devices_and_reason(torch: ModuleType) -> tuple[list[Any], str | None]:
    """Return (properties of every usable device, why CUDA does not start). A build without CUDA is no error."""
    if torch.version.cuda is None and torch.version.hip is None:
        return [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            available = torch.cuda.is_available()
            count = torch.cuda.device_count()
            if not available:
                return [], str(caught[0].message).splitlines()[0] if caught else None
            torch.cuda.init()
            devices = [torch.cuda.get_device_properties(index) for index in range(count)]
            for index in range(count):
                torch.zeros(
                    1, device=f"cuda:{index}"
                ).item()  # a device in exclusive mode or fallen off the bus fails here
        except (RuntimeError, AssertionError) as error:
            return [], str(error).splitlines()[0]
    return devices, None


def _nccl_version() -> str | None:
    """Return NCCL's version as text; None: this torch has none."""
    from torch.cuda import nccl

    try:
        version: Callable[[], Any] = nccl.version
        number = version()
    except (RuntimeError, AttributeError):  # a build that has the backend and not the binding
        return None
    return ".".join(str(part) for part in number) if isinstance(number, tuple) else str(number)


def _has_bf16(torch: ModuleType, count: int) -> bool:
    """Whether all devices, or the CPU, multiply in bf16."""
    if count:
        return all(_device_has_bf16(torch, index) for index in range(count))
    try:
        product = torch.ones(2, 2, dtype=torch.bfloat16) @ torch.ones(2, 2, dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return bool((product == 2).all())


def _device_has_bf16(torch: ModuleType, index: int) -> bool:
    with torch.cuda.device(index):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _bf16_cpu_native(torch: ModuleType) -> bool | None:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (RuntimeError, AttributeError):  # a build without oneDNN
        return None


def _no_peer_access(torch: ModuleType, count: int) -> tuple[tuple[int, int], ...]:
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    return tuple(pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair))
