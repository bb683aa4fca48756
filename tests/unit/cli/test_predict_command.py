"""``stepscope predict`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import Ran

from stepscope.core.errors import ExitCode
from stepscope.records import codec
from stepscope.records.calibration import CalibratedMachine, Calibration, CollectiveFit, Curve, Knot, Line, SizeError

ASKED = ["predict", "--collective", "all_reduce", "--gpus", "64", "--gpu", "h100-sxm"]


def test_one_size_shows_time_rate_choice_alternatives_and_interval(ran: Ran) -> None:
    code, text, _ = ran(*ASKED, "--size", "25MiB", "--gpus-per-node", "8", "--network", "infiniband-ndr")
    assert code == ExitCode.OK
    for word in ("all_reduce of 25.0 MiB on 64 x H100 SXM5", "80%:", "busbw", "algorithm", "why", "chosen", "ring"):
        assert word in text


def test_json_has_what_the_text_has(ran: Ran) -> None:
    code, text, _ = ran(*ASKED, "--sizes", "1K:1M:32", "--json")
    document = json.loads(text)
    assert code == ExitCode.OK
    assert document["schema"] == "stepscope.predict/1"
    assert [entry["size_bytes"] for entry in document["predictions"]] == [1024, 32768, 1048576]
    first = document["predictions"][0]
    assert first["low_ns"] < first["time_ns"] < first["high_ns"]
    assert {"algorithm", "protocol", "offered", "time_ns"} <= set(first["alternatives"][0])


def test_several_sizes_are_a_table(ran: Ran) -> None:
    _, text, _ = ran(*ASKED, "--sizes", "1K:1G:32")
    first, *rest = text.splitlines()
    assert first.startswith("all_reduce on ")
    assert " at 1.00 KiB to " in first
    assert [line.split()[0] + line.split()[1] for line in rest if "iB" in line and "to" in line] == [
        "1.00KiB", "32.0KiB", "1.00MiB", "32.0MiB", "1.00GiB",
    ]  # fmt: skip


def test_a_barrier_needs_no_size(ran: Ran) -> None:
    code, text, _ = ran("predict", "--collective", "barrier", "--gpus", "8", "--gpu", "h100-sxm")
    assert code == ExitCode.OK
    assert "busbw" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict"], "nothing to predict"),
        (["predict", "--collective", "allreduc"], "did you mean 'all_reduce'"),
        (["predict", "--collective", "all_reduce"], "--gpus"),
        (ASKED, "the size is missing"),
        ([*ASKED, "--size", "1K", "--sizes", "1K:2K"], "both"),
        (["predict", "--collective", "all_reduce", "--gpus", "8", "--size", "1K"], "the GPU is missing"),
        (["predict", "--collective", "all_reduce", "--gpus", "8", "--size", "1K", "--gpu", "h100-smx"], "h100-sxm"),
        ([*ASKED, "--size", "1K", "--network", "infinband-ndr"], "did you mean 'infiniband-ndr'"),
        ([*ASKED, "--size", "1K", "--caller", "tourch"], "did you mean 'torch'"),
        ([*ASKED, "--size", "1K", "--calib", "absent.json"], "--calib does not go with --gpu"),
        (
            ["predict", "--collective", "all_reduce", "--gpus", "8", "--size", "1K", "--calib", "absent.json"],
            "cannot read",
        ),
        ([*ASKED, "--size", "1K", "--adapters", "0"], "adapters"),
        (["predict", "--validate", "absent"], "python -m benchmarks.validate absent"),
    ],
)
def test_bad_input_is_told_and_ends_with_2(arguments: list[str], said: str, ran: Ran) -> None:
    code, _, told = ran(*arguments)
    assert code == ExitCode.USAGE
    assert said in told


def calibration_file(folder: Path) -> Path:
    line = Line(
        alpha_ns=1e5, alpha_ns_low=None, alpha_ns_high=None, beta_bytes_per_s=1e9, beta_bytes_per_s_low=None,
        beta_bytes_per_s_high=None, steps=2, wire_factor=1.0, r_squared=1.0, mean_relative_error=0.01,
        max_relative_error=0.02,
    )  # fmt: skip
    curve = Curve(
        family="line", knots=(Knot(size_bytes=1024, time_ns=2e5), Knot(size_bytes=2**20, time_ns=1.25e6)),
        mean_relative_error=0.01, max_relative_error=0.02, cross_validated_error=0.03,
    )  # fmt: skip
    errors = (SizeError(size_bytes=1024, measured_ns=2e5, line_ns=2e5, curve_ns=2e5),)
    fit = CollectiveFit(
        op="all_reduce", dtype="float32", in_place=True, pattern=None, world_size=2, placement="2", backend="gloo",
        device="cpu", network=None, algorithm="gloo", line=line, curve=curve, errors=errors, line_fails=None,
    )  # fmt: skip
    machine = CalibratedMachine(
        hosts=("another-host",), cpu_model=None, usable_cores=None, gpus=(), torch_version=None, backend_version=None
    )
    file = folder / "calib.json"
    file.write_bytes(codec.encode(Calibration(run="r", machine=machine, fits=(fit,))))
    return file


def test_a_calibration_is_used_and_another_machine_is_warned_about(tmp_path: Path, ran: Ran) -> None:
    file = calibration_file(tmp_path)
    asked = ["predict", "--collective", "all_reduce", "--size", "1MiB", "--gpus", "2", "--dtype", "fp32"]
    code, text, told = ran(*asked, "--calib", file, "--json")
    assert code == ExitCode.OK
    (entry,) = json.loads(text)["predictions"]
    assert entry["time_ns"] == pytest.approx(1.25e6, rel=0.01)
    assert entry["busbw_bytes_per_s"] == pytest.approx(2**20 / 1.25e-3, rel=0.01)
    assert "another-host" in told
    code, _, told = ran(*asked[:2], "all_to_all", *asked[3:], "--calib", file)
    assert code == ExitCode.USAGE
    assert "all_to_all" in told


def test_what_is_no_calibration_is_not_called_damaged(tmp_path: Path, ran: Ran) -> None:
    asked = ["predict", "--collective", "all_reduce", "--size", "1MiB", "--gpus", "2", "--calib"]
    results = tmp_path / "results.jsonl"
    results.write_text("{}\n{}\n")
    code, _, told = ran(*asked, results)
    assert code == ExitCode.USAGE
    assert f"`stepscope calibrate {tmp_path}` makes" in " ".join(told.split())
    assert "delete" not in told
    file = calibration_file(tmp_path)
    document = json.loads(file.read_text())
    document["fits"][0]["curve"]["knots"] = []
    file.write_text(json.dumps(document))
    code, _, told = ran(*asked, file)
    assert code == ExitCode.USAGE
    assert "fit 1 (all_reduce on 2 ranks) has no curve" in told


STEP = [
    "predict",
    "--model",
    "llama3-8b",
    "--gpu",
    "h100-sxm",
    "--network",
    "infiniband-ndr",
    "--layout",
    "mbs=2,seq=4096",
]


def test_a_named_model_on_several_numbers_of_gpus(ran: Ran, tmp_path: Path) -> None:
    chart = tmp_path / "scaling.svg"
    code, text, _ = ran(*STEP, "--gpus", "64,8", "--layout", "zero=3", "--chart", chart)
    assert code == ExitCode.OK
    for word in ("llama3-8b on 64 x H100", "80%:", "efficiency", "knee", "MFU", "causal", "fits", "computation"):
        assert word in text
    assert "GPUs: " in chart.read_text()


def test_memory_and_one_change(ran: Ran) -> None:
    _, text, _ = ran(*STEP, "--gpus", "64", "--memory", "--what-if", "gpu=b200")
    for word in ("does not fit", "optimizer state", "cheapest first", "with gpu=b200", "x the speed"):
        assert word in text


def test_a_step_as_json(ran: Ran) -> None:
    _, text, _ = ran(*STEP, "--gpus", "8,16", "--json")
    document = json.loads(text)
    first = document["predictions"][0]
    assert document["kind"] == "step"
    assert [p["gpus"] for p in document["predictions"]] == [8, 16]
    assert sum(first["budget_s"].values()) == pytest.approx(first["step_s"])
    assert first["low_s"] < first["step_s"] < first["high_s"]
    assert set(first["mfu"]) == {"causal", "non-causal", "no attention"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpus", "8", "--size", "1K"], "--model does not go with --size"),
        (["--gpus", "8", "--chart", "x.png"], "several numbers of GPUs"),
        (["--gpus", "8,16", "--chart", "x.doc"], "is not a picture"),
        (["--gpus", "8", "--measured", "8"], "give GPUS=TOKENS_PER_SECOND"),
        (["--gpus", "8", "--measured", "8=9e6"], "of the peak of bf16"),
        (["--gpus", "8", "--measured", "8=900"], "further off than any machine"),
        ([], "--gpus is missing"),
        (["--gpus", "10000000"], "1,000,000"),
        (["--gpus", "8", "--model", "llama9"], "unknown model 'llama9'"),
    ],
)
def test_a_step_that_cannot_be_predicted(more: list[str], said: str, ran: Ran) -> None:
    code, _, text = ran(*STEP, *more)
    assert code == ExitCode.USAGE
    assert said in text


def test_outside_of_what_was_seen_the_answer_says_so(ran: Ran) -> None:
    _, inside, _ = ran(*STEP, "--gpus", "64", "--layout", "zero=3")
    _, outside, _ = ran(*STEP, "--gpus", "64", "--layout", "zero=3", "--gpu", "a100-pcie-40gb")
    assert "extrapolated" not in inside
    assert "extrapolated: A100-PCIE-40GB; calibrated on" in outside


def test_a_measured_speed_scales_all_predictions(ran: Ran, tmp_path: Path) -> None:
    chart = tmp_path / "scaling.svg"
    _, text, _ = ran(*STEP, "--gpus", "8,64", "--measured", "8=70000", "--chart", chart, "--json")
    first, last = json.loads(text)["predictions"]
    assert first["tokens_per_s"] == pytest.approx(70000)
    assert "from what was measured" in last["calibration"]


PLAN = ["plan", "--model", "llama3-8b", "--gpu", "h100-sxm", "--gpus", "16", "--network", "infiniband-ndr"]


def test_a_plan_ranks_layouts_and_says_why_others_lose(ran: Ran, tmp_path: Path) -> None:
    matrix = tmp_path / "plan.yaml"
    code, text, _ = ran(*PLAN, "--model", "gpt-1.3b", "--layout", "gbs=64", "--matrix", matrix)
    assert code == ExitCode.OK
    for word in ("best layout: dp=", "80%:", "Why not the obvious ones", "slower", "priced"):
        assert word in text
    assert "strategy: " in matrix.read_text()


def test_a_plan_as_json(ran: Ran) -> None:
    _, text, _ = ran(*PLAN, "--json")
    document = json.loads(text)
    assert document["schema"] == "stepscope.layout_plan/1"
    assert document["best"][0]["fits"]
    assert document["best"][0]["layout"]["global_batch"] == 1024
    assert {a["name"] for a in document["alternatives"]} >= {"DDP"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpus", "8,16"], "one number here"),
        (["--layout", "acc=2"], "give the global batch"),
        (["--model", "llama9"], "unknown model"),
        (["--layout", "gbs=64,tp=3"], "GPUs are not a multiple of tp 3 x pp 1 x cp 1"),
        (["--gpus", "64", "--layout", "tp=64"], "32 heads are not divisible by tp 64"),
    ],
)
def test_a_plan_that_cannot_be_made(more: list[str], said: str, ran: Ran) -> None:
    code, _, text = ran(*PLAN, *more)
    assert code == ExitCode.USAGE
    assert said in text


def test_a_profile_of_the_host_asks_for_prices_of_its_network_and_for_no_gpu(tmp_path: Path, ran: Ran) -> None:
    trace = tmp_path / "rank-0.json"
    span = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    trace.write_text(json.dumps({"traceEvents": [span]}))
    asked = ("predict", "--gpus", "2", "--calibrate", str(trace))
    code, _, said = ran(*asked, "--", "python", "train.py")
    assert (code, "--calib is missing" in said) == (ExitCode.USAGE, True)
    code, _, said = ran(*asked, "--calib", "c.json", "--network", "infiniband-ndr", "--", "python", "train.py")
    assert (code, "computes on the host" in said) == (ExitCode.USAGE, True)
    code, _, said = ran("predict", "--gpus", "2", "--gpu", "h100-sxm", "--calib", "c.json", "--", "python", "train.py")
    assert (code, "--calib: GPUs are priced by their network" in said) == (ExitCode.USAGE, True)
