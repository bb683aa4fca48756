"""The numeric formats a cell can train in, and where each one cannot run."""

from __future__ import annotations

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown

# Autocast changes the dtype of activations only: parameters and gradients stay in float32, so neither the
# memory for them nor the all-reduce gets smaller. Only ``bf16`` halves both.
PRECISIONS = {
    "fp32": "float32",  # TF32 off
    "tf32": "float32",  # matrix products on tensor cores with 10-bit mantissas
    "amp_bf16": "float32",  # autocast to bfloat16
    "amp_fp16": "float32",  # autocast to float16 with loss scaling
    "bf16": "bfloat16",  # inputs, too
}
"""Precision -> dtype of stored parameters and gradients, which is also what an uncompressed all-reduce carries."""

TENSOR_CORE_CAPABILITY = (8, 0)
"""First CUDA compute capability with TF32 and bfloat16 units (NVIDIA CUDA C++ Programming Guide, 2020)."""


def parameter_dtype(precision: str) -> str:
    """Return the storage type of parameters and gradients. Unknown name: UsageError with did-you-mean."""
    if precision not in PRECISIONS:
        raise UsageError(unknown("precision", precision, PRECISIONS))
    return PRECISIONS[precision]


def refuse(precision: str, *, device: str, compute_capability: str | None = None, tiny: bool = False) -> str | None:
    """Return why ``precision`` cannot run on ``device`` (cpu | cuda), or None when it can.

    compute_capability: of the GPU, such as ``8.0``; None means unknown, then nothing is refused because of it.
    tiny: float16 on a CPU is refused because it runs at about 1 GFLOP/s; shapes so small that this does not
        matter may run.
    """
    parameter_dtype(precision)  # an unknown name
    if device == "cpu" and precision == "tf32":
        return "tf32 is an arithmetic mode of CUDA tensor cores; the cpu has none"
    if device == "cpu" and precision == "amp_fp16" and not tiny:
        return "amp_fp16 on the cpu multiplies matrices at about 1 GFLOP/s: use amp_bf16 there, or a GPU"
    if device == "cpu":
        return None
    if compute_capability is not None and precision in ("tf32", "amp_bf16", "bf16"):
        major, _, minor = compute_capability.partition(".")
        if (int(major), int(minor or 0)) < TENSOR_CORE_CAPABILITY:
            return f"{precision} needs a GPU of compute capability 8.0 or later, this GPU has {compute_capability}"
    return None
