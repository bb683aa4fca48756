"""What a compute kernel works on, by its name: matrix products, streams of memory, or neither."""

from __future__ import annotations

import re
from functools import lru_cache

from stepscope.traces.kernel_dtypes import kernel_dtype
from stepscope.traces.kernels import uses_tensor_cores

MATRIX_TENSOR = "matrix_tensor"
MATRIX_FP32 = "matrix_fp32"
MATRIX_VECTOR = "matrix_vector"
MATRIX_UNKNOWN = "matrix_unknown"
BANDWIDTH = "bandwidth"
FUSED = "fused"
OTHER = "other"

MATRIX = (MATRIX_TENSOR, MATRIX_FP32, MATRIX_VECTOR, MATRIX_UNKNOWN)
"""Kinds that multiply matrices: on the matrix units, on the vector units in FP32 or in another type, or unknown where."""

_FUSED = re.compile(r"^triton_(poi|red|per|for)_")

_PRODUCT = re.compile(
    r"(?<!fb)gemm(?!v)|[shd\d]cudnn_|Cijk_|nvjet_|xmma|fprop|dgrad|wgrad|implicit_convolve|convolve_[shdc]gemm|winograd"
    r"|igemm|triton_(tem|mm)|(\b|_)matmul|(?<!Sub)tensorop|flash_(fwd|bwd)|fmha|mfma|naive_conv|\bConv(_|asm|ASM)|gridwise_conv",
    re.IGNORECASE,
)
"""cuBLAS, cuDNN, CUTLASS, Tensile, MIOpen and CK, inductor's templates, fused attention."""

_HELPER = re.compile(
    r"splitKreduce|ReduceSplitK|reduce_wgrad|computeOffsets|generateWinogradTiles|nchwToNhwc|nhwcToNchw"
)
"""Kernels beside a product that carry its name."""

_BANDWIDTH = re.compile(
    r"elementwise|multi_tensor_apply|reduce_kernel|softmax|batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm"
    r"|RowwiseMoments|GammaBeta|dropout|bn_(fw|bw)_|_pool_|pooling|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|transpose"
    r"|cross_entropy|nll_loss|vectorized_|SubTensorOp|fill_|adam|sgd_|lamb|gelu|silu|relu_kernel|OpTensor|im2col"
    r"|col2im|tanh_kernel|masked_",
    re.IGNORECASE,
)
"""Work on each element once or a few times: ATen, cuDNN, MIOpen, Apex."""


@lru_cache(maxsize=1 << 14)
def kernel_kind(name: str) -> str:
    """The kind of one compute kernel. ``fused``: made by a compiler from several such; ``other``: the name tells nothing."""
    if _FUSED.match(name):
        return FUSED
    if _PRODUCT.search(name) and not _HELPER.search(name):
        units = uses_tensor_cores(name)
        if units:
            return MATRIX_TENSOR
        if kernel_dtype(name) == "fp32":
            return MATRIX_FP32
        return MATRIX_VECTOR if units is False else MATRIX_UNKNOWN
    return BANDWIDTH if _BANDWIDTH.search(name) or _HELPER.search(name) else OTHER
