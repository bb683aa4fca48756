"""JSON of a cluster acceptance test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.shared_results import read, write

from stepscope.core.errors import DataError

KEY = "cluster_check"
MIB = 2**20


def check(*sizes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "cluster_info": {"nodes": 2, "gpus_per_node": 8, "total_gpus": 16, "gpu_model": "H100"},
        "results": {
            "nccl_benchmark": {"status": "PASS", "metric_name": "all_reduce_bandwidth",
                               "details": {"world_size": 16, "results_by_size": list(sizes)}},
            "training_benchmark": {"status": "PASS", "metric_name": "tokens_per_second", "metric_value": 1600.0,
                                   "details": {"tokens_per_gpu": 100.0, "world_size": 16, "num_steps": 50}},
        } | changes,
    }  # fmt: skip


def size(mega: int, *, unit: float, factor: float, time_ms: float = 2.125) -> dict[str, Any]:
    return {"size_mb": mega, "latency_ms": time_ms,
            "bandwidth_gbps": round(mega * unit / (time_ms / 1e3) * factor / 1e9, 2)}  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "factor", "text"),
    [
        (MIB, 1.875, "bus bandwidth in GB/s, sizes in MiB"),
        (1e6, 1.875, "bus bandwidth in GB/s, sizes in MB"),
        (MIB, 1.0, "payload bandwidth in GB/s, sizes in MiB"),
        (1e6, 8.0, "payload bandwidth in Gbit/s, sizes in MB"),
    ],
)
def test_units_are_found_by_the_times(tmp_path: Path, unit: float, factor: float, text: str) -> None:
    path = write(tmp_path / "c.json", check(*(size(n, unit=unit, factor=factor) for n in (100, 1000))))
    rows = read(path, key=KEY).comm_rows
    assert [row.size_bytes for row in rows] == [round(100 * unit), round(1000 * unit)]
    assert text in rows[0].notes[0]
    assert rows[1].algbw_bytes_per_s == pytest.approx(1000 * unit / 2.125e-3)
    assert rows[1].busbw_bytes_per_s == pytest.approx(1000 * unit / 2.125e-3 * 1.875)


def test_bandwidths_that_contradict_their_times_are_refused(tmp_path: Path) -> None:
    good, bad = size(100, unit=MIB, factor=1.875), size(1000, unit=MIB, factor=1.7)
    with pytest.raises(DataError, match="contradict the times"):
        read(write(tmp_path / "c.json", check(good, bad)), key=KEY)


def test_columns_too_coarse_to_tell_are_refused(tmp_path: Path) -> None:
    coarse = {"size_mb": 1, "latency_ms": 1.0, "bandwidth_gbps": 1.0}
    with pytest.raises(DataError, match="cannot be told") as caught:
        read(write(tmp_path / "c.json", check(coarse)), key=KEY)
    assert "several readings fit" in str(caught.value)


def test_training_is_one_run_without_a_step_time(tmp_path: Path) -> None:
    (run,) = read(write(tmp_path / "c.json", check(size(100, unit=MIB, factor=1.875))), key=KEY).runs
    assert run.samples_per_s is not None
    assert (run.samples_per_s.value, run.unit, run.world_size, run.step_ns) == (1600.0, "tokens", 16, None)
    assert (run.model, run.precision, run.strategy) == (None, None, None)


def test_a_failed_training_is_shown_without_figures(tmp_path: Path) -> None:
    failed = {
        "status": "FAIL",
        "metric_name": "tokens_per_second",
        "metric_value": 0,
        "details": {"world_size": 16},
    }
    imported = read(write(tmp_path / "c.json", check(training_benchmark=failed, nccl_benchmark=None)), key=KEY)
    (run,) = imported.runs
    assert (run.status, run.error, run.samples_per_s) == ("error", "FAIL", None)
    assert imported.comm_rows == ()


def test_tokens_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    wrong = {"status": "PASS", "metric_name": "tokens_per_second", "metric_value": 1600.0,
             "details": {"tokens_per_gpu": 50.0, "world_size": 16}}  # fmt: skip
    with pytest.raises(DataError, match="metric_value contradicts"):
        read(write(tmp_path / "c.json", check(training_benchmark=wrong)), key=KEY)


def test_results_of_other_kinds_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", check(size(100, unit=MIB, factor=1.875), disk_benchmark={"status": "PASS"}))
    assert any("disk_benchmark" in note for note in read(path, key=KEY).notes)
