"""Which matrix units a traced GPU has, from its name or, where that is unknown, from the names of its kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope.core.errors import Unavailable
from stepscope.machine.peaks.lookup import find

_TF32_NAMES = re.compile(
    r"\b(A(2|10|16|30|40|100|800)|L(4|20|40)S?|H(20|100|200|800)|GH200|GB?(200|300)|B(100|200|300)|RTX (30|40|50)\d\d"
    r"|RTX A\d000|RTX \d000 Ada)\b"
)
"""NVIDIA Ampere and later, as torch and NVML name them: their tensor cores take TF32 (NVIDIA Ampere whitepaper, 2020)."""

_TENSOR_NAMES = re.compile(r"\b(V100S?|TITAN V|T4|RTX 20\d\d|Quadro RTX \d000|TITAN RTX)\b|MI(100|2\d\dX?|3\d\dX?)\b")
"""Volta and Turing, and AMD's parts with matrix cores."""

MATRIX_RATIO = 4
"""FP16 at this many times the FP32 peak or more is done by matrix units: 8 on V100 and MI100, 4 on GeForce 20; 2 on a P100,
whose vector units do both."""

_TF32_KERNELS = re.compile(r"ampere|hopper|blackwell|sm(80|86|89|90|100|120)|cutlass_(80|90|100)|nvjet", re.IGNORECASE)
_TENSOR_KERNELS = re.compile(r"volta|turing|sm7\d|cutlass_7\d|_MI\d+x\d+", re.IGNORECASE)


def has_tf32(device_name: str | None, kernels: Iterable[str]) -> bool | None:
    """Whether FP32 products may run on its tensor cores as TF32; None where nothing tells. AMD parts: False.

    cuBLAS names kernels after the oldest GPU that they are made for: ``ampere_sgemm`` proves TF32, ``volta_sgemm`` nothing.
    """
    if device_name is not None:
        entry = find(device_name)
        if not isinstance(entry, Unavailable):
            return entry.vendor == "NVIDIA" and not isinstance(entry.peak("tf32"), Unavailable)
        if _TF32_NAMES.search(device_name):
            return True
        if _TENSOR_NAMES.search(device_name):
            return False
    return True if any(_TF32_KERNELS.search(name) for name in kernels) else None


def has_matrix_units(device_name: str | None, kernels: Iterable[str]) -> bool | None:
    """Whether it has tensor cores (AMD: matrix cores); None where nothing tells."""
    if device_name is not None:
        entry = find(device_name)
        if not isinstance(entry, Unavailable):
            half = entry.peak_flops_per_s.get("fp16", 0.0)
            return "tf32" in entry.peak_flops_per_s or half >= MATRIX_RATIO * entry.peak_flops_per_s["fp32"]
        if _TF32_NAMES.search(device_name) or _TENSOR_NAMES.search(device_name):
            return True
    known = any(_TF32_KERNELS.search(name) or _TENSOR_KERNELS.search(name) for name in kernels)
    return True if known else None


def peak_ratio(device_name: str | None, slow: str, fast: str) -> float | None:
    """Peak of one dtype over another's on this device, such as fp32 over tf32: 0.125 on an A100. None: unknown."""
    if device_name is None:
        return None
    entry = find(device_name)
    if isinstance(entry, Unavailable):
        return None
    low, high = entry.peak(slow), entry.peak(fast)
    return None if isinstance(low, Unavailable) or isinstance(high, Unavailable) else low / high
