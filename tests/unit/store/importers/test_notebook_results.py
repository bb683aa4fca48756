"""The notebook's benchmark_results_*.json: every row a run, nothing made up that a row does not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import evidence

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.records.training import TrainingRun
from stepscope.report.views import step_budget
from stepscope.results.epochs import exposed_fraction
from stepscope.results.joining import require_stated
from stepscope.results.scaling import baseline_of
from stepscope.store.importers import detect, read_foreign

MODES = {"single_gpu": "single", "dp_naive": "naive", "dp_interleaved": "interleaved", "ddp_builtin": "ddp"}


def row(mode: str, gpus: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """As the notebook writes it; ``seconds``: of an epoch after the first, which takes twice as long."""
    times = [2 * seconds, seconds, seconds]
    fields: dict[str, Any] = {
        "mode": mode, "n_gpus": gpus, "n_params": 63_000_000, "model_size": "base", "use_amp": False,
        "grad_accum_steps": 1, "epoch_times": times, "losses": [2.3, 2.2, 2.1], "final_accuracy": 0.101,
        "avg_epoch_time": sum(times) / 3, "total_time": sum(times), "gpu_name": "NVIDIA A100 80GB PCIe",
    }  # fmt: skip
    if mode == "single_gpu":
        fields["comm_time"] = 0.0
    if mode == "dp_naive":
        fields |= {"comm_times": [0.9, 0.4, 0.6], "avg_comm_time": 1.9 / 3, "comm_time": 1.9}
    return fields | changes


def benchmark(**changes: Any) -> list[dict[str, Any]]:
    single = [row("single_gpu", 1, 8.0, **changes)]
    return single + [row(mode, n, 8.0 / n + 0.5, **changes) for n in (2, 4) for mode in list(MODES)[1:]]


def write(folder: Path, rows: Any, name: str = "benchmark_results_NVIDIA_A100_80GB_PCIe.json") -> Path:
    path = folder / name
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows, indent=2))
    return path


def by_id(imported: Imported) -> dict[str, TrainingRun]:
    return {run.run_id: run for run in imported.runs}


def test_each_row_is_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, benchmark())
    assert detect(path)[0] == "notebook_results"
    imported = read_foreign(path)
    assert imported.hardware == "NVIDIA A100 80GB PCIe"
    runs = by_id(imported)
    assert list(runs)[:3] == [
        "base-single-1gpu-fp32-ga1",
        "base-naive-2gpu-fp32-ga1",
        "base-interleaved-2gpu-fp32-ga1",
    ]
    ddp = runs["base-ddp-4gpu-fp32-ga1"]
    assert (ddp.world_size, ddp.strategy, ddp.precision, ddp.accumulation) == (4, "ddp", "fp32", 1)
    assert (ddp.model, ddp.dataset, ddp.num_parameters) == ("mlp base", "synthetic", 63_000_000)
    assert ddp.group == "mlp base on synthetic, fp32"
    assert ddp.label == "ddp on 4 ranks"
    assert (ddp.scaling, ddp.hardware, ddp.backend) == ("strong", "NVIDIA A100 80GB PCIe", "nccl")
    assert [e.duration_ns for e in ddp.epochs] == [5e9, 2.5e9, 2.5e9]
    assert [e.train_loss for e in ddp.epochs] == [2.3, 2.2, 2.1]
    assert ddp.epoch_ns is None
    assert len([e for e in ddp.epochs if e.duration_ns]) == 3


def test_speed_up_is_against_the_single_gpu_of_the_same_settings(tmp_path: Path) -> None:
    rows = benchmark() + benchmark(use_amp=True, grad_accum_steps=4)
    imported = read_foreign(write(tmp_path, rows))
    require_stated(evidence(*imported.runs))
    scaling = {r.run_id: r for r in evidence(*imported.runs).scaling}
    found = scaling["base-ddp-4gpu-amp-ga4"]
    assert found.baseline_id == "base-single-1gpu-amp-ga4"
    assert found.speedup == pytest.approx(8.0 / 2.5)
    assert found.rating == "poor" if found.efficiency <= 0.5 else "fair"
    assert {r.group for r in imported.runs} == {
        "mlp base on synthetic, fp32",
        "mlp base on synthetic, amp, accumulation 4",
    }


def test_communication_that_was_not_timed_is_unknown(tmp_path: Path) -> None:
    runs = by_id(read_foreign(write(tmp_path, benchmark())))
    per_epoch = {i: run.settings.get("exposed_comm_ns_per_epoch") for i, run in runs.items()}
    assert per_epoch["base-naive-2gpu-fp32-ga1"] == pytest.approx(0.5e9)  # first epoch dropped, as of epoch times
    assert {i for i, value in per_epoch.items() if value is not None} == {
        "base-naive-2gpu-fp32-ga1",
        "base-naive-4gpu-fp32-ga1",
    }
    assert all(run.exposed_comm_ns is None for run in runs.values())


def test_communication_by_epoch_is_drawn_as_chart_4_of_the_document(tmp_path: Path) -> None:
    """Naive runs alone, FP32 and AMP: 0.5 s of communication in epochs of 4.5 and 2.5 s, the first epoch left out."""
    runs = read_foreign(write(tmp_path, benchmark() + benchmark(use_amp=True))).runs
    shares = {run.run_id: exposed_fraction(run) for run in runs if exposed_fraction(run) is not None}
    assert shares == {
        f"base-naive-{n}gpu-{precision}-ga1": pytest.approx(0.5 / seconds)
        for n, seconds in ((2, 4.5), (4, 2.5))
        for precision in ("fp32", "amp")
    }
    (chart,) = step_budget.share_charts(runs)
    assert ": 20% of the step; least in " in chart.caption
    assert chart.caption.endswith(": 11%.")


def test_zero_times_of_communication_are_not_times(tmp_path: Path) -> None:
    (run,) = read_foreign(write(tmp_path, [row("dp_naive", 2, 4.0, comm_times=[0.0, 0.0, 0.0])])).runs
    assert "exposed_comm_ns_per_epoch" not in run.settings


def test_accuracy_is_of_the_training_data(tmp_path: Path) -> None:
    imported = read_foreign(write(tmp_path, benchmark()))
    run = imported.runs[0]
    assert run.test_accuracy is None
    assert [e.train_accuracy for e in run.epochs] == [None, None, 0.101]
    assert all(e.validation_accuracy is None for e in run.epochs)
    assert any("labels are random" in note for note in imported.remarks)


def test_batches_are_known_only_where_the_row_has_them(tmp_path: Path) -> None:
    (plain,) = read_foreign(write(tmp_path, [row("single_gpu", 1, 8.0)])).runs
    assert (plain.global_batch, plain.micro_batch, plain.samples_per_s, plain.step_ns) == (None,) * 4
    told = row("ddp_builtin", 4, 2.0, n_samples=65536, batch_size=4096, grad_accum_steps=4, lr=0.01)
    (run,) = read_foreign(write(tmp_path, [told])).runs
    assert (run.global_batch, run.micro_batch, run.steps_per_epoch) == (16384, 1024, 4)
    assert (run.dataset_size, run.settings["lr"]) == (65536, 0.01)
    assert run.samples_per_s.value == pytest.approx(32768)
    assert run.step_ns.value == pytest.approx(0.5e9)
    blocking = row("dp_naive", 2, 4.0, n_samples=65536, batch_size=4096)
    (run,) = read_foreign(write(tmp_path, [blocking])).runs
    assert run.exposed_comm_ns.value == pytest.approx(0.5e9 / 16)


def test_the_gpu_is_named_by_the_file_where_rows_do_not(tmp_path: Path) -> None:
    rows = [{k: v for k, v in each.items() if k != "gpu_name"} for each in benchmark()]
    assert read_foreign(write(tmp_path, rows)).hardware == "NVIDIA A100 80GB PCIe"
    assert read_foreign(write(tmp_path, rows, "benchmark_results.json")).hardware is None


def test_a_folder_of_two_machines_and_the_copy_that_the_notebook_leaves(tmp_path: Path) -> None:
    write(tmp_path, benchmark())
    write(tmp_path, benchmark(gpu_name="NVIDIA H100"), "benchmark_results_NVIDIA_H100.json")
    fast = [
        row("single_gpu", 1, 3.0, gpu_name="NVIDIA H200"),
        row("ddp_builtin", 2, 1.6, gpu_name="NVIDIA H200"),
    ]
    write(tmp_path, fast, "benchmark_results_NVIDIA_H200.json")
    write(tmp_path, fast, "benchmark_results.json")
    imported = read_foreign(tmp_path)
    assert imported.hardware == "NVIDIA A100 80GB PCIe, NVIDIA H100, NVIDIA H200"
    assert sum(run.hardware == "NVIDIA H200" for run in imported.runs) == 2
    assert any("counted once" in note for note in imported.notes)
    single, ddp = (run for run in imported.runs if run.hardware == "NVIDIA H200")
    assert baseline_of(ddp, imported.runs) is single


def test_runs_that_failed_are_missed(tmp_path: Path) -> None:
    rows = benchmark() + benchmark(model_size="xlarge")[:-2]
    imported = read_foreign(write(tmp_path, rows))
    (note,) = [note for note in imported.notes if "no row" in note]
    assert "no row for 2 runs" in note
    assert "mlp xlarge on synthetic, fp32: ddp on 4" in note


def test_a_loss_that_diverged_is_unknown(tmp_path: Path) -> None:
    text = json.dumps([row("single_gpu", 1, 8.0, losses=[2.3, float("nan"), float("inf")])])
    assert "NaN" in text
    (run,) = read_foreign(write(tmp_path, text)).runs
    assert [e.train_loss for e in run.epochs] == [2.3, None, None]
    assert run.status == "ok"
    assert any("loss of epoch 2 is nan" in note for note in run.notes)


def test_a_run_without_times_failed(tmp_path: Path) -> None:
    (run,) = read_foreign(write(tmp_path, [row("single_gpu", 1, 8.0, epoch_times=[0.0, None, -1])])).runs
    assert (run.status, run.epoch_ns) == ("error", None)
    assert [e.duration_ns for e in run.epochs] == [None] * 3


@pytest.mark.parametrize(
    "bad",
    [
        {"n_gpus": 0}, {"n_gpus": "4"}, {"n_gpus": True}, {"mode": 3}, {"model_size": None}, {"use_amp": "yes"},
        {"grad_accum_steps": 0}, {"mode": "single_gpu", "n_gpus": 4},
    ],
)  # fmt: skip
def test_a_damaged_row_is_left_out_and_named(tmp_path: Path, bad: dict[str, Any]) -> None:
    imported = read_foreign(write(tmp_path, [row("ddp_builtin", 2, 4.0), row("ddp_builtin", 2, 4.0) | bad, 5]))
    assert len(imported.runs) == 1
    assert any("row 1" in note and "left out" in note for note in imported.notes)
    assert any("row 2 is not an object" in note for note in imported.notes)


def test_rows_twice_are_two_runs(tmp_path: Path) -> None:
    imported = read_foreign(write(tmp_path, [row("ddp_builtin", 2, 4.0), row("ddp_builtin", 2, 5.0)]))
    assert [run.run_id for run in imported.runs] == ["base-ddp-2gpu-fp32-ga1", "base-ddp-2gpu-fp32-ga1-2"]


@pytest.mark.parametrize(
    ("cut", "why"),
    [(0.5, "cut off"), (0.0, "")],
)
def test_a_truncated_file_says_where(tmp_path: Path, cut: float, why: str) -> None:
    text = json.dumps(benchmark(), indent=2)
    path = write(tmp_path, text[: int(len(text) * cut)])
    with pytest.raises(DataError) as caught:
        read_foreign(path)
    assert path.name in str(caught.value)
    assert why in str(caught.value)


def test_mixed_text_in_the_middle_has_its_line(tmp_path: Path) -> None:
    lines = json.dumps(benchmark(), indent=2).splitlines()
    path = write(tmp_path, "\n".join([*lines[:30], "Killed", *lines[30:]]))
    with pytest.raises(DataError, match=r"json:31:\d+: not readable as JSON"):
        read_foreign(path)


def test_a_list_without_a_single_run_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [row("ddp_builtin", 2, 4.0, n_gpus=0)])
    with pytest.raises(DataError, match="no run in it"):
        read_foreign(path)


def test_names_of_others_stay_as_they_are(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\\input{x}"
    (run,) = read_foreign(write(tmp_path, [row(hostile, 2, 4.0, model_size=hostile)])).runs
    assert run.strategy == hostile
    assert run.model == f"mlp {hostile}"
    assert all(c.isalnum() or c in ".-" for c in run.run_id)
