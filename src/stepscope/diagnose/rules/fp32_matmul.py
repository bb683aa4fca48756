"""FP32 matrix products run on the vector units of a GPU whose tensor cores support TF32.

What
----
Time of kernels that multiply FP32 matrices without the matrix units (`ampere_sgemm`, `scudnn`, CUTLASS `simt`), by
name, over the window; mean over ranks. Only on NVIDIA Ampere and later, which have TF32.

Why
---
By default torch multiplies FP32 in full precision. TF32 keeps the range of FP32, rounds the inputs to 10 bits of
mantissa and has 8 times the peak on an A100 (156 against 19.5 TFLOP/s).

Known problems
--------------
Kernels are classified by name only; Triton and custom kernels have arbitrary names. Work that needs the mantissa of
FP32 (physics, some losses) must keep it: compare losses before and after. Memory-bound products gain less than the peak
suggests.

References
----------
PyTorch, CUDA semantics, TensorFloat-32 on Ampere devices; NVIDIA A100 whitepaper, 2020; a published checklist.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.diagnose.rule import Statement, advise, inspect
from stepscope.diagnose.trace_facts import RankShares, cut, kinds_ns, kinds_shares, mixes_of, share_rule, with_kernels
from stepscope.records.finding import Skipped
from stepscope.records.trace_rules import KernelMix
from stepscope.traces.kernel_names import MATRIX, MATRIX_FP32, MATRIX_TENSOR, kernel_dtype


def _report(part: RankShares) -> Statement:
    from stepscope.machine.peaks.lookup import has_tf32, peak_ratio

    mixes, device = mixes_of(part.ranks), part.device
    fp32 = [kind for mix in mixes for kind in mix.kinds if kind.kind == MATRIX_FP32]
    tf32 = has_tf32(device, [kind.largest for mix in mixes for kind in mix.kinds])
    if tf32 is None:
        return Skipped(reason="unknown whether the device has TF32: neither its name nor its kernels show it")
    if not tf32:
        return f"{device or 'the device'} has no TF32"
    ratio = peak_ratio(device, "fp32", "tf32")
    products = sum(kinds_ns(mix, *MATRIX) for mix in mixes)
    largest = max(fp32, key=lambda kind: kind.largest_ns)
    peak = f"; TF32 has {1 / ratio:.1f} times the peak" if ratio else ""
    return part.finding(
        f"{part} is FP32 matrix products without TF32",
        (
            f"{format_percent(sum(k.total_ns for k in fp32) / products)} of all matrix product time{peak}",
            f"the largest: {cut(largest.largest)}, {format_duration(largest.largest_ns)}",
        ),
        stake=min(1.0, part.share * (1 - (ratio or 0.0))),
        confidence="likely: inferred from kernel names; memory-bound products gain less",
        advice=(
            advise(
                "allow TF32 for FP32 products before the first step",
                "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = True",
                key="tf32",
            ),
            inspect("the other products run in 16 bits: find what leaves autocast and stays in FP32")
            if _mostly_half(mixes)
            else advise("or use bf16 autocast, which also halves the size and traffic of activations", key="autocast"),
            inspect("list the kernels", part.command("--show kernels,operators")),
        ),
    )


def _mostly_half(mixes: Sequence[KernelMix]) -> bool:
    """Whether the job's other products are of a 16-bit type already."""
    tensor = [kind for mix in mixes for kind in mix.kinds if kind.kind == MATRIX_TENSOR]
    half = [kind for kind in tensor if kernel_dtype(kind.largest) in ("bf16", "fp16")]
    return bool(half) and len(half) == len(tensor)


RULE = share_rule(
    symptom="FP32 matrix products without TF32 on a GPU that has it",
    ranks=with_kernels,
    without="no compute kernels: a CPU job has none",
    measure=lambda ranks: kinds_shares(ranks, MATRIX_FP32),
    figures=lambda part: f"FP32 products on the vector units take {part}",
    report=_report,
    claims=("step/computation/precision",),
    protocol=4,
)
