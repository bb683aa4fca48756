"""A profile of one device in place of a dry run's roofline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.dry_ranks import dry_rank, pointwise, product

from stepscope.core.errors import DataError
from stepscope.records.dry_run import DryOperator, DryRun
from stepscope.results.dry_calibration import calibrated_job
from stepscope.results.dry_job import DryJob

PRODUCT, ADD = product(8192, 8192, 8192), pointwise("add", 1 << 20, inputs=2)


def profile(folder: Path, *, dims: list[list[int]] | None, took_us: int = 4000) -> Path:
    """A trace of one product on an H100."""
    args = {"External id": 1} | ({} if dims is None else {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 2})
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 20, "args": args},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5,
         "args": {"External id": 1, "correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12, "dur": took_us,
         "args": {"External id": 1, "correlation": 7, "device": 0, "stream": 7}},
    ]  # fmt: skip
    path = folder / "rank-0.json"
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": events}))
    return path


def job(*operators: DryOperator, gpu: str = "h100-sxm") -> DryJob:
    run = DryRun(command=("train.py",), folder="", argv=(), gpus=(8,), gpu=gpu, ranks_per_node=8)
    return DryJob(folder=Path(), run=run, ranks=(dry_rank(operators),))


def test_a_measured_product_takes_its_time_and_on_another_gpu_as_much_more_than_its_roofline(tmp_path: Path) -> None:
    trace = profile(tmp_path, dims=[[8192, 8192], [8192, 8192]])
    made, text = calibrated_job(job(PRODUCT), trace)
    assert text == "100% of computation as measured on H100 SXM5 80GB"
    assert made.largest.parts["forward"] == pytest.approx(4e6, rel=1e-6)
    slower, _ = calibrated_job(job(PRODUCT, gpu="a100-sxm4-80gb"), trace)
    before = {gpu: job(PRODUCT, gpu=gpu).largest.parts["forward"] for gpu in ("h100-sxm", "a100-sxm4-80gb")}
    expected = 4e6 * before["a100-sxm4-80gb"] / before["h100-sxm"]
    assert slower.largest.parts["forward"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dims", [None, [[64, 64], [64, 64]]])
def test_a_profile_of_another_script_or_without_shapes_is_refused(tmp_path: Path, dims: list[list[int]] | None) -> None:
    with pytest.raises(DataError, match="no operator has the shapes" if dims is None else "measures 0% of"):
        calibrated_job(job(PRODUCT, ADD), profile(tmp_path, dims=dims))
