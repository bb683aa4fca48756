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

from stepscope.core.units import format_percent
from stepscope.diagnose.rule import Statement, advise, skipped
from stepscope.diagnose.trace_facts import RankShares, kinds_shares, largest_text, share_rule, total_ns, with_kernels
from stepscope.traces.kernel_names import MATRIX, MATRIX_FP32, MATRIX_TENSOR, kernel_dtype


def _fp32_matmul_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: FP32 matrix products without TF32 on a GPU that has it."""
    from stepscope.machine.peaks.lookup import has_tf32, peak_ratio

    fp32, device = part.kinds(MATRIX_FP32), part.device
    tf32 = has_tf32(device, [kind.largest for kind in part.kinds()])
    if tf32 is None:
        return skipped("unknown whether the device has TF32: neither its name nor its kernels show it")
    if not tf32:
        return f"{device or 'the device'} has no TF32"
    ratio = peak_ratio(device, "fp32", "tf32")
    peak = f"; TF32 has {1 / ratio:.1f} times the peak" if ratio else ""
    half = [kernel_dtype(kind.largest) in ("bf16", "fp16") for kind in part.kinds(MATRIX_TENSOR)]
    return part.finding(
        f"{part} is FP32 matrix products without TF32",
        f"{format_percent(total_ns(fp32) / total_ns(part.kinds(*MATRIX)))} of all matrix product time{peak}",
        largest_text(fp32),
        stake=min(1.0, part.share * (1 - (ratio or 0.0))),
        confidence="likely: inferred from kernel names; memory-bound products gain less",
        advice=[
            advise(
                "allow TF32 for FP32 products before the first step",
                "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = True",
                key="tf32",
            ),
            "the other products run in 16 bits: find what leaves autocast and stays in FP32"
            if half and all(half)
            else advise("or use bf16 autocast, which also halves the size and traffic of activations", key="autocast"),
            ("list the kernels", "--show kernels,operators"),
        ],
    )


RULE = share_rule(
    symptom="FP32 matrix products without TF32 on a GPU that has it",
    ranks=with_kernels,
    without="no compute kernels: a CPU job has none",
    measure=lambda ranks: kinds_shares(ranks, MATRIX_FP32),
    figures=lambda part: f"FP32 products on the vector units take {part}",
    report=_fp32_matmul_statement,
    claims=("computation",),
    protocol=4,
)
