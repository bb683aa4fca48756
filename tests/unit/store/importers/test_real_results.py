"""Importers on the published result sets: every figure equals the file's own text, read another way here."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean, median

import pytest
from tests.unit.store.importers.shared_results import RESULTS, by_id, document, read, real

from stepscope.core.errors import DataError
from stepscope.records.training import TrainingRun
from stepscope.results.scaling import scaling_rows
from stepscope.store.foreign import read_foreign

pytestmark = real

MINI = RESULTS / "MiniTrainBench_8xA100"
L40S = RESULTS / "fsdp-benchmark_2xL40S"
CHECK = RESULTS / "nebius_16xH100"
MEMORY = RESULTS / "cs336_sharded_optimizer_2gpu"
WORKERS = RESULTS / "distributed-mlp_workers"
CLUSTERS = RESULTS / "csc_ml-benchmarks"
MACHINES = RESULTS / "lambda_deeplearning-benchmark"
NOTEBOOK = RESULTS / "5DParallel_notebook_outputs"
MEGATRON = RESULTS / "bigscience_megatron_v100"
GIB = 2**30


def rate(run: TrainingRun) -> float:
    assert run.samples_per_s is not None
    return run.samples_per_s.value


def step_ms(run: TrainingRun) -> float:
    assert run.step_ns is not None
    return run.step_ns.value / 1e6


def speedups(path: Path) -> dict[str, float]:
    return {row.run_id: round(row.speedup, 3) for row in scaling_rows(read_foreign(path).runs)}


def test_real_runs_equal_their_files() -> None:
    imported = read(MINI, key="minitrainbench")
    runs = by_id(imported)
    assert len(runs) == 8
    for path in sorted(MINI.glob("*dp_*.json")):
        told, run = document(path), runs[path.stem]
        assert run.step_ns is not None
        assert run.samples_per_s is not None
        assert run.samples_per_s.value == told["tokens_per_sec"]
        assert run.step_ns.value == pytest.approx(told["step_time_ms"] * 1e6, rel=1e-12)
        assert (run.world_size, run.strategy, run.global_batch, run.micro_batch, run.num_parameters) == (
            told["world_size"], told["strategy"], told["global_batch_size"], 2, 23240704,
        )  # fmt: skip
        assert run.peak_memory_bytes == told["max_cuda_memory_mb"] * 2**20
        assert run.hardware == "NVIDIA A100-SXM4-40GB"
        assert run.baseline_id == f"{told['strategy']}_1gpu"
        assert run.scaling == ("weak" if told["world_size"] > 1 else None)
    assert len({run.group for run in runs.values()}) == 1


def test_real_collectives_equal_their_file() -> None:
    path = MINI / "nccl_8gpu.json"
    rows, told = read(path, key="minitrainbench").comm_rows, document(path)["results"]
    assert len(rows) == len(told) == 15
    for found, line in zip(rows, told, strict=True):
        assert found.time_ns_mean == pytest.approx(line["latency_ms"] * 1e6, rel=1e-12)
        if line.get("split_mode") != "uneven":
            assert (found.op, found.size_bytes) == (line["operation"], line["bytes"])
            assert found.algbw_bytes_per_s == pytest.approx(line["bandwidth_gbps"] * 1e9, rel=1e-9)
    uneven = [found for found in rows if found.op == "all_to_all_v"]
    assert [found.size_bytes for found in uneven] == [28784, 29360240, 469762160]
    largest = next(found for found in rows if found.op == "all_reduce" and found.size_bytes == 67108864)
    assert largest.busbw_bytes_per_s == pytest.approx(93.29724175048928e9 * 1.75)


def test_gpu_and_batch_scaling() -> None:
    imported = read(L40S, key="gpu_batch_scaling")
    runs = by_id(imported)
    assert len(runs) == 8 + 4 * 6
    for path in sorted(L40S.glob("*.json")):
        told = document(path)
        lines = told.get("sweep_results", [told])
        for line in lines:
            run = runs[path.stem if line is told else f"{path.stem}-b{line['batch_size_per_gpu']}"]
            assert step_ms(run) == pytest.approx(line["avg_step_time_ms"], rel=1e-12)
            assert rate(run) == line["throughput_samples_per_sec"]
            assert (run.world_size, run.strategy, run.model) == (
                told["num_gpus"],
                told["mode"],
                told["model"],
            )
            assert run.micro_batch == line["batch_size_per_gpu"]
            assert run.global_batch == line["batch_size_per_gpu"] * told["num_gpus"]
            gib = line.get("max_peak_memory_gb", line.get("peak_memory_gb"))
            assert run.peak_memory_bytes == round(gib * GIB)
    two = runs["scaling_ddp_resnet50_2gpu"]
    assert (two.scaling, two.baseline_id, two.train_loss) == ("weak", "scaling_ddp_resnet50_1gpu", 0.0001)
    assert speedups(L40S)["scaling_ddp_resnet50_2gpu"] == round(1336.7 / 703.67, 3)
    assert imported.hardware == "NVIDIA L40S"
    assert any("PyTorch 2.5.1+cu121" in note and "535.216.03" in note for note in imported.notes)


def test_an_environment_report_alone_is_refused() -> None:
    with pytest.raises(DataError, match="holds no measurement"):
        read_foreign(L40S / "environment.txt")


def test_cluster_check() -> None:
    imported = read(CHECK, key="cluster_check")
    told = document(CHECK / "benchmark_16gpu.json")["results"]
    lines = told["nccl_benchmark"]["details"]["results_by_size"]
    assert [row.size_bytes for row in imported.comm_rows] == [n * 2**20 for n in (1, 10, 100, 1000)]
    for row, line in zip(imported.comm_rows, lines, strict=True):
        assert row.busbw_bytes_per_s is not None
        assert row.busbw_bytes_per_s == pytest.approx(line["bandwidth_gbps"] * 1e9, rel=0.006)  # 3 digits of time
        assert row.time_ns_mean == pytest.approx(line["latency_ms"] * 1e6)
        assert (row.op, row.world_size, row.hosts) == ("all_reduce", 16, 2)
        assert "bus bandwidth in GB/s, sizes in MiB" in row.notes[0]
    (run,) = imported.runs
    assert (rate(run), run.unit, run.world_size) == (137162.0, "tokens", 16)
    assert run.step_ns is None
    assert imported.hardware == "NVIDIA H100 80GB HBM3"


def test_optimizer_memory() -> None:
    imported = read(MEMORY, key="optimizer_memory")
    (run,) = imported.runs
    assert step_ms(run) == pytest.approx(227.126)
    assert (run.world_size, run.strategy, run.precision, run.num_parameters) == (
        2,
        "baseline",
        "bf16",
        3406809600,
    )
    assert run.peak_memory_bytes == round(51.301 * GIB)
    assert {kind: round(size / GIB, 3) for kind, size in run.memory.items()} == {
        "parameters": 12.691, "gradients": 12.691, "optimizer": 25.383, "other": 0.243,
    }  # fmt: skip
    assert run.memory["parameters"] == pytest.approx(run.num_parameters * 4, rel=1e-4)
    assert any("before_optimizer_step 28.344 GiB, after_optimizer_step 51.301 GiB" in note for note in run.notes)
    assert run.samples_per_s is None
    assert any("nothing to compare" in note for note in imported.notes)


def test_workers() -> None:
    runs = by_id(read(WORKERS, key="workers_scaling"))
    with (WORKERS / "weak_scaling.csv").open() as file:
        lines = list(csv.DictReader(file))
    for workers in (1, 2, 4, 8):
        mine = [line for line in lines if line["workers"] == str(workers)]
        run = runs[f"weak-scaling-{workers}"]
        times = [float(line["wall_sec"]) for line in mine]
        assert [round((epoch.duration_ns or 0) / 1e9, 6) for epoch in run.epochs] == times
        assert rate(run) == pytest.approx(3000 * workers / fmean(times))
        assert (run.scaling, run.dataset_size, run.baseline_id) == ("weak", 3000 * workers, "weak-scaling-1")
    text = (WORKERS / "speedup_table.txt").read_text()
    found = speedups(WORKERS)
    for workers, time_s, speedup in re.findall(r"^(\d)\s+([\d.]+)\s+([\d.]+)", text, re.M):
        run = runs[f"speedup-table-{workers}"]
        assert run.scaling == "strong"
        assert [(epoch.duration_ns or 0) / 1e9 for epoch in run.epochs] == [pytest.approx(float(time_s))]
        assert found[run.run_id] == pytest.approx(float(speedup), abs=0.001)
    assert found["weak-scaling-2"] == pytest.approx(2 * fmean((45.617758, 45.452957, 54.665552)) / 30.730333, abs=1e-3)


def test_throughput_of_clusters() -> None:
    imported = read(CLUSTERS, key="throughput_markdown")
    runs = imported.runs
    lines = (CLUSTERS / "results.md").read_text().splitlines()
    assert len(runs) == len(lines) - 2
    for run, line in zip(runs, lines[2:], strict=True):
        name, framework, cluster, gpus, date, figure = (cell.strip() for cell in line.strip("|").split("|"))
        assert (run.world_size, run.hardware) == (int(gpus), cluster)
        assert (run.settings["framework"], run.settings["date"]) == (framework, date)
        if figure == "ERROR":
            assert (run.status, run.samples_per_s) == ("error", None)
        else:
            assert (run.status, rate(run)) == ("ok", float(figure))
        assert run.unit == ("samples" if name.startswith("run_clm") else "images")
        assert run.precision == ("fp16" if name.endswith("fp16") else None)
        assert run.scaling is None
    assert [run.status for run in runs].count("error") == 1
    known = by_id(imported)
    assert known["mahti-2022-05-18-ddp-synthetic-8"].baseline_id == "mahti-2022-05-18-ddp-synthetic-1"
    assert known["mahti-2022-05-18-horovod-synthetic-8"].baseline_id == "mahti-2022-05-18-ddp-synthetic-1"
    assert speedups(CLUSTERS)["mahti-2022-05-18-ddp-synthetic-8"] == round(5502.49 / 758.90, 3)


def test_throughput_of_machines() -> None:
    imported = read(MACHINES, key="machine_throughput_csv")
    with (MACHINES / "pytorch-train-throughput-v2-fp16.csv").open() as file:
        lines = list(csv.reader(file))
    models, rows = lines[0][1:], lines[1:]
    assert len(imported.runs) == len(models) * len(rows)
    cells = [(row[0], model, figure) for row in rows for model, figure in zip(models, row[1:], strict=True)]
    for run, (machine, model, figure) in zip(imported.runs, cells, strict=True):
        gpus = re.findall(r"(?<![A-Za-z0-9])(\d+)x(?=[A-Z])", machine)
        assert [str(run.world_size)] == gpus
        assert (run.model, run.precision) == (model, "fp16")
        assert run.run_id.startswith(re.sub(r"[^a-z0-9.]+", "-", machine.lower()))
        if float(figure) == 0:
            assert (run.status, run.samples_per_s) == ("error", None)
        else:
            assert rate(run) == float(figure)
    assert [run.status for run in imported.runs].count("error") == sum(float(c[2]) == 0 for c in cells) > 0
    four = by_id(imported)["lambdaod-4x-texas-4xh100-80gb-sxm5-192-222-52-139-v2-resnet50"]
    assert four.baseline_id == "lambdaod-4x-texas-1xh100-80gb-sxm5-192-222-52-139-v2-resnet50"
    assert speedups(MACHINES)[four.run_id] == round(11057.0 / 2791.0, 3)
    assert any("pytorch-train-bs-fp16.csv: batch sizes of" in note for note in imported.notes)


def test_a_table_of_batch_sizes_alone_is_refused() -> None:
    with pytest.raises(DataError, match="without any throughput"):
        read_foreign(MACHINES / "pytorch-train-bs-fp16.csv")


def test_notebook_on_strategies() -> None:
    imported = read(NOTEBOOK, key="notebook_text")
    runs = by_id(imported)
    text = (NOTEBOOK / "shallowspeed_2xA100pcie_tables.txt").read_text()
    names = {
        "single_gpu": "single",
        "dp_naive": "naive",
        "dp_interleaved": "interleaved",
        "ddp_builtin": "ddp",
    }
    short = re.findall(r"^(\w+) +(\w+) +(\d) +([\d,]+) +([\d.]+)s +([\d.]+)$", text, re.M)
    assert len(short) == 12
    for model, mode, gpus, parameters, epoch_s, accuracy in short:
        run = runs[f"{model}-{names[mode]}"]
        assert run.epoch_ns is not None
        assert run.epoch_ns.value / 1e9 == pytest.approx(float(epoch_s))
        assert (run.world_size, run.num_parameters) == (int(gpus), int(parameters.replace(",", "")))
        assert any(f"accuracy {float(accuracy):g}:" in note for note in run.notes)
        assert run.baseline_id == f"{model}-single"
        assert run.hardware == "NVIDIA A100 80GB PCIe"
    long = re.findall(r"^(\w+) +(\w+) +\d +[\d.]+M +[\d.]+s +([\d.]+)s +(\d+)/s +([\d.]+)x", text, re.M)
    assert len(long) == 12
    found = speedups(NOTEBOOK)
    for model, mode, comm_s, per_s, speedup in long:
        run = runs[f"{model}-{names[mode]}"]
        assert rate(run) == float(per_s)
        assert run.settings.get("exposed_comm_ns_per_epoch", 0.0) == pytest.approx(float(comm_s) * 1e9)
        assert found[run.run_id] == pytest.approx(float(speedup), abs=0.0051)
        assert run.scaling == ("strong" if run.world_size == 2 else None)


def test_notebook_log_alone_has_the_same_times() -> None:
    alone = by_id(read(NOTEBOOK / "shallowspeed_2xA100pcie_env_and_run.txt", key="notebook_text"))
    tables = by_id(read(NOTEBOOK / "shallowspeed_2xA100pcie_tables.txt", key="notebook_text"))
    assert {name: run.epoch_ns for name, run in alone.items()} == {n: run.epoch_ns for n, run in tables.items()}
    assert alone["small-naive"].settings["exposed_comm_ns_per_epoch"] == pytest.approx(0.0168e9)
    assert alone["small-single"].dataset_size == 32768


def test_notebook_on_tensor_parallelism() -> None:
    path = NOTEBOOK / "tensor_parallel_2gpu.txt"
    imported = read(path, key="notebook_text")
    base, split = imported.runs
    assert [(step_ms(run), rate(run), run.world_size) for run in (base, split)] == [
        (pytest.approx(11.84), 173022.9, 1), (pytest.approx(19.19), 106739.9, 2),
    ]  # fmt: skip
    assert (split.scaling, split.baseline_id, split.strategy) == ("strong", base.run_id, "tensor_parallel")
    assert speedups(path)[split.run_id] == pytest.approx(0.62, abs=0.005)
    assert base.num_parameters == 29405184
    assert [run.peak_memory_bytes for run in (base, split)] == [round(1204.44 * 2**20), round(837.42 * 2**20)]
    assert [(row.size_bytes, row.time_ns_mean) for row in imported.comm_rows] == [
        (2048, pytest.approx(111200)), (131072, pytest.approx(105800)), (2097152, pytest.approx(151200)),
        (134217728, pytest.approx(521800)),
    ]  # fmt: skip
    assert {row.world_size for row in imported.comm_rows} == {2}


def test_megatron_logs() -> None:
    imported = read(MEGATRON, key="megatron_log")
    runs = by_id(imported)
    ranks = {}
    for path in sorted(MEGATRON.glob("*.out")):
        text, run = path.read_text(), runs[path.stem]
        elapsed = [float(ms) for ms in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", text)]
        batch = int(re.findall(r"global batch size: +(\d+)", text)[-1])
        assert step_ms(run) == pytest.approx(median(elapsed[1:]))
        assert rate(run) == pytest.approx(batch * 1024 / median(elapsed[1:]) * 1e3)
        assert (run.unit, run.global_batch, run.precision) == ("tokens", batch, "fp16")
        losses = re.findall(r"lm loss: (\S+)", text)
        assert run.train_loss == (float(losses[-1]) if losses else None)
        peaks = [float(mb) for mb in re.findall(r"\| max allocated: ([\d.]+)", text)]
        assert run.peak_memory_bytes == (round(max(peaks) * 2**20) if peaks else None)
        parameters = re.findall(r"model parallel rank \(\d+, \d+\): (\d+)", text)
        assert run.num_parameters == sum(map(int, parameters))
        assert run.world_size == len(parameters)
        ranks[run.world_size] = run
    four, eight, sixteen = (ranks[n] for n in (16, 32, 64))
    assert [run.strategy for run in (four, eight, sixteen)] == ["dp1 tp4 pp4", "dp1 tp4 pp8", "dp1 tp4 pp16"]
    assert [run.accumulation for run in (four, eight, sixteen)] == [4, 4, 256]
    assert [run.status for run in (four, eight, sixteen)] == ["interrupted", "interrupted", "ok"]
    assert four.error is not None
    assert four.error.startswith("after iteration 200 of 1000: ")
    assert any("iteration 3 of 1000 without saying why" in note for note in sixteen.notes)
    assert len({run.group for run in ranks.values()}) == 3  # the model grows with the nodes: no speed-up
    assert scaling_rows(imported.runs) == ()
    assert imported.hardware == "Tesla V100-SXM2"


@pytest.mark.parametrize(
    "path", sorted((RESULTS / "codeharris_multi-gpu-ddp").rglob("metrics.csv")), ids=lambda p: p.parent.name
)
def test_epochs_of_experiments(path: Path) -> None:
    with path.open() as file:
        lines = list(csv.DictReader(file))
    (run,) = read_foreign(path).runs
    assert len(run.epochs) == len(lines)
    for epoch, line in zip(run.epochs, lines, strict=True):
        assert (epoch.number, epoch.train_loss) == (int(line["epoch"]), float(line["train_loss"]))
        assert epoch.duration_ns == pytest.approx(float(line["train_time"]) * 1e9)
        assert (epoch.validation_loss, epoch.validation_accuracy) == (
            float(line["val_loss"]),
            float(line["val_acc"]),
        )
