"""The precisions: where they are refused, and what they do to a module and to torch's switches."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.records.precision import PRECISIONS, parameter_dtype, refuse


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16"])
def test_the_cpu_runs_float32_and_bfloat16(precision: str) -> None:
    assert refuse(precision, device="cpu") is None


def test_tf32_is_refused_on_the_cpu() -> None:
    assert "tensor cores" in (refuse("tf32", device="cpu") or "")
    assert refuse("tf32", device="cuda") is None


def test_float16_autocast_is_refused_on_the_cpu_unless_shapes_are_tiny() -> None:
    assert "1 GFLOP/s" in (refuse("amp_fp16", device="cpu") or "")
    assert refuse("amp_fp16", device="cpu", tiny=True) is None
    assert refuse("tf32", device="cpu", tiny=True) is not None
    assert refuse("amp_fp16", device="cuda") is None


@pytest.mark.parametrize("precision", ["tf32", "amp_bf16", "bf16"])
def test_older_gpus_lack_the_units_and_an_unknown_one_is_not_accused(precision: str) -> None:
    assert "7.5" in (refuse(precision, device="cuda", compute_capability="7.5") or "")
    for capability in ("8.0", "9.0", "12.0", None):
        assert refuse(precision, device="cuda", compute_capability=capability) is None


def test_only_pure_bf16_changes_what_gradients_are_stored_in() -> None:
    assert {p for p in PRECISIONS if parameter_dtype(p) != "float32"} == {"bf16"}


def test_an_unknown_precision_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'bf16'"):
        refuse("fb16", device="cpu")


class TestNumerics:
    torch = pytest.importorskip("torch", reason="the rank half of precision")

    @pytest.mark.parametrize(("precision", "setting"), [("fp32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")])
    def test_tf32_switches_are_set_and_put_back(self, precision: str, setting: str) -> None:
        from stepscope.rank.precision import Numerics, _read_tf32_switches

        before = _read_tf32_switches()
        numerics = Numerics(precision, self.torch.device("cpu"))
        assert set(_read_tf32_switches()) == {setting}
        numerics.close()
        assert _read_tf32_switches() == before

    @pytest.mark.parametrize(
        ("precision", "stored", "computed"),
        [
            ("fp32", "float32", "float32"),
            ("amp_bf16", "float32", "bfloat16"),
            ("amp_fp16", "float32", "float16"),
            ("bf16", "bfloat16", "bfloat16"),
        ],
    )
    def test_storage_and_arithmetic_have_the_dtypes_of_the_precision(
        self, precision: str, stored: str, computed: str
    ) -> None:
        from stepscope.rank.precision import Numerics

        torch = self.torch
        numerics = Numerics(precision, torch.device("cpu"))
        module = numerics.prepare(torch.nn.Linear(4, 3))
        labels = torch.tensor([0, 2])
        x, y = numerics.inputs(torch.randn(2, 4), labels)
        with numerics.autocast():
            output = module(x)
        numerics.backward(output.float().sum())
        assert module.weight.dtype == module.weight.grad.dtype == getattr(torch, stored)
        assert output.dtype == getattr(torch, computed)
        assert y is labels
        numerics.close()

    def test_gradients_are_clipped_after_the_scale_is_taken_off(self) -> None:
        from stepscope.rank.precision import Numerics

        torch = self.torch
        numerics = Numerics("amp_fp16", torch.device("cpu"))
        weight = torch.nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        numerics.backward((weight * torch.tensor([3.0, 0.0, 4.0, 0.0])).sum())
        numerics.step(optimizer, clip=lambda: torch.nn.utils.clip_grad_norm_([weight], 1.0))
        assert torch.allclose(weight, torch.tensor([-0.6, 0.0, -0.8, 0.0]), atol=1e-5)
        numerics.close()
