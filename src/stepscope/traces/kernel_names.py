"""What the name of a device event tells: computing, communicating or moving memory; and of a compute kernel the dtype it
multiplies in, whether on the matrix units, and what it works on.

Patterns are compiled where the first name is looked at: a time budget asks one of them.
Where case does not matter, text and pattern are in lower case: re.IGNORECASE tries every alternative at every letter.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from stepscope.core.words import holds_any

_NAMED: tuple[tuple[str, str], ...] = (
    ("bf16", r"matmul_ogs_[A-Z]+_\w+?x(bf16x\w+?|\w+?xbf16)_|_ZN2ck\w+Gridwise\w+?I(Li\d+E)?tt"),
    ("fp16", r"matmul_ogs_[A-Z]+_\w+?x(fp16x\w+?|\w+?xfp16)_"),
    ("fp8", r"matmul_ogs_[A-Z]+_\w+?x(fp8|float8)\w*?x"),
    ("bf16", r"_Qkv?Bfloat16|mm_[A-Za-z0-9]+_((Mx)?(Int4|E2m1|E4m3))?Bfloat16(Bfloat16|(Mx)?(Int4|E2m1|E4m3))?_"),
    ("fp16", r"_Qkv?Fp16|mm_[A-Za-z0-9]+_((Mx)?(Int4|E2m1|E4m3))?Fp16(Fp16|(Mx)?(Int4|E2m1|E4m3))?_"),
    ("", r"(?i:a16_?w(fp)?4|w4_?a16|wna16|fpaintb)(?!.*(float|half|bf16|fp16))"
         r"|(?<!u)(e4m3|e5m2|float8)_t.*e2m1_t|e2m1_t.*(?<!u)(e4m3|e5m2|float8)_t"),
    ("fp8", r"(?i:fp8_?fp4|fp4_?fp8|afp8_?wfp4|mm_[a-z0-9]+_(mx)?e4m3(mx)?e2m1_|mm_[a-z0-9]+_(mx)?e2m1(mx)?e4m3_)"),
    ("fp4", r"(?i:f4gemm|a4w4|afp4_?wfp4|fp4x2_fp4x2|mm_[a-z0-9]+_(mx)?e2m1(mx)?e2m1_|mxf4|nvf4|pertokenmxfp4|float_?e2m1"
            r"|(nv|mx)_?float4|ue4m3xf4|ue8m0xf4|vec16ue4m3|vec32ue8m0\w*f4|fp4_?gemm|gemm_?fp4|nvfp4|mxfp4|pk_fp4|f4x2_pk)"
            r"|nvjet_(sm\d+_)?oo|Cijk_\w+?_F4"),
    ("int8", r"(?i:pertokenint8|i8gemm)"),
    ("fp8", r"(?i:e4m3|e5m2|fp8(?!kvcachedatatype)|float8|f8gemm|a8w8_?(block|blk)|mxf8|mxfp8)|_B?F8|nvjet_(sm\d+_)?qq"),
    ("bf16", r"(?i:bf16|bfloat16)|DF16b|_B16_B16|Cijk_\w+?_B[BS]S?(_|H)|nvjet_(sm\d+_)?t[a-z]{2}_"),
    ("tf32", r"(?i:tf32|tfloat32)|Cijk_\w+?_S_MX_"),
    ("fp16", r"(?i:fp16|(?<![bft])f16(?!\d)|half)|_h\d*gemm|h(cudnn|884|1688|16816)|Cijk_\w+?_H([HS]S|H?B)_"
             r"|nvjet_(sm\d+_)?h[a-z]{2}_"),
    ("int8", r"(?i:int8|i8i8)|_s8_|(?<![a-z])i(8816|16832)|Cijk_\w+?_(I8|4xi8)"),
    ("fp64", r"(_|\b)dgemm|d(884|1688|16816)gemm|f64f64|Cijk_\w+?_DB_|gemm\w*<double"),
    ("fp32", r"(_|\b|convolve_|simt_)sgemm|scudnn|Cijk_\w+?_S(B|_B)_|_ffma|f32f32_f32f32|fp32"
             r"|(gemm|fprop|dgrad|wgrad|winograd)\w*<(int, )?float"),
    ("fp16", r"(turing|_75)\w*?_s1688|(?<![a-z])s884"),
    ("tf32", r"(?<![a-z])s16(88|84)"),
)  # fmt: skip
"""dtype and pattern, first match wins; empty: the name holds types and does not tell which the product is in. A type that
is spelled out comes before what an instruction implies, what is multiplied before what is written: aiter's
``f4gemm_bf16_per1x32Fp4`` and TensorRT-LLM's ``bmm_Bfloat16_E2m1E2m1_Fp32`` write BF16,
as does ``matmul_ogs_NNT_bf16x..``; CK's mangled ``t`` is BF16. Where one operand is narrower the
product is in the wider one; of integer weights (w4a16) that is the activations' type, which few names tell. ``ue4m3`` and
``ue8m0`` are the scales of FP4 blocks. ``s1688`` takes FP32 inputs as TF32 where no type is named; Turing, whose tensor
cores have no TF32, and Volta's ``s884`` multiply FP16. ``s16816`` without a type (FP16 or BF16) tells nothing. Tensile
writes the input's type first: HHS, BBS, F8, F4, SB, DB, I8; ``S_MX`` is FP32 as XF32. nvjet writes input, accumulator,
output: t = BF16, h = FP16, qq = FP8, oo = FP4 (cuBLAS 12.4 to 13.0 as seen in traces, 2026-11)."""


@lru_cache(maxsize=1 << 14)
def kernel_dtype(name: str) -> str | None:
    """Tell fp4 | fp8 | bf16 | fp16 | tf32 | fp32 | fp64 | int8 of a matrix kernel by its name; None where it does not."""
    return next((dtype for dtype, pattern in _NAMED if re.search(pattern, name)), None) or None


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

_PRODUCT_WORDS = (
    "gemm cudnn_ cijk_ nvjet_ xmma prop grad conv winograd triton_ matmul tensorop flash_ fmha mfma marlin moe bmm_"
)
_PRODUCT = (
    r"(?<!fb)gemm(?!v)|[shd\d]cudnn_|cijk_|nvjet_|xmma|fprop|dgrad|wgrad|implicit_convolve|convolve_[shdc]gemm|winograd"
    r"|igemm|triton_(tem|mm)|(\b|_)matmul|(?<!sub)tensorop|flash_(fwd|bwd)|fmha|mfma|naive_conv|\bconv(_|asm)|gridwise_conv"
    r"|marlin\b|fused_moe_kernel|\bbmm_"
)
"""In lower case: cuBLAS, cuDNN, CUTLASS, Tensile, MIOpen and CK, inductor's templates, fused attention; each has one of the
words in it, which are looked for first."""

_HELPER = r"splitKreduce|ReduceSplitK|reduce_wgrad|computeOffsets|generateWinogradTiles|nchwToNhwc|nhwcToNchw"
"""Kernels beside a product that carry its name."""

_BANDWIDTH = (
    r"elementwise|multi_tensor_apply|reduce_kernel|softmax|batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm"
    r"|rowwisemoments|gammabeta|dropout|bn_(fw|bw)_|_pool_|pooling|catarraybatchedcopy|nchwtonhwc|nhwctonchw|transpose"
    r"|cross_entropy|nll_loss|vectorized_|subtensorop|(?<!pre)fill_|adam|sgd_|lamb|gelu|silu|relu_kernel|optensor|im2col"
    r"|col2im|tanh_kernel|masked_(?!multihead)"
)
"""In lower case: work on each element once or a few times: ATen, cuDNN, MIOpen, Apex."""


@lru_cache(maxsize=1 << 14)
def kernel_kind(name: str) -> str:
    """The kind of one compute kernel. ``fused``: made by a compiler from several such; ``other``: the name tells nothing."""
    if re.match(_FUSED, name):
        return FUSED
    if _is_product(name):
        units = uses_tensor_cores(name)
        if units:
            return MATRIX_TENSOR
        if kernel_dtype(name) == "fp32":
            return MATRIX_FP32
        return MATRIX_VECTOR if units is False else MATRIX_UNKNOWN
    return BANDWIDTH if _is_copy_like(name) else OTHER


@lru_cache(maxsize=1 << 14)
def _is_product(name: str) -> bool:
    lower = name.lower()
    return holds_any(lower, _PRODUCT_WORDS) and re.search(_PRODUCT, lower) is not None and not re.search(_HELPER, name)


def _is_copy_like(name: str) -> bool:
    return re.search(_BANDWIDTH, name.lower()) is not None or re.search(_HELPER, name) is not None


class Work(IntEnum):
    """Class of device work; NOT_DEVICE for every host event."""

    NOT_DEVICE = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMORY = 3


COMMUNICATION_NAMES: tuple[tuple[str, str, str], ...] = (
    ("ccl ctran", r"^(void )?(nccl|rccl|msccl|mccl)|\bmscclpp::|\bctran",
     "NCCL ncclKernel_*, ncclDevKernel_*, ncclSymkDevKernel_*; RCCL; MSCCL"),
    ("c10d:: shot multimem_", r"\bc10d::|(one|two)_shot_all_?reduce|multimem_(all|one_shot|reduce)",
     "PyTorch, symmetric memory"),
    ("cross_device _gfx",
     r"cross_device_reduce|reduce_scatter_cross_device|_(ar|ag|rs)_gfx\d+|^(void )?(aiter::)?(ar|ag|rs)_(ll_)?gfx\d+",
     "custom all-reduce of vLLM, SGLang, aiter"),
    ("quickreduce:: allreduce_", r"\bquickreduce::|allreduce_prototype", "QuickReduce"),
    ("allreduce lamport moe helix mnnvl",
     r"allreduce_fusion_kernel|(one|two)shotallreduce|lamport|moea2a|moe_?all_?to_?all|helixalltoall|\bmnnvl",
     "TensorRT-LLM, FlashInfer"),
    ("shmem on_stream_", r"(nv|roc|mx|i|mori_)shmem|\bshmem_|\w_on_stream_kernel", "NVSHMEM, rocSHMEM, Intel SHMEM"),
    ("ep:: node:: node_ll:: ep_dispatch ep_combine mooncake::",
     r"\b(\w+_)?ep::(?!cub)|\bdeepep::|(intra|inter)node(_ll)?::(\w*notify|dispatch|combine|barrier|clean)"
     r"|(?<![a-z])ep_(dispatch|combine)|\bmooncake::(dispatch|combine)",
     "DeepEP and its forks (dpsk::ep, primus_turbo::deep_ep, uccl): dispatch, combine, notify_dispatch, cached_notify"),
    ("epdispatch epcombine mori::",
     r"\bep(dispatch|combine)(inter|intra|low|sync|all|copy)|\bmori::(?!\w+::\w*convert)", "mori"),
    ("a2a_ pplx", r"\ba2a_(dispatch|combine|single)|\bpplx", "pplx-kernels, pplx-garden, Flux"),
    ("userbuffers ub_all uball ub_reduce ubreduce",
     r"userbuffers|^(void )?ub_?(all|reduce|allgather)", "Transformer Engine userbuffers"),
    ("_node all2all ring_reduce kernel_dispatch kernel_combine barrier _forward_",
     r"(dispatch|combine|barrier|push|pull|p2p|ring|copy)\w*(intra|inter)_node|kernel_all2all|kernel_ring_reduce|\bkernel_(dispatch|combine)_token"
     r"|barrier_all_|_forward_(push|pull)_|cudaipcbarrier", "Triton-distributed, Flux"),
    ("ccl monolithic_ reduce_read_ reduce_local_ reduce_single_ rt64",
     r"oneccl|\bccl::v1|(read_)?(write|reduce)_monolithic_kernel|reduce_read_write_kernel"
     r"|reduce_(single_)?local_(in|outof)place_kernel|\brt64(_128)?_pcie", "oneCCL"),
    ("hccl hcom aiv_ aicpu distribute cam notify",
     r"^(hccl|hcom)|\baiv_(all|reduce_scatter|broadcast)|(gather|reduce|scatter|all)aicpukernel"
     r"|moe_?distribute_?(dispatch|combine)|cam_?moe|^notify[_ ](wait|record)", "HCCL, Ascend's expert parallelism"),
)  # fmt: skip
"""Words one of which is in every name of the pattern, the pattern of a kernel's name in lower case, and whose kernels it
is. The words are looked for first: a pattern takes 0.3 ms for a name of 400 characters, as templates have."""


def _moves_between_ranks(lower: str) -> bool:
    return any(holds_any(lower, words) and re.search(pattern, lower) for words, pattern, _ in COMMUNICATION_NAMES)


COLLECTIVE_WORDS = (
    r"(?<![a-z])(all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?scatter|all[-_]?(to|2)[-_]?all|a2a(?![a-z])"
    r"|send_?recv)"
)
"""In names as ``spelled_out``, where none of ``NO_COLLECTIVE`` is in it: that one computes."""

NO_COLLECTIVE = (
    r"gemm|matmul|mat_mul|(?<![a-z])(mm|bmm|attention|attn)(?![a-z])|copy_(in|out)|graph_send|scatter_(add|max|min|mean)"
    r"|(?<![a-z])(warp|block|segment|cta|wave|lane|sub_?group)_(all_?)?(reduce|gather)"
)
"""Products, FSDP's copies around a collective, messages along the edges of a graph network, and sums within one device."""

_COMPUTING = (
    r"^(at|at_cuda_detail|\w*cub\w*|thrust|cudnn|cublas(lt)?|cask\w*|cutlass|cusparse|cufft|cusolver|magma|mi_?open"
    r"|rocblas|rocprim|rocsparse|hipcub|ck|ck_tile|fbgemm_gpu|apex|flash|pytorch_flash|transformer_engine"
    r"|onnxruntime|bitsandbytes|epilogue)::|::cub(_\w+)?::|^cublas|^triton_(_\d|poi|red|per|for|tem|mm|fused|unk)"
    r"|^(mi_?open|rocblas|cudnn)"
)
"""Libraries that only compute: whatever launched such a kernel, it is no collective's own."""

_COMPUTES = (
    r"attention|attn|fmha|(?<![a-z])(mla|mha|mqa|gqa|dsa|mm|bmm|ln|fwd|bwd|linear)(?![a-z])|softmax|rope(?![a-z])|rotary"
    r"|rms_?norm|layer_?norm|group_?norm|qk_?norm|quant|fp8_cast|cast_to_fp8|swi_?glu|silu|gelu|act_and_mul|activation|top_?k"
    r"|top_?p|sampl|arg_?sort|radix_?sort|sort_|_sort|sorting|cumsum|prefix_sum|embedding|(?<![a-z])embs?(?![a-z])"
    r"|kv_?(cache|buffer)|_cache_kernel|and_cache|permute|expert|(?<![a-z])moe(?![a-z])|routing|router|gating"
    r"|indexer|logits|lora|bgmv|sgmv|hadamard|causal_conv|selective_(scan|state)|state_passing|chunk_|delta_rule"
    r"|mamba|(?<![a-z])(ssm|ssd|ssu|rwkv|fla|kda|gdn|gdr)(?![a-z])|fft|adagrad|optimizer|interp|upsample"
    r"|(?<![a-z])(nms|lstm|gru|rnn)(?![a-z])|roi_align|split_?k|spmm|sddmm|jagged|bounds_check|linearize_index|gemv"
    r"|gemm|matmul|mat_mul|conv(\dd)?(_|$)|trans_?data|philox|arange|nonzero|convert|hstu|cross_entropy|graph_send"
    r"|scatter_(add|max|mean)|(warp|block|segment)_(all_?)?reduce|fill_?buffer"
    r"|scale_packed_tensor|memset|aclnn|(?<![a-z])(cast|mul|add|sub|div|exp|pow|sqrt|sigmoid|tanh|slice|concat|one_hot)(?![a-z])"
)
"""In names as ``spelled_out``: what kernels of models work on, in whatever library (vLLM, SGLang, FlashInfer, aiter,
FBGEMM, Mamba, xformers, CANN)."""

