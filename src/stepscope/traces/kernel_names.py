"""What the name of a device event tells: computing, communicating or moving memory; and of a compute kernel the dtype it
multiplies in, whether on the matrix units, and what it works on.

Patterns are compiled where the first name is looked at: a time budget asks one of them.
Where case does not matter, text and pattern are in lower case: re.IGNORECASE tries every alternative at every letter.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepscope.traces.events import Category, Events

_NAMED: tuple[tuple[str, str], ...] = (
    ("fp8", r"(?i:e4m3|e5m2|fp8|float8)|_B?F8|nvjet_(sm\d+_)?qq"),
    ("bf16", r"(?i:bf16|bfloat16)|Cijk_\w+?_B[BS]S?(_|H)|nvjet_(sm\d+_)?t[a-z]t"),
    ("tf32", r"(?i:tf32|tfloat32)|Cijk_\w+?_S_MX_"),
    ("fp16", r"(?i:fp16|(?<![bft])f16(?!\d)|half)|_h\d*gemm|h(cudnn|884|1688|16816)|Cijk_\w+?_H([HS]S|H?B)_"
             r"|nvjet_(sm\d+_)?h[a-z]h"),
    ("int8", r"(?i:int8|i8i8|_s8_)|(?<![a-z])i(8816|16832)|Cijk_\w+?_(I8|4xi8)"),
    ("fp64", r"(_|\b)dgemm|d(884|1688|16816)gemm|f64f64|Cijk_\w+?_DB_|gemm\w*<double"),
    ("fp32", r"(_|\b|convolve_|simt_)sgemm|scudnn|Cijk_\w+?_S(B|_B)_|_ffma|f32f32_f32f32|fp32"
             r"|(gemm|fprop|dgrad|wgrad|winograd)\w*<(int, )?float"),
    ("fp16", r"(turing|_75)\w*?_s1688|(?<![a-z])s884"),
    ("tf32", r"(?<![a-z])s16(88|84)"),
)  # fmt: skip
"""dtype and pattern, first match wins: a type that is spelled out, then what an instruction implies. ``s1688`` takes
FP32 inputs as TF32 where no type is named; Turing, whose tensor cores have no TF32, and Volta's ``s884`` multiply FP16.
``s16816`` without a type (FP16 or BF16) tells nothing. Tensile writes the input's type first: HHS, BBS, SB, DB, I8; ``S_MX``
is FP32 as XF32. nvjet writes input, accumulator, output: t = BF16, h = FP16, q = FP8 (cuBLAS 12.4 to 13.0 as seen in traces,
2026-11)."""


@lru_cache(maxsize=1 << 14)
def kernel_dtype(name: str) -> str | None:
    """Tell fp8 | bf16 | fp16 | tf32 | fp32 | fp64 | int8 of a matrix kernel by its name; None where it does not tell."""
    return next((dtype for dtype, pattern in _NAMED if re.search(pattern, name)), None)


_VECTOR_UNITS: tuple[tuple[str, str], ...] = (
    (r"simt|_ffma|_dfma|_fma_", "CUTLASS and cuDNN name the scalar path"),
    (r"(^|_|\b)(sgemm|dgemm|scudnn|cgemm|zgemm|gcgemm)|gemv(n|t|x|NSP)|convolve_sgemm", "classic cuBLAS, cuDNN"),
    (r"elementwise|multi_tensor_apply|reduce_kernel|CatArrayBatchedCopy|softmax_warp|_pool_", "ATen"),
    (r"batch_norm|layer_norm|LayerNorm|RowwiseMoments|GammaBeta|indexSelect|dropout|bn_(fw|bw)_", "ATen, cuDNN"),
    (r"DeviceRadixSort|DeviceScan|DeviceReduce|DeviceSelect|splitKreduce|ReduceSplitK", "CUB, cuBLAS, CUTLASS"),
    (r"nchwToNhwc|nhwcToNchw|transpose_|fft2d|computeOffsets", "layout changes, FFT"),
    (r"^Cijk_(?!.*_MI\d+x\d+).*_TT\d+_\d+", "Tensile with thread tiles"),
)  # fmt: skip
"""Pattern of names that say a kernel does without the matrix units, and who writes them."""

_MATRIX_UNITS: tuple[tuple[str, str], ...] = (
    (r"_tensorop|OpClassTensorOp|MmaTensorOp|tensor\d+x\d+x\d+", "CUTLASS, cuDNN: _tensor16x8x8"),
    (r"(^|[_a-z])[a-z]?(884|1688|16816|16832|161616)(gemm|cudnn|fprop|dgrad|wgrad|_)", "cuBLAS: h884gemm, s16816gemm"),
    (r"[hibdq]mma(?![a-z])|wgmma|tcgen05|utcmma|wmma", "instruction named: hmma, imma, wgmma"),
    (r"xmma", "cuDNN, cuBLAS, unless the scalar path is named"),
    (r"^nvjet_", "cuBLAS on Hopper and later"),
    (r"flash_(fwd|bwd)|fmha_|cudnn_generated_fort_native_sdpa|device_kernel.*Sm(90|100)", "attention, CUTLASS 3"),
    (r"_MI\d+x\d+x\d+|mfma|xdl(ops)?|igemm_(fwd|bwd|wrw)_gtcx", "Tensile, CK, MIOpen: AMD matrix cores"),
)  # fmt: skip
"""Pattern of names that say a kernel uses the matrix units (tensor cores, AMD matrix cores), and who writes them."""

_SCALAR_PATH = r"simt|_ffma|_dfma"
_VECTOR = "|".join(f"(?:{p})" for p, _ in _VECTOR_UNITS)
_MATRIX = "|".join(f"(?:{p})" for p, _ in _MATRIX_UNITS)


def uses_tensor_cores(kernel_name: str) -> bool | None:
    """Whether a kernel multiplies on the matrix units, as far as its name tells; None where it does not.

    A name that says neither stays unknown: kernels of Triton or of one's own are named as their author liked.
    """
    if re.search(_SCALAR_PATH, kernel_name):
        return False
    if re.search(_MATRIX, kernel_name):
        return True
    return False if re.search(_VECTOR, kernel_name) else None


MATRIX_TENSOR = "matrix_tensor"
MATRIX_FP32 = "matrix_fp32"
MATRIX_VECTOR = "matrix_vector"
MATRIX_UNKNOWN = "matrix_unknown"
BANDWIDTH = "bandwidth"
FUSED = "fused"
OTHER = "other"

MATRIX = (MATRIX_TENSOR, MATRIX_FP32, MATRIX_VECTOR, MATRIX_UNKNOWN)
"""Kinds that multiply matrices: on the matrix units, on the vector units in FP32 or in another type, or unknown where."""

_FUSED = r"triton_(poi|red|per|for)_"

_PRODUCT = (
    r"(?<!fb)gemm(?!v)|[shd\d]cudnn_|cijk_|nvjet_|xmma|fprop|dgrad|wgrad|implicit_convolve|convolve_[shdc]gemm|winograd"
    r"|igemm|triton_(tem|mm)|(\b|_)matmul|(?<!sub)tensorop|flash_(fwd|bwd)|fmha|mfma|naive_conv|\bconv(_|asm)|gridwise_conv"
)
"""In lower case: cuBLAS, cuDNN, CUTLASS, Tensile, MIOpen and CK, inductor's templates, fused attention."""

