"""FP32 products without TF32, on GPUs that have it."""

from __future__ import annotations

import pytest
from tests.trace_evidence import by_hand, found, kernels, quiet, skipped

from stepscope.diagnose.rules.fp32_matmul import RULE

A100 = "NVIDIA A100-SXM4-80GB"
FP32 = "ampere_sgemm_128x64_nn"
TF32 = "ampere_s1688gemm_128x128_ldg8_f2f_stages_32x1_tn"
OTHER = "void at::native::vectorized_elementwise_kernel<4>"


def test_fp32_products_on_an_a100_fire_with_what_the_peaks_allow() -> None:
    finding = found(RULE, by_hand(*kernels((FP32, 600), (OTHER, 400)), device=A100))
    assert finding.title == "60% of the window is FP32 matrix products without TF32"
    assert finding.stake_fraction == pytest.approx(0.6 * (1 - 19.5 / 156))
    assert any("TF32 has 8.0 times the peak" in line for line in finding.evidence)
    assert "set_float32_matmul_precision('high')" in (finding.advice[0].command or "")


def test_tf32_products_are_quiet() -> None:
    assert "0%" in quiet(RULE, by_hand(*kernels((TF32, 600), (OTHER, 400)), device=A100))


def test_the_kernels_tell_where_the_device_has_no_name() -> None:
    finding = found(RULE, by_hand(*kernels((FP32, 600), (OTHER, 400))))
    assert finding.stake_fraction == pytest.approx(0.6)
    assert "neither its name nor its kernels" in skipped(RULE, by_hand(*kernels(("volta_sgemm_128x64_nn", 600))))
