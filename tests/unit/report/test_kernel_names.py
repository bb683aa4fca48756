from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.report.kernel_names import ELLIPSIS, elided, plain, short_names

SQRT = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, "
    "at::detail::Array<char*, 2> >(int, at::native::sqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"
    "::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2>)"
)
SUM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
    "unsigned int, float, 4> >(at::native::ReduceOp<float, float>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)"
    "#1}>(at::TensorIteratorBase&, int const&)::{lambda(int)#1}>(int, float)"
)
MANGLED = (
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm_"
    "xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorELi{}EEEEEvT_"
)


def _xmma(tile: str) -> str:
    return (
        f"sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize{tile}_stage4_warpsize2x2x1"
        "_g1_tensor16x8x8_execute_kernel_cudnn"
    )


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        (SQRT, "vectorized_elementwise<4, sqrt<float>>"),
        (SUM, "reduce_kernel<512, 1, sum_functor<float>>"),
        (COPY, "elementwise<128, 2, direct_copy<float>>"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_nn>(cutlass::Params)",
            "cutlass_80_tensorop_s1688gemm_64x64_nn",
        ),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 1>(float*)", "softmax_warp_forward<float, 1>"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("triton_poi_fused_add_relu_3", "triton_poi_fused_add_relu_3"),
        ("batched_transpose_16x32_half.kd", "batched_transpose_16x32_half"),
    ],
)
def test_a_short_name_keeps_function_and_what_it_does(name: str, short: str) -> None:
    assert short_names([name]) == {name: short}


def test_names_that_differ_in_the_middle_alone_show_that_middle() -> None:
    a, b = _xmma("128x128x16"), _xmma("64x64x64")
    shown = short_names([a, b])
    assert "128x128x16" in shown[a]
    assert "64x64x64" in shown[b]


def test_names_that_differ_in_left_out_numbers_show_them() -> None:
    names = [f"void f_with_a_long_name_of_its_own<float, {n}, AFunctorThatIsLong<float> >(int)" for n in (4, 8)]
    shown = short_names(names)
    assert len(set(shown.values())) == 2
    assert "4" in shown[names[0]]
    assert "8" in shown[names[1]]


def test_a_mangled_name_gives_the_function_and_its_arguments() -> None:
    assert plain(MANGLED.format(64)).startswith("kernel_grouped_conv_fwd_xdl_cshuffle_v3<")
    shown = short_names([MANGLED.format(64), MANGLED.format(128)])
    assert len(set(shown.values())) == 2


def test_eliding_keeps_both_ends() -> None:
    assert elided("abcdefghij", 7) == f"abc{ELLIPSIS}hij"
    assert elided("abc", 7) == "abc"


_TOKENS = st.sampled_from(
    (
        "void ", "at::", "f", "kernel", "<", ">", "(", ")", "{lambda(float)#1}", ", ", "::", "4", "operator()", "->", " ",
        "_ZN", "3abc",
    )
)  # fmt: skip


@given(st.lists(st.lists(_TOKENS, max_size=14).map("".join), max_size=8), st.integers(20, 60))
def test_any_names_become_short_and_stay_different(names: list[str], limit: int) -> None:
    shown = short_names(names, limit=limit)
    assert set(shown) == set(names)
    assert len(set(shown.values())) == len(set(names))
    assert all(len(s) <= limit for s in shown.values())