_MOVES = (
    r"(?<![a-z])(peer|remote|ipc|p2p|rdma|nvl|nvlink|xgmi|symm|symmetric|multimem|nvls|exchange|ring|push|pull|put"
    r"|get|signal|barrier|dispatch|combine|halo|a2a|bcast|broadcast|inter_?node|intra_?node|comm|communication)(?![a-z])"
)
"""In names as ``spelled_out``: what may also be between ranks. Such a name decides nothing by itself."""


@lru_cache(maxsize=1 << 16)
def is_communication(kernel_name: str) -> bool:
    """Whether a kernel of this name moves data between ranks."""
    if _moves_between_ranks(kernel_name.lower()):
        return True
    if "_ZN" in kernel_name and _moves_between_ranks(spelled_out(kernel_name)):
        return True
    return names_collective(kernel_name)


def names_collective(name: str) -> bool:
    """Whether a kernel's or an operator's own name is a collective's, by its words."""
    spelled = spelled_out(name)
    return (
        re.search(COLLECTIVE_WORDS, spelled) is not None
        and not re.search(_COMPUTING, spelled)
        and not re.search(NO_COLLECTIVE, spelled)
    )


_ANONYMOUS = re.compile(r"^void |\(anonymous namespace\)::|::?\[anonymous\]|_GLOBAL__N_1::")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def spelled_out(name: str) -> str:
    """A name without what it is a template of or takes, its words apart: ``two_shot_all_reduce_kernel``."""
    if name.startswith("_ZN"):
        name = "::".join(_mangled_identifiers(name)) or name
    bare = _ANONYMOUS.sub("", name)
    own = bare.partition("(")[0].partition("<")[0] or bare
    return _HUMP.sub("_", own).lower()


