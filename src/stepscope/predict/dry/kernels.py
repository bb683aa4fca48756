"""What each operator of a dry run takes on a GPU, by its kind, shapes and dtypes."""

from __future__ import annotations

from math import prod
from typing import Literal

from stepscope.machine.peaks import Accelerator
from stepscope.predict.step.roofline import Roofline
from stepscope.records.dry_run import DryOperator, DryRank

Kind = Literal["product", "attention", "memory", "copy", "optimizer", "view"]

PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "linear_backward", "addmv", "mv", "dot", "_scaled_mm",
    "_grouped_mm", "_scaled_grouped_mm", "_int_mm", "convolution", "_convolution", "convolution_backward",
})  # fmt: skip
COPIES = frozenset({
    "_to_copy", "copy_", "clone", "cat", "stack", "split_with_sizes_copy", "all_gather_copy_in", "chunk_cat",
    "slice_scatter", "constant_pad_nd",
})  # fmt: skip
BARRIERS = frozenset({
    "embedding_dense_backward", "sort", "topk", "scatter_add", "scatter_reduce", "index_put", "index_put_", "nonzero",
    "cumsum",
})  # fmt: skip
"""What the compiler leaves a kernel of its own."""

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp32"}
BYTES = {"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}

FLASH_BACKWARD = 2.5
"""FLOP of fused attention's backward pass over its forward pass (FlashAttention-2): scores are computed again."""


def name_of(row: DryOperator) -> str:
    """Return ``mm`` of ``aten.mm.default``."""
    return row.op.split(".")[1] if "." in row.op else row.op


def kind_of(row: DryOperator) -> Kind:
    """Return what kind of work an operator is. Names of CPU kernels stand for those of the GPU."""
    name = name_of(row)
    if name in PRODUCTS:
        return "product"
    if "dot_product" in name or "flash_attention" in name or "flash_attn" in name:
        return "attention"
    if not row.read_bytes and not row.written_bytes:
        return "view"
    if row.phase == "optimizer" or name.startswith(("_foreach_", "_fused_")):
        return "optimizer"
    return "copy" if name in COPIES else "memory"


def is_backward(row: DryOperator) -> bool:
    """Whether it is fused attention's backward kernel."""
    return "backward" in name_of(row)


def item_bytes(dtype: str) -> int:
    """Bytes of an element; 1 for FP8, bool and bytes."""
    return BYTES.get(dtype.removeprefix("torch."), 1)


def precision_of(row: DryOperator, gpu: Accelerator, *, tf32: bool) -> str:
    """Return the matrix rate that an operator uses. tf32: FP32 products may take TF32; convolutions do by default."""
    names = [name.removeprefix("torch.") for name in row.dtypes]
    if any(name.startswith("float8") for name in names):
        return "fp8"
    precision = next((PRECISIONS[name] for name in names if name in PRECISIONS), "fp32")
    shorter = (tf32 or "convolution" in row.op) and "tf32" in gpu.peak_flops_per_s
    return "tf32" if precision == "fp32" and shorter else precision


def uses_tf32(rank: DryRank) -> bool:
    """Whether the script lets FP32 products take the matrix units' shorter type."""
    return rank.settings.get("float32_matmul_precision", "highest") != "highest"


def attention_flop(row: DryOperator) -> float:
    """FLOP of the forward pass of a row of fused attention: two products, half of each where it looks back only."""
    shapes = row.shapes[1:] if is_backward(row) else row.shapes
    if len(shapes) < 3 or min(len(shape) for shape in shapes[:3]) < 3:
        return row.flop / (FLASH_BACKWARD if is_backward(row) else 1)
    query, key, value = shapes[:3]
    whole = 2.0 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return whole / 2 if row.causal else whole


def computed_flop(row: DryOperator) -> float:
    """FLOP that the device does for one call."""
    if kind_of(row) != "attention":
        return float(row.flop)
    return attention_flop(row) * (FLASH_BACKWARD if is_backward(row) else 1.0)


def model_flop(row: DryOperator) -> float:
    """FLOP that the model asks for: nothing that is computed again."""
    if row.recomputed:
        return 0.0
    return attention_flop(row) * (2.0 if is_backward(row) else 1.0) if kind_of(row) == "attention" else float(row.flop)


def kernel_s(row: DryOperator, roofline: Roofline, *, tf32: bool = False) -> float:
    """Seconds of device time of one call."""
    kind, size = kind_of(row), row.read_bytes + row.written_bytes
    if kind == "view":
        return 0.0
    if kind == "optimizer":
        return roofline.optimized(size) + roofline.least
    if kind not in ("product", "attention"):
        return roofline.moved(size) + roofline.least
    precision = precision_of(row, roofline.gpu, tf32=tf32)
    if kind == "product":
        return roofline.product(row.flop, size, precision)
    return roofline.attention(computed_flop(row), precision, backward=is_backward(row)) + roofline.least
