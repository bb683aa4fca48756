"""JSON of a benchmark over GPUs and batch sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.shared_results import by_id, read, write

from stepscope.core.errors import DataError

KEY = "gpu_batch_scaling"


def gpu_run(gpus: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "experiment": "gpu_scaling", "mode": "ddp", "model": "resnet50", "num_params_M": 25.6, "batch_size_per_gpu": 32,
        "effective_batch_size": 32 * gpus, "num_steps": 50, "num_gpus": gpus, "avg_step_time_ms": 50.0,
        "throughput_samples_per_sec": 640.0 * gpus, "max_peak_memory_gb": 3.5, "final_loss": 0.0, "gpu_name": "L40S",
    } | changes  # fmt: skip


def sweep(*lines: dict[str, Any]) -> dict[str, Any]:
    return {"experiment": "batch_scaling", "mode": "fsdp", "model": "vit", "num_gpus": 2, "gpu_name": "L40S",
            "sweep_results": list(lines)}  # fmt: skip


def line(batch: int, **changes: Any) -> dict[str, Any]:
    return {"batch_size_per_gpu": batch, "status": "SUCCESS", "avg_step_time_ms": 100.0,
            "throughput_samples_per_sec": batch * 20.0, "peak_memory_gb": 1.5} | changes  # fmt: skip


def test_runs_of_one_strategy_are_compared_weakly(tmp_path: Path) -> None:
    for gpus in (1, 2):
        write(tmp_path / f"ddp{gpus}.json", gpu_run(gpus))
        write(tmp_path / f"fsdp{gpus}.json", gpu_run(gpus, mode="fsdp"))
    runs = by_id(read(tmp_path, key=KEY))
    assert {name: (run.scaling, run.baseline_id) for name, run in runs.items()} == {
        "ddp1": (None, "ddp1"), "ddp2": ("weak", "ddp1"), "fsdp1": (None, "fsdp1"), "fsdp2": ("weak", "fsdp1"),
    }  # fmt: skip
    assert runs["ddp2"].peak_memory_bytes == round(3.5 * 2**30)


def test_a_batch_that_does_not_fit_is_a_result(tmp_path: Path) -> None:
    failed = {"batch_size_per_gpu": 512, "status": "OOM"}
    other = {"batch_size_per_gpu": 1024, "status": "TIMEOUT"}
    runs = by_id(read(write(tmp_path / "s.json", sweep(line(8), failed, other)), key=KEY))
    assert [(r.status, r.error, r.micro_batch, r.world_size) for r in runs.values()] == [
        ("ok", None, 8, 2), ("oom", "OOM", 512, 2), ("error", "TIMEOUT", 1024, 2),
    ]  # fmt: skip
    assert runs["s-b512"].samples_per_s is None
    assert runs["s-b512"].peak_memory_bytes is None
    assert runs["s-b8"].baseline_id is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"throughput_samples_per_sec": 700.0}, "contradicts"),
        ({"effective_batch_size": 64}, "batch_size_per_gpu x num_gpus = 32"),
        ({"num_gpus": 0}, "num_gpus is 0"),
        ({"avg_step_time_ms": float("nan")}, "avg_step_time_ms is nan"),
        ({"experiment": "gpu_scaling", "model": None}, "model is None"),
        ({"max_peak_memory_gb": -1.0}, "max_peak_memory_gb is -1.0"),
    ],
)
def test_damage_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "a.json", gpu_run(**changes))
    with pytest.raises(DataError) as caught:
        read(path, key=KEY)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_contradiction_in_a_sweep_names_its_place(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", sweep(line(8), line(16, throughput_samples_per_sec=1.0)))
    with pytest.raises(DataError, match=r"sweep_results\[1\]\.throughput_samples_per_sec contradicts"):
        read(path, key=KEY)


def test_a_truncated_sweep_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", json.dumps(sweep(line(8), line(16)))[:-40])
    with pytest.raises(DataError, match="not readable as JSON"):
        read(path, key=KEY)
