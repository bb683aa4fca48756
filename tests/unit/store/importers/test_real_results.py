"""Importers on the published result sets: every figure equals the file's own text, read another way here."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median

import pytest
from tests.unit.store.importers.shared_results import RESULTS, by_id, document, read, real

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.records.training import TrainingRun
from stepscope.results.scaling import baseline_of, scaling_rows
from stepscope.store.importers import read_foreign

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


def as_csv(folder: Path, header: str, rows: Iterable[Iterable[object]]) -> Path:
    """What the refusal of a text or of a wide table tells to write."""
    path = folder / "runs.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_a_json_file_a_run() -> None:
    imported = read(MINI, key="table")
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
        base = baseline_of(run, list(runs.values()))
        assert base is (runs[f"{told['strategy']}_1gpu"] if told["world_size"] > 1 else None)
        assert run.scaling == ("weak" if told["world_size"] > 1 else None)
    assert len({run.group for run in runs.values()}) == 1


def test_a_list_of_collectives() -> None:
    path = MINI / "nccl_8gpu.json"
    imported, told = read(path, key="table"), document(path)["results"]
    even = [line for line in told if line.get("split_mode") != "uneven"]
    assert (len(told), len(even), len(imported.comm_rows)) == (15, 12, 12)
    for found, line in zip(imported.comm_rows, even, strict=True):
        assert found.time_ns_mean == pytest.approx(line["latency_ms"] * 1e6, rel=1e-12)
        assert (found.op, found.size_bytes) == (line["operation"], line["bytes"])
        assert found.algbw_bytes_per_s == pytest.approx(line["bandwidth_gbps"] * 1e9, rel=1e-9)
    assert any("3 rows of uneven splits" in note for note in imported.notes)
    largest = next(r for r in imported.comm_rows if r.op == "all_reduce" and r.size_bytes == 67108864)
    assert largest.busbw_bytes_per_s == pytest.approx(93.29724175048928e9 * 1.75)


def test_sweeps_over_gpus_and_batches() -> None:
    imported = read(L40S, key="table")
    runs = by_id(imported)
    assert len(runs) == 8 + 4 * 6
    for path in sorted(L40S.glob("*.json")):
        told = document(path)
        lines = told.get("sweep_results", [told])
        for line in lines:
            run = runs[path.stem if line is told else f"{path.stem}-b{line['batch_size_per_gpu']}"]
            assert step_ms(run) == pytest.approx(line["avg_step_time_ms"], rel=1e-12)
            assert rate(run) == line["throughput_samples_per_sec"]
            assert (run.world_size, run.strategy, run.model) == (told["num_gpus"], told["mode"], told["model"])
            assert run.micro_batch == line["batch_size_per_gpu"]
            assert run.global_batch == line["batch_size_per_gpu"] * told["num_gpus"]
            gib = line.get("max_peak_memory_gb", line.get("peak_memory_gb"))
            assert run.peak_memory_bytes == round(gib * GIB)
    two = runs["scaling_ddp_resnet50_2gpu"]
    assert (two.scaling, two.train_loss) == ("weak", 0.0001)
    assert baseline_of(two, imported.runs) is runs["scaling_ddp_resnet50_1gpu"]
    assert speedups(L40S)["scaling_ddp_resnet50_2gpu"] == round(1336.7 / 703.67, 3)
    assert imported.hardware == "NVIDIA L40S"


def test_collectives_of_which_the_op_is_stated() -> None:
    path = CHECK / "benchmark_16gpu.json"
    with pytest.raises(DataError, match="--columns metric_name=op"):
        read_foreign(path)
    imported = read_foreign(path, Stated(columns={"metric_name": "op"}))
    lines = document(path)["results"]["nccl_benchmark"]["details"]["results_by_size"]
    assert [row.size_bytes for row in imported.comm_rows] == [n * 2**20 for n in (1, 10, 100, 1000)]
    for row, line in zip(imported.comm_rows, lines, strict=True):
        assert row.busbw_bytes_per_s is not None
        assert row.busbw_bytes_per_s == pytest.approx(line["bandwidth_gbps"] * 1e9, rel=0.006)  # 3 digits of time
        assert row.time_ns_mean == pytest.approx(line["latency_ms"] * 1e6)
        assert (row.op, row.world_size) == ("all_reduce", 16)
        assert "bus bandwidth in GB/s, sizes in MiB" in row.notes[0]


def test_a_peak_that_is_stated() -> None:
    stated = Stated(columns={"phase_peak_gib": "peak_memory_gib"})
    ((run,), (other,)) = (read(MEMORY, key="table", stated=each).runs for each in (None, stated))
    assert step_ms(run) == pytest.approx(227.126)
    assert (run.world_size, run.strategy, run.precision, run.num_parameters) == (2, "baseline", "bf16", 3406809600)
    assert (run.peak_memory_bytes, run.samples_per_s) == (None, None)
    assert other.peak_memory_bytes == round(51.301 * GIB)


def test_epochs_of_workers(tmp_path: Path) -> None:
    stated = Stated(columns={"input_size": "dataset_size"})
    imported = read(WORKERS, key="table", stated=stated)
    runs = by_id(imported)
    with (WORKERS / "weak_scaling.csv").open() as file:
        lines = list(csv.DictReader(file))
    for workers in (1, 2, 4, 8):
        mine = [line for line in lines if line["workers"] == str(workers)]
        run = runs[f"weak_scaling-{workers}"]
        times = [float(line["wall_sec"]) for line in mine]
        assert [round((epoch.duration_ns or 0) / 1e9, 6) for epoch in run.epochs] == times
        assert rate(run) == pytest.approx(3000 * workers / fmean(times))
        assert (run.scaling, run.dataset_size) == ("weak", 3000 * workers)
        assert baseline_of(run, imported.runs) is (runs["weak_scaling-1"] if workers > 1 else None)
    found = {row.run_id: row.speedup for row in scaling_rows(imported.runs)}
    assert found["weak_scaling-2"] == pytest.approx(2 * fmean((45.617758, 45.452957, 54.665552)) / 30.730333, abs=1e-3)
    text = (WORKERS / "speedup_table.txt").read_text()
    rows = re.findall(r"^(\d)\s+([\d.]+)\s+([\d.]+)", text, re.M)
    path = as_csv(tmp_path, "gpus,epoch_time_s", [row[:2] for row in rows])
    found = {str(r.world_size): r.speedup for r in scaling_rows(read_foreign(path, Stated(scaling="strong")).runs)}
    assert found == {workers: pytest.approx(float(speedup), abs=0.001) for workers, _, speedup in rows}


def test_throughput_of_clusters() -> None:
    imported = read(CLUSTERS, key="table")
    runs = imported.runs
    lines = (CLUSTERS / "results.md").read_text().splitlines()
    assert len(runs) == len(lines) - 2
    for run, line in zip(runs, lines[2:], strict=True):
        name, framework, cluster, gpus, date, figure = (cell.strip() for cell in line.strip("|").split("|"))
        assert (run.world_size, run.hardware, run.unit) == (int(gpus), cluster, "images")
        assert (run.settings["Benchmark"], run.settings["Framework"], run.settings["Date"]) == (name, framework, date)
        if figure == "ERROR":
            assert (run.status, run.samples_per_s) == ("error", None)
        else:
            assert (run.status, rate(run)) == ("ok", float(figure))
        assert run.scaling is None
        assert {name, framework, cluster, date} <= set(run.group.replace(name, "").split(", ")) | {name}
    assert [run.status for run in runs].count("error") == 1
    eight = by_id(imported)["results-mahti-ddp-synthetic-pytorch-1.11.0-cu115-2022-05-18-8"]
    one = by_id(imported)["results-mahti-ddp-synthetic-pytorch-1.11.0-cu115-2022-05-18-1"]
    assert baseline_of(eight, runs) is one
    assert speedups(CLUSTERS)[eight.run_id] == round(5502.49 / 758.90, 3)


def test_a_wide_table_written_long(tmp_path: Path) -> None:
    for name in ("pytorch-train-throughput-v2-fp16.csv", "pytorch-train-bs-fp16.csv"):
        with pytest.raises(DataError, match="write one row per run as CSV"):
            read_foreign(MACHINES / name)
    with (MACHINES / "pytorch-train-throughput-v2-fp16.csv").open() as file:
        lines = list(csv.reader(file))
    gpus = re.compile(r"(?<![A-Za-z0-9])(\d+)x(?=[A-Z])")
    cells = [(row[0], gpus.findall(row[0])[0], model, cell) for row in lines[1:]
             for model, cell in zip(lines[0][1:], row[1:], strict=True)]  # fmt: skip
    long = as_csv(tmp_path, "machine,gpus,model,items_per_s", [(gpus.sub("", name), *rest) for name, *rest in cells])
    runs = read(long, key="table").runs
    assert len(runs) == len(cells) == 651
    for run, (_, ranks, model, figure) in zip(runs, cells, strict=True):
        assert (run.world_size, run.model, run.unit) == (int(ranks), model, "items")
        assert run.status == ("error" if float(figure) == 0 else "ok")
        assert float(figure) == 0 or rate(run) == float(figure)
    four = next(r for r in runs if r.world_size == 4 and r.model == "resnet50" and "Texas" in (r.hardware or ""))
    found = {row.run_id: row.speedup for row in scaling_rows(runs)}
    assert found[four.run_id] == pytest.approx(11057.0 / 2791.0)


def test_texts_of_notebooks_written_as_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no importer recognises it"):
        read_foreign(NOTEBOOK / "shallowspeed_2xA100pcie_tables.txt")
    text = (NOTEBOOK / "shallowspeed_2xA100pcie_tables.txt").read_text()
    long = re.findall(r"^(\w+) +(\w+) +(\d) +[\d.]+M +([\d.]+)s +[\d.]+s +(\d+)/s +([\d.]+)x", text, re.M)
    assert len(long) == 12
    path = as_csv(tmp_path, "model,strategy,gpus,epoch_time_s,samples/s", [row[:5] for row in long])
    runs = read(path, key="table").runs
    for run, (model, mode, gpus, epoch_s, per_s, _) in zip(runs, long, strict=True):
        assert run.epoch_ns is not None
        assert (run.model, run.strategy, run.world_size) == (model, mode, int(gpus))
        assert (run.epoch_ns.value, rate(run)) == (pytest.approx(float(epoch_s) * 1e9), float(per_s))
    alone = [run for run in runs if run.strategy in ("single_gpu", "ddp_builtin") and run.model == "small"]
    base, ddp = (run.epoch_ns.value for run in alone if run.epoch_ns is not None)
    assert [run.group for run in alone] == ["small", "small"]
    assert base / ddp == pytest.approx(0.79, abs=0.0051)


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
    assert any("iteration 3 of 1000 and does not state why" in note for note in sixteen.notes)
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
