"""Importers on the published result sets: every figure equals the file's own text, read another way here."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.unit.store.importers.shared_results import RESULTS, document, read, real

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.records.training import TrainingRun
from stepscope.results.scaling import scaling_rows
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
    return run.samples_per_s.value


def step_ms(run: TrainingRun) -> float:
    return run.step_ns.value / 1e6


def speedups(path: Path) -> dict[str, float]:
    return {row.run_id: round(row.speedup, 3) for row in scaling_rows(read_foreign(path).runs)}


def as_csv(folder: Path, header: str, rows: Iterable[Iterable[object]]) -> Path:
    """What the refusal of a text or of a wide table tells to write."""
    path = folder / "runs.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


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


def test_a_speedup_table_gives_its_own_speedups(tmp_path: Path) -> None:
    text = (WORKERS / "speedup_table.txt").read_text()
    rows = re.findall(r"^(\d)\s+([\d.]+)\s+([\d.]+)", text, re.M)
    path = as_csv(tmp_path, "gpus,epoch_time_s", [row[:2] for row in rows])
    found = {str(r.world_size): r.speedup for r in scaling_rows(read_foreign(path, Stated(scaling="strong")).runs)}
    assert found == {workers: pytest.approx(float(speedup), abs=0.001) for workers, _, speedup in rows}


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
        assert (run.model, run.strategy, run.world_size) == (model, mode, int(gpus))
        assert (run.epoch_ns.value, rate(run)) == (pytest.approx(float(epoch_s) * 1e9), float(per_s))
    alone = [run for run in runs if run.strategy in ("single_gpu", "ddp_builtin") and run.model == "small"]
    base, ddp = (run.epoch_ns.value for run in alone if run.epoch_ns is not None)
    assert [run.group for run in alone] == ["small", "small"]
    assert base / ddp == pytest.approx(0.79, abs=0.0051)