_HELPER = r"splitKreduce|ReduceSplitK|reduce_wgrad|computeOffsets|generateWinogradTiles|nchwToNhwc|nhwcToNchw"
"""Kernels beside a product that carry its name."""

_BANDWIDTH = (
    r"elementwise|multi_tensor_apply|reduce_kernel|softmax|batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm"
    r"|rowwisemoments|gammabeta|dropout|bn_(fw|bw)_|_pool_|pooling|catarraybatchedcopy|nchwtonhwc|nhwctonchw|transpose"
    r"|cross_entropy|nll_loss|vectorized_|subtensorop|fill_|adam|sgd_|lamb|gelu|silu|relu_kernel|optensor|im2col"
    r"|col2im|tanh_kernel|masked_"
)
"""In lower case: work on each element once or a few times: ATen, cuDNN, MIOpen, Apex."""


@lru_cache(maxsize=1 << 14)
def kernel_kind(name: str) -> str:
    """The kind of one compute kernel. ``fused``: made by a compiler from several such; ``other``: the name tells nothing."""
    if re.match(_FUSED, name):
        return FUSED
    lower = name.lower()
    if re.search(_PRODUCT, lower) and not re.search(_HELPER, name):
        units = uses_tensor_cores(name)
        if units:
            return MATRIX_TENSOR
        if kernel_dtype(name) == "fp32":
            return MATRIX_FP32
        return MATRIX_VECTOR if units is False else MATRIX_UNKNOWN
    return BANDWIDTH if re.search(_BANDWIDTH, lower) or re.search(_HELPER, name) else OTHER


class Work(IntEnum):
    """Class of device work; NOT_DEVICE for every host event."""

    NOT_DEVICE = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMORY = 3


COMMUNICATION_NAMES: tuple[tuple[str, str], ...] = (
    (r"^(void )?(nccl|rccl|msccl)", "NCCL 2.x ncclKernel_*, ncclDevKernel_*, ncclSymDevKernel_*; RCCL; MSCCL"),
    (r"^(void )?(\w+::)*cross_device_reduce", "vLLM and SGLang custom all-reduce"),
    (r"(one|two|multi)_shot_all_?reduce|multimem_(all|one_shot|reduce)", "PyTorch symmetric memory"),
    (r"allreduce_fusion_kernel|(one|two)shotallreducekernel|lamport", "TensorRT-LLM, FlashInfer"),
    (r"^(void )?nvshmem|nvshmemi_|nvshmemx_", "NVSHMEM"),
    (r"\bdeep_ep::", "DeepEP dispatch and combine"),
    (r"^(void )?ub_?(all|reduce|allgather)|userbuffers", "Transformer Engine userbuffers"),
)
"""Pattern of a kernel's name in lower case, and whose kernels it is."""

_COMMUNICATION = "|".join(f"(?:{p})" for p, _ in COMMUNICATION_NAMES)


@lru_cache(maxsize=1 << 16)
def is_communication(kernel_name: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    return re.search(_COMMUNICATION, kernel_name.lower()) is not None


def work_of(events: Events) -> NDArray[np.int8]:
    """Work class of every event, shape (len(events),): by ``cat`` first, kernels then by name."""
    work = np.zeros(len(events), dtype=np.int8)
    category = events.category
    work[(category == Category.MEMCPY) | (category == Category.MEMSET)] = Work.MEMORY
    kernels = category == Category.KERNEL
    by_name = np.full(len(events.names), Work.COMPUTE, dtype=np.int8)
    # Not np.unique, which imports numpy.ma: 40 ms, a sixth of reading a small trace.
    used = np.flatnonzero(np.bincount(events.name[kernels], minlength=1))
    for code in used.tolist():
        if is_communication(events.names[code]):
            by_name[code] = Work.COMMUNICATION
    work[kernels] = by_name[events.name[kernels]]
    return work