def _mangled_identifiers(mangled: str) -> list[str]:
    """The namespaces and the name in a mangled one: ``_ZN5aiter4nameE`` -> aiter, name."""
    parts, rest = [], mangled[3:]
    while (size := re.match(r"K?(\d+)", rest)) is not None:
        parts.append(rest[size.end() : size.end() + int(size[1])])
        rest = rest[size.end() + int(size[1]) :]
    return parts


@lru_cache(maxsize=1 << 16)
def work_named(name: str) -> tuple[Work, bool]:
    """What a kernel's name says of its class, and whether no operator can say otherwise; NOT_DEVICE: it says nothing."""
    if is_communication(name):
        return Work.COMMUNICATION, True
    # As its kind says, whose types and units a class does without: their patterns take longer than all else to compile.
    if re.match(_FUSED, name) or _is_product(name) or re.search(_COMPUTING, spelled_out(name)):
        return Work.COMPUTE, True
    return Work.COMPUTE if names_computation(name) else Work.NOT_DEVICE, False


def names_computation(name: str) -> bool:
    """Whether words of a kernel's or an operator's name speak of computation, and of nothing that may be between ranks."""
    spelled = spelled_out(name)
    if re.search(_MOVES, spelled):
        return False
    if re.match(_FUSED, name) or _is_product(name) or _is_copy_like(name):
        return True
    return re.search(_COMPUTES, spelled) is not None
