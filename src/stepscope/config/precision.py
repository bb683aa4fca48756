"""The numeric formats a cell can train in, and where each one cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFact:
    """One precision.

    label: for tables. summary: what it changes, in one line.
    parameter_dtype: what parameters and gradients are stored in, so what an uncompressed all-reduce carries.
    """

    key: str
    label: str
    summary: str
    parameter_dtype: str


# Autocast changes the dtype of activations only: parameters and gradients stay in float32, so neither the
# memory for them nor the all-reduce gets smaller. Only ``bf16`` halves both.
PRECISIONS = {
    fact.key: fact
    for fact in (
        PrecisionFact(key="fp32", label="FP32", summary="everything in float32, TF32 off", parameter_dtype="float32"),
        PrecisionFact(
            key="tf32",
            label="TF32",
            summary="float32 storage, matrix products on tensor cores with 10-bit mantissas",
            parameter_dtype="float32",
        ),
        PrecisionFact(
            key="amp_bf16",
            label="AMP BF16",
            summary="autocast to bfloat16; parameters and gradients stay float32",
            parameter_dtype="float32",
        ),
        PrecisionFact(
            key="amp_fp16",
            label="AMP FP16",
            summary="autocast to float16 with loss scaling; parameters and gradients stay float32",
            parameter_dtype="float32",
        ),
        PrecisionFact(
            key="bf16",
            label="BF16",
            summary="parameters, gradients and inputs in bfloat16",
            parameter_dtype="bfloat16",
        ),
    )
}

TENSOR_CORE_CAPABILITY = (8, 0)
"""First CUDA compute capability with TF32 and bfloat16 units (NVIDIA CUDA C++ Programming Guide, 2020)."""


def parameter_dtype(precision: str) -> str:
    """Storage type of parameters and gradients: ``float32`` or ``bfloat16``."""
    return fact(precision).parameter_dtype


def fact(precision: str) -> PrecisionFact:
    """What ``precision`` means. Unknown name: UsageError with did-you-mean."""
    try:
        return PRECISIONS[precision]
    except KeyError:
        raise UsageError(unknown("precision", precision, tuple(PRECISIONS))) from None


def refuse(precision: str, *, device: str, compute_capability: str | None = None, tiny: bool = False) -> str | None:
    """Why ``precision`` cannot run on ``device`` (cpu | cuda), or None when it can.

    compute_capability: of the GPU, such as ``8.0``; None means unknown, then nothing is refused because of it.
    tiny: float16 on a CPU is refused because it runs at about 1 GFLOP/s; shapes so small that this does not
        matter may run.
    """
    fact(precision)
    if device == "cpu":
        return _refuse_on_cpu(precision, tiny=tiny)
    if compute_capability is not None and precision in ("tf32", "amp_bf16", "bf16"):
        major, _, minor = compute_capability.partition(".")
        if (int(major), int(minor or 0)) < TENSOR_CORE_CAPABILITY:
            return f"{precision} needs a GPU of compute capability 8.0 or later, this GPU has {compute_capability}"
    return None


def _refuse_on_cpu(precision: str, *, tiny: bool) -> str | None:
    if precision == "tf32":
        return "tf32 is an arithmetic mode of CUDA tensor cores; the cpu has none"
    if precision == "amp_fp16" and not tiny:
        return "amp_fp16 on the cpu multiplies matrices at about 1 GFLOP/s: use amp_bf16 there, or a GPU"
    return None
