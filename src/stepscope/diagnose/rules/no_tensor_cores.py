"""No matrix product of the step uses the tensor cores of the device.

What
----
Share of matrix product time on the matrix units (tensor cores, AMD's matrix cores), by the kernels' names. Fires below
{tensor cores%} if the rest is known not to use them and products take {warning}.

Why
---
The matrix units provide a GPU's peak: 125 against 15.7 TFLOP/s on a V100. FP32 without TF32 cannot use them, nor can
half precision with odd dimensions.

Known problems
--------------
Kernels are classified by name only; the rule is quiet if more than half of the products' time is in unknown kernels.
`fp32-matmul` reports FP32 on a GPU with TF32.

References
----------
NVIDIA, Matrix Multiplication Background (dimensions in multiples of 8 for FP16); V100 datasheet; PyTorch, Automatic
Mixed Precision; a published checklist, "Tensor Cores used?" and "Mixed precision enabled?".
"""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.diagnose.rule import Limit, Statement, advise, skipped
from stepscope.diagnose.trace_facts import (
    RankShares,
    cut,
    kinds_shares,
    largest_text,
    share_rule,
    total_ns,
    with_kernels,
)
from stepscope.traces.kernel_names import MATRIX, MATRIX_FP32, MATRIX_TENSOR, MATRIX_UNKNOWN, kernel_dtype

_NONE = Limit(
    0.05,
    unit="share of all matrix product time",
    source="stepscope's choice, 2026-11: a few such products (embeddings, attention masks) do not count as use",
)


def _no_tensor_cores_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: no matrix product uses the tensor cores."""
    products, device = part.kinds(*MATRIX), part.device
    kinds = {kind: total_ns(part.kinds(kind)) / total_ns(products) for kind in MATRIX}
    if kinds[MATRIX_TENSOR] >= _NONE:
        return f"{format_percent(kinds[MATRIX_TENSOR])} of the products' time uses them"
    if kinds[MATRIX_UNKNOWN] > 0.5:
        return f"{format_percent(kinds[MATRIX_UNKNOWN])} of the products' time is in kernels of unknown kind"
    from stepscope.machine.peaks.lookup import has_matrix_units, has_tf32, peak_ratio

    names = [kind.largest for kind in part.kinds()]
    there = has_matrix_units(device, names)
    if there is None:
        return skipped("unknown whether the device has tensor cores: neither its name nor its kernels show it")
    if not there:
        return f"{device} has no tensor cores"
    largest = max(products, key=lambda kind: kind.largest_ns).largest
    if kernel_dtype(largest) == "fp64":
        return f"the products are FP64 ({cut(largest)}): lower precision would be other mathematics"
    if kinds[MATRIX_FP32] >= 0.5 and has_tf32(device, names):
        return "FP32 products without TF32: see fp32-matmul"
    ratio = peak_ratio(device, "fp32", "fp16")
    return part.finding(
        f"matrix products do not use the tensor cores: {part}",
        f"{format_percent(1 - kinds[MATRIX_TENSOR])} of the products' time is without tensor cores, "
        f"{format_percent(kinds[MATRIX_FP32])} FP32 on the vector units"
        + (f"; FP16 has {1 / ratio:.1f} times the peak on {device}" if ratio else ""),
        largest_text(products),
        stake=min(1.0, part.share * (1 - (ratio or 0.0))),
        confidence="likely: inferred from kernel names; memory-bound products gain less",
        advice=[
            advise(
                "use mixed precision (torch.autocast with fp16 and GradScaler, bf16 from Ampere on) and "
                "dimensions in multiples of 8",
                "stepscope bench --preset precision",
                key="autocast",
                only_for=("trains",),
            ),
            advise(
                "run the model in fp16 (bf16 from Ampere on), with dimensions in multiples of 8",
                key="autocast",
                only_for=("infers",),
            ),
            ("list the kernels", "--show kernels,operators"),
        ],
    )


RULE = share_rule(
    symptom="no matrix product uses the tensor cores",
    ranks=with_kernels,
    without="no compute kernels: a CPU job has none",
    measure=lambda ranks: kinds_shares(ranks, *MATRIX),
    figures=lambda part: f"matrix products take {part}",
    report=_no_tensor_cores_statement,
    claims=("computation",),
    protocol=4,
    thresholds={"tensor cores": _NONE},
)
