"""Kernels that only move memory against those that multiply."""

from __future__ import annotations

import pytest
from tests.trace_evidence import by_hand, found, kernels, quiet

from stepscope.diagnose.rules.memory_bandwidth_bound import RULE

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
PRODUCT = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"


def test_elementwise_work_and_norms_that_dominate_fire() -> None:
    finding = found(RULE, by_hand(*kernels((ADD, 400), (NORM, 200), (PRODUCT, 400))))
    assert "60% of the window goes to kernels that only move memory" in finding.title
    assert finding.stake_fraction == pytest.approx(0.6)
    assert any("matrix products: 40%" in line for line in finding.evidence)
    assert any(ADD[:40] in line for line in finding.evidence)


@pytest.mark.parametrize(
    ("largest", "said", "unsaid"),
    [
        (NORM, "bf16", "channels_last"),
        (ADD.replace("float", "c10::BFloat16"), "fuse", "bf16 activations"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", "channels_last", "sparse"),
    ],
)
def test_advice_is_for_the_kernels_that_run(largest: str, said: str, unsaid: str) -> None:
    finding = found(RULE, by_hand(*kernels((largest, 600), (PRODUCT, 400))))
    text = " ".join(advice.text for advice in finding.advice)
    assert said in text
    assert unsaid not in text


def test_kernels_that_a_compiler_fused_are_what_the_advice_leads_to() -> None:
    assert quiet(RULE, by_hand(*kernels(("triton_poi_fused_add_relu_3", 600), (PRODUCT, 400))))
