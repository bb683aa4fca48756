"""Products that leave the tensor cores idle."""

from __future__ import annotations

import pytest
from tests.trace_evidence import by_hand, found, kernels, quiet, skipped

from stepscope.diagnose.rules.no_tensor_cores import RULE

V100 = "Tesla V100-SXM2-32GB"
A100 = "NVIDIA A100-SXM4-80GB"
FP32 = "volta_sgemm_128x64_nn"
OTHER = "void at::native::vectorized_elementwise_kernel<4>"


def test_fp32_products_on_a_v100_fire() -> None:
    finding = found(RULE, by_hand(*kernels((FP32, 600), (OTHER, 400)), device=V100))
    assert finding.title == "matrix products do not use the tensor cores: 60% of the window"
    assert finding.stake_fraction == pytest.approx(0.6 * (1 - 15.7 / 125), abs=0.005)
    assert any("100% FP32 on the vector units" in line for line in finding.evidence)


def test_fp32_where_tf32_is_to_be_had_is_left_to_the_rule_with_the_one_line_remedy() -> None:
    said = quiet(RULE, by_hand(*kernels(("ampere_sgemm_128x64_nn", 600), (OTHER, 400)), device=A100))
    assert "fp32-matmul" in said


def test_a_device_without_a_name_and_kernels_that_do_not_tell() -> None:
    assert "neither its name nor its kernels" in skipped(RULE, by_hand(*kernels(("sgemm_32x32x32_NT", 600))))
