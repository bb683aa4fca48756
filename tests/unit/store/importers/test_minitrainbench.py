"""Results of MiniTrainBench: training runs, collectives, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.store.importers._collectives import BUS_FACTORS

KEY = "minitrainbench"


def training(ranks: int = 1, **changes: Any) -> dict[str, Any]:
    step_ms = 10.0
    return {
        "benchmark": "training", "batch_size_per_rank": 2, "global_batch_size": 2 * ranks, "world_size": ranks,
        "gradient_accumulation_steps": 1, "strategy": "ddp", "precision": "bf16", "steps": 5, "warmup_steps": 2,
        "device": "cuda:0", "backend": "nccl", "parameters": 1000, "step_time_ms": step_ms, "loss": 2.5,
        "tokens_per_sec": 2 * ranks * 8 / step_ms * 1e3, "max_cuda_memory_mb": 100.5,
        "model_config": {"d_model": 4, "n_layers": 2, "n_heads": 1, "seq_length": 8, "vocab_size": 16},
        "environment": {"gpu": "Some GPU", "torch": "2.10.0"},
    } | changes  # fmt: skip


def row(op: str = "all_reduce", **changes: Any) -> dict[str, Any]:
    return {"operation": op, "bytes": 4100, "elements": 1025, "latency_ms": 0.5125, "bandwidth_gbps": 0.008,
            "status": "ok", "world_size": 4} | changes  # fmt: skip


def communication(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"benchmark": "communication", "all_to_all_mode": "both", "backend": "nccl", "device": "cuda:0",
            "dtype": "float32", "iters": 50, "environment": {"gpu": "Some GPU"}, "results": list(rows)}  # fmt: skip


def test_a_run_has_the_figures_of_its_file(tmp_path: Path) -> None:
    (run,) = read(write(tmp_path / "ddp_2gpu.json", training(2)), key=KEY).runs
    assert (run.run_id, run.world_size, run.strategy, run.precision, run.unit) == (
        "ddp_2gpu",
        2,
        "ddp",
        "bf16",
        "tokens",
    )
    assert (run.micro_batch, run.global_batch, run.accumulation) == (2, 4, 1)
    assert run.step_ns is not None
    assert run.samples_per_s is not None
    assert (run.step_ns.value, run.step_ns.n, run.samples_per_s.value) == (10e6, 5, 3200.0)
    assert run.peak_memory_bytes == round(100.5 * 2**20)
    assert (run.hardware, run.device, run.train_loss) == ("Some GPU", "cuda", 2.5)
    assert run.scaling is None  # one run alone scales nothing
    assert run.baseline_id is None


@pytest.mark.parametrize(("batches", "expected"), [((2, 4), "weak"), ((2, 2), "strong"), ((2, 3), None)])
def test_scaling_is_what_the_batches_say(tmp_path: Path, batches: tuple[int, int], expected: str | None) -> None:
    for ranks, batch in zip((1, 2), batches, strict=True):
        rate = batch * 8 / 10.0 * 1e3
        write(tmp_path / f"{ranks}.json", training(ranks, global_batch_size=batch, tokens_per_sec=rate))
    runs = by_id(read(tmp_path, key=KEY))
    assert (runs["2"].scaling, runs["2"].baseline_id, runs["1"].scaling) == (expected, "1", None)


def test_what_the_user_states_fills_what_the_file_leaves_open(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", training())
    assert read(path, key=KEY, stated=Stated(scaling="weak")).runs[0].scaling == "weak"


def test_each_strategy_has_its_own_baseline(tmp_path: Path) -> None:
    for ranks in (1, 2):
        for strategy in ("ddp", "fsdp"):
            write(tmp_path / f"{strategy}{ranks}.json", training(ranks, strategy=strategy))
    runs = by_id(read(tmp_path, key=KEY))
    assert {name: run.baseline_id for name, run in runs.items()} == {
        "ddp1": "ddp1", "ddp2": "ddp1", "fsdp1": "fsdp1", "fsdp2": "fsdp1",
    }  # fmt: skip


def test_a_rate_that_contradicts_the_step_time_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", training(tokens_per_sec=3200.0))
    with pytest.raises(DataError, match="tokens_per_sec contradicts") as caught:
        read(path, key=KEY)
    assert "3200" in str(caught.value)
    assert "1600" in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "meaning"),
    [
        (0.008, "payload bandwidth in GB/s"),
        (0.012, "bus bandwidth in GB/s"),
        (0.064, "payload bandwidth in Gbit/s"),
    ],
)
def test_what_a_bandwidth_means_is_found_by_its_times(tmp_path: Path, rate: float, meaning: str) -> None:
    (found,) = read(write(tmp_path / "n.json", communication(row(bandwidth_gbps=rate))), key=KEY).comm_rows
    assert found.algbw_bytes_per_s == pytest.approx(4100 / 0.5125e-3)
    assert found.busbw_bytes_per_s == pytest.approx(4100 / 0.5125e-3 * 1.5)
    assert meaning in found.notes[0]
    assert (found.time_ns_mean, found.time_ns_median, found.iterations) == (pytest.approx(0.5125e6), None, 50)


def test_a_bandwidth_that_no_reading_explains_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "n.json", communication(row(), row(bandwidth_gbps=0.009)))
    with pytest.raises(DataError, match="bandwidths contradict the times") as caught:
        read(path, key=KEY)
    assert "results[1]" in str(caught.value)


def test_an_uneven_all_to_all_leaves_the_own_chunk_out(tmp_path: Path) -> None:
    uneven = row("all_to_all", bytes=4 * 10, elements=1, bandwidth_gbps=40 / 0.5125e-3 / 1e9,
                 split_mode="uneven", input_splits=[1, 2, 3, 4])  # fmt: skip
    (found,) = read(write(tmp_path / "n.json", communication(uneven)), key=KEY).comm_rows
    assert (found.op, found.size_bytes, found.numel) == ("all_to_all_v", 36, 9)
    assert found.busbw_bytes_per_s == pytest.approx(36 / 0.5125e-3)


def test_a_failed_collective_is_a_row_without_figures(tmp_path: Path) -> None:
    failed = row(status="timeout") | {"latency_ms": None, "bandwidth_gbps": None}
    found = read(write(tmp_path / "n.json", communication(row(), failed)), key=KEY).comm_rows[1]
    assert (found.status, found.error, found.time_ns_mean, found.busbw_bytes_per_s) == (
        "error",
        "timeout",
        None,
        None,
    )


def _cut(text: str) -> str:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_cut, ":1:238: not readable as JSON"),
        (lambda text: text.replace("10.0", "NaN"), "step_time_ms is nan"),
        (lambda text: text.replace("10.0", "0"), "step_time_ms is 0"),
        (lambda text: text.replace("10.0", "1e999"), "step_time_ms is inf"),
        (lambda text: text.replace('"world_size": 1', '"world_size": -1'), "world_size is -1"),
        (lambda text: text.replace('"world_size": 1', '"world_size": true'), "world_size is True"),
        (lambda text: text.replace('"world_size"', '"world"'), "no world_size"),
        (lambda text: text.replace('"n_layers": 2', '"n_layers": "two"'), "model_config.n_layers is 'two'"),
        (lambda text: text.replace('"model_config": {', '"model_config": 3, "x": {'), "model_config is 3"),
        (lambda text: text.replace("2.5", "9" * 400), "loss is 999"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(tmp_path: Path, damage: Callable[[str], str], says: str) -> None:
    path = write(tmp_path / "run.json", damage(json.dumps(training())))
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_damaged_file_of_a_folder_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "good.json", training())
    write(tmp_path / "half.json", json.dumps(training(2))[:200])
    write(tmp_path / "README.md", "read me")
    write(tmp_path / "other.json", "{}")
    imported = read(tmp_path, key=KEY)
    assert [run.run_id for run in imported.runs] == ["good"]
    assert any("half.json" in note and "left out" in note for note in imported.notes)
    assert "of another kind and not read: other.json" in imported.notes


def test_a_folder_of_damaged_files_only_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "half.json", json.dumps(training(2))[:200])
    with pytest.raises(DataError, match=r"half\.json"):
        read(tmp_path, key=KEY)


def test_bus_factors_are_those_of_the_collectives() -> None:
    for op, factor in BUS_FACTORS.items():
        for ranks in (2, 3, 8, 16):
            assert factor(ranks) == COLLECTIVES.load(op).bus_factor(ranks)
