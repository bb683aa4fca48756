"""What kernels of real traces work on, by their names."""

from __future__ import annotations

import pytest

from stepscope.traces.kernel_names import (
    BANDWIDTH,
    FUSED,
    MATRIX_FP32,
    MATRIX_TENSOR,
    MATRIX_UNKNOWN,
    MATRIX_VECTOR,
    OTHER,
    kernel_kind,
)

KINDS = {
    "ampere_sgemm_128x64_nn": MATRIX_FP32,
    "volta_sgemm_32x128_tn": MATRIX_FP32,
    "volta_scudnn_128x64_relu_interior_nn_v1": MATRIX_FP32,
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(cutlass_80_simt_sgemm::Params)": MATRIX_FP32,
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>": MATRIX_FP32,
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>": MATRIX_FP32,
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": MATRIX_TENSOR,
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": MATRIX_TENSOR,
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw": MATRIX_TENSOR,
    "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1_SN": MATRIX_TENSOR,
    "void cutlass::Kernel<cutlass_75_simt_hgemm_128x128_8x2_nn_align1>": MATRIX_VECTOR,
    "my_gemm_v2": MATRIX_UNKNOWN,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": BANDWIDTH,
    "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float>": BANDWIDTH,
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>": BANDWIDTH,
    "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>>": BANDWIDTH,
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>": BANDWIDTH,
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true>": BANDWIDTH,
    "triton_poi_fused_add_relu_3": FUSED,
    "triton_red_fused_native_layer_norm_0": FUSED,
    "void split_embedding_codegen_forward_unweighted_kernel<float>": OTHER,
    "fbgemm_gpu_permute_1D": OTHER,
    "SubTensorOpWithCastTensor1d": BANDWIDTH,
    "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>": MATRIX_FP32,
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>": MATRIX_FP32,
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void": BANDWIDTH,
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_follows_from_the_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind
