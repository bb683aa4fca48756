"""`stepscope calibrate` on measured training runs and on GPUs' collectives, and what `predict --calib` makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.comm_rows import SIZES, calibration, fit, sweep
from tests.commands import Ran

from stepscope.predict.collectives.choose import known_gpu, predict_collective
from stepscope.predict.step.layout import Cluster, Layout
from stepscope.predict.step.measured import calibrated, fit_machine, shipped
from stepscope.predict.step.model import find_model
from stepscope.predict.step.step import predict_step
from stepscope.records import codec
from stepscope.records.calibration import Calibration, MatmulRate

HEAD = "accelerator,n_gpus,model_key,seq_len,micro_batch,global_batch,precision,tp,pp,sharding,tokens_per_s_per_gpu"
MODEL = find_model("llama3-8b")
H100 = known_gpu("h100-sxm")


def predicted(gpus: int, micro: int = 1) -> float:
    layout = Layout(
        dp=gpus, zero=3, micro_batch=micro, global_batch=micro * gpus, seq_len=4096, reduce_bytes=2, precision="bf16"
    )
    return predict_step(MODEL, Cluster(gpu=H100, gpus=gpus), layout, shipped(H100, MODEL)).tokens_per_s_per_gpu


def table(folder: Path, speeds: dict[int, float], gpu: str = "H100_SXM") -> Path:
    lines = [f"{gpu},{n},llama3-8b,4096,1,{n},bf16,1,1,fsdp,{speed}" for n, speed in speeds.items()]
    file = folder / "mine.csv"
    file.write_text("\n".join([HEAD, *lines]) + "\n")
    return file


def test_rows_of_runs_correct_what_is_predicted(tmp_path: Path, ran: Ran) -> None:
    file = table(tmp_path, {8: 0.8 * predicted(8), 16: 0.8 * predicted(16)})
    code, out, _ = ran("calibrate", file, "--json")
    assert code == 0
    made = codec.decode(out.encode(), Calibration, source="calib.json")
    assert (tmp_path / "calib.json").read_text() == out
    (step,) = made.steps
    (part,) = step.parts
    assert (step.accelerator, step.gpus, part.name, part.samples) == ("h100-sxm", (8, 16), "factor", 2)
    assert part.value == pytest.approx(1.25)
    assert (part.error_before, part.error, part.left_out_error) == pytest.approx((0.25, 0.0, 0.0))

    asked = ("predict", "--model", "llama3-8b", "--gpu", "h100-sxm", "--gpus", "8", "--layout", "zero=3,mbs=1,seq=4096")
    figures: list[dict[str, Any]] = []
    for more in ((), ("--calib", str(tmp_path / "calib.json"))):
        code, out, _ = ran(*asked, *more, "--json")
        assert code == 0
        figures += json.loads(out)["predictions"]
    plain, mine = figures
    assert mine["step_s"] == pytest.approx(1.25 * plain["step_s"])
    assert mine["high_s"] / mine["low_s"] < plain["high_s"] / plain["low_s"]
    assert "factor x1.25" in mine["calibration"]


def test_one_row_is_enough_and_tells_no_error_where_left_out(tmp_path: Path, ran: Ran) -> None:
    code, out, _ = ran("calibrate", table(tmp_path, {8: predicted(8)}), "--json")
    assert code == 0
    assert json.loads(out)["steps"][0]["parts"][0]["left_out_error"] is None


@pytest.mark.parametrize(
    ("gpu", "speed", "why"),
    [
        ("H100_SXM", 1e9, "a speed above the GPU's peak"),
        ("H100_SXM", 1.0, "more than 5 times off"),
        ("XPU9", 5000.0, "'xpu9' is not in the accelerator table"),
    ],
)
def test_rows_that_cannot_be_are_refused(gpu: str, speed: float, why: str, tmp_path: Path, ran: Ran) -> None:
    code, _, err = ran("calibrate", table(tmp_path, {8: speed}, gpu))
    assert code != 0
    assert why in err
    assert not (tmp_path / "calib.json").exists()


def test_a_calibration_of_another_gpu_is_refused(tmp_path: Path, ran: Ran) -> None:
    ran("calibrate", table(tmp_path, {8: predicted(8)}))
    file = str(tmp_path / "calib.json")
    for command in ("predict", "plan"):
        words = (command, "--model", "llama3-8b", "--gpu", "b200", "--gpus", "8", "--calib", file)
        code, _, err = ran(*words)
        assert code == 2
        assert "has no steps on b200" in err
        assert "h100-sxm" in err


def test_products_and_collectives_of_gpus_correct_their_parts() -> None:
    rates = {"gemm_share": 0.9, "comm_rate": 0.5}
    op = fit(sweep(sizes=SIZES), alpha_us=10, rate=1e9)
    size = 1 << 28
    time = predict_collective(op.op, size, n_gpus=op.world_size, gpu=H100, gpus_per_node=op.world_size).time_ns
    errors = (replace(op.errors[0], size_bytes=size, measured_ns=time / rates["comm_rate"]),)
    peak = H100.peak("bf16")
    assert isinstance(peak, float)
    plain = calibration(
        replace(op, device="cuda", placement=str(op.world_size), dtype="float32", network=None, errors=errors)
    )
    measured = replace(
        plain, machine=replace(plain.machine, gpus=("NVIDIA H100 80GB HBM3",)),
        matmul=(MatmulRate(dtype="bf16", size=8192, flops_per_s=rates["gemm_share"] * peak * H100.reached),),
    )  # fmt: skip
    steps, unused = fit_machine(measured)
    assert unused == ()
    assert {part.name: part.value for part in steps[0].parts} == pytest.approx(rates)
    before, after = shipped(H100, MODEL), calibrated(shipped(H100, MODEL), replace(measured, steps=steps), H100)
    for name, rate in rates.items():
        assert getattr(after, name) == pytest.approx(rate * getattr(before, name))
    assert after.reach == before.reach
    assert fit_machine(plain) == ((), ())
    unknown = replace(measured, machine=replace(measured.machine, gpus=("Banana 9000",)))
    assert fit_machine(unknown)[0] == ()
    assert "Banana" in fit_machine(unknown)[1][0]


def test_what_is_not_modelled_is_refused_in_words(ran: Ran) -> None:
    asked = ("predict", "--model", "llama3-8b", "--gpu", "b200", "--gpus", "8", "--layout")
    for layout, why in (("precision=nvfp4", "FP4 is not modelled"), ("lora=16", "LoRA is not modelled")):
        code, _, err = ran(*asked, layout)
        assert code == 2
        assert why in err


def test_a_network_is_described_as_tables_do(ran: Ran) -> None:
    asked = ("predict", "--collective", "all_reduce", "--size", "1GiB", "--gpu", "b200", "--gpus", "64", "--json")
    times = {}
    for network in ("8x 50GBps EFA v4", "efa-p6", "tcpx"):
        code, out, _ = ran(*asked, "--network", network)
        assert code == 0
        times[network] = json.loads(out)["predictions"][0]["time_ns"]
    assert times["8x 50GBps EFA v4"] == times["efa-p6"] < times["tcpx"]
    code, _, err = ran(*asked, "--network", "8x 50GBps carrier pigeon")
    assert code == 2
    assert "35 are known" in err
