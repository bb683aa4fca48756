"""The benchmark suite's JSON: its own layout, and what `stepscope comm` writes in its place."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.comm_rows import MIB, collective, pairs, row, sweep
from tests.evidence import evidence

from stepscope.core.errors import DataError
from stepscope.records.comm import CommRow
from stepscope.report.comm_document import comm_suite_document
from stepscope.results.scaling import baseline_of
from stepscope.store.importers import detect, read_foreign

N = 4


def suite(ranks: int = N, **results: Any) -> dict[str, Any]:
    """As the suite writes it."""
    return {
        "name": f"benchmark_{ranks}gpu", "world_size": ranks, "timestamp": "2024-01-15T10:30:00",
        "config": {"warmup_iters": 10, "benchmark_iters": 100, "device": "NVIDIA H100"}, "results": results,
    }  # fmt: skip


def entry(size_bytes: int, ms: float, factor: float) -> dict[str, float]:
    return {"time_ms": ms, "bandwidth_GB_s": size_bytes * factor / ms / 1e6}


def communication(ranks: int = N) -> dict[str, Any]:
    return {
        "allreduce": {
            "1KB": entry(1024, 0.05, 2 * (ranks - 1) / ranks),
            "1024KB": entry(MIB, 0.1, 2 * (ranks - 1) / ranks),
        },
        "allgather": {"1024KB": entry(MIB, 0.2, ranks - 1)},
        "reduce_scatter": {"1024KB": entry(MIB, 0.1, (ranks - 1) / ranks)},
        "p2p": {"1024KB": entry(MIB, 0.1, 1.0)},
    }


def training(ranks: int, step_ms: float = 2.0, batch: int = 64) -> dict[str, Any]:
    one = {
        "model_size": "small", "num_parameters": 600_000, "batch_size": batch, "global_batch_size": batch * ranks,
        "samples_per_sec": batch * ranks / step_ms * 1000, "time_per_step_ms": step_ms, "memory_gb": 0.0,
    }  # fmt: skip
    return {"training_results": [one]}


def write(folder: Path, document: Any, name: str = "benchmark_4gpu_20240115.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2))
    return path


def test_the_suites_collectives(tmp_path: Path) -> None:
    path = write(tmp_path, suite(communication=communication()))
    assert detect(path)[0] == "suite_results"
    imported = read_foreign(path)
    assert imported.hardware == "NVIDIA H100"
    rows = {(r.op, r.size_bytes): r for r in imported.comm_rows}
    assert set(rows) == {
        ("all_reduce", 1024), ("all_reduce", MIB), ("all_gather", N * MIB), ("reduce_scatter", MIB), ("send_recv", MIB),
    }  # fmt: skip
    reduce = rows["all_reduce", MIB]
    assert (reduce.time_ns_mean, reduce.time_ns_median) == (1e5, None)
    assert reduce.busbw_bytes_per_s == pytest.approx(MIB / 1e-4 * 1.5)
    assert reduce.algbw_bytes_per_s == pytest.approx(MIB / 1e-4)
    assert (reduce.dtype, reduce.backend, reduce.device, reduce.world_size) == ("fp32", "nccl", "cuda", N)
    assert (reduce.iterations, reduce.warmup) == (100, 10)
    gather = rows["all_gather", N * MIB]
    assert gather.busbw_bytes_per_s == pytest.approx(3 * MIB / 2e-4)  # what the suite prints, S counted in full


def test_point_to_point_with_a_barrier_in_it_has_no_rate(tmp_path: Path) -> None:
    imported = read_foreign(write(tmp_path, suite(communication=communication())))
    (p2p,) = [r for r in imported.comm_rows if r.op == "send_recv"]
    assert (p2p.time_ns_mean, p2p.algbw_bytes_per_s, p2p.busbw_bytes_per_s) == (1e5, None, None)
    assert any("barrier" in note for note in imported.notes)


def test_training_of_several_world_sizes_is_weak_scaling(tmp_path: Path) -> None:
    for n, ms in ((1, 2.0), (4, 2.5)):
        write(tmp_path, suite(n, training=training(n, ms)), f"benchmark_{n}gpu.json")
    imported = read_foreign(tmp_path)
    one, four = imported.runs
    assert (four.run_id, four.label) == ("small-b64-4gpu", "ddp on 4 ranks")
    assert one.group == four.group == "suite MLP small on synthetic, 64 samples per rank"
    assert (four.micro_batch, four.global_batch, four.scaling) == (64, 256, "weak")
    assert baseline_of(four, imported.runs) is one
    assert (four.step_ns.value, four.step_ns.n) == (2.5e6, 100)
    (found,) = [r for r in evidence(*imported.runs).scaling if r.run_id == four.run_id]
    assert found.efficiency == pytest.approx(0.8)
    assert found.scaling == "weak"


def test_memory_that_is_no_peak_is_left_out(tmp_path: Path) -> None:
    imported = read_foreign(write(tmp_path, suite(training=training(N), memory={"gradient_memory": []})))
    (run,) = imported.runs
    assert run.peak_memory_bytes is None
    assert run.memory == {}
    assert any("not peaks" in note for note in imported.notes)


def test_more_ranks_than_the_data_has_batches_is_said(tmp_path: Path) -> None:
    imported = read_foreign(write(tmp_path, suite(16, training=training(16))))
    assert any("overstated" in note for note in imported.notes)
    assert not any("overstated" in n for n in read_foreign(write(tmp_path, suite(training=training(N)))).notes)


def same(found: Sequence[CommRow], given: Sequence[CommRow]) -> None:
    """Every field that the document carries; the cell's id and notes it does not."""
    left_out: dict[str, Any] = {
        "cell_id": "",
        "notes": (),
        "rank_hosts": (),
        "job_hosts": (),
        "error": None,
        "hosts": None,
    }
    assert [dataclasses.replace(r, **left_out) for r in found] == [dataclasses.replace(r, **left_out) for r in given]


def test_our_own_document_comes_back(tmp_path: Path) -> None:
    rows = [*sweep(), *sweep(world_size=4), *sweep("all_gather", world_size=4, env={"NCCL_ALGO": "Ring"})]
    path = write(tmp_path, comm_suite_document(rows, "runs/comm-1"))
    imported = read_foreign(path)
    assert imported.format == "suite_results"
    same(imported.comm_rows, rows)
    assert len({r.cell_id for r in imported.comm_rows}) == 3


def test_pairs_overlap_matrix_products_and_failures_come_back(tmp_path: Path) -> None:
    rows = [
        collective(1024, 9.0),
        row(status="skipped", asked_bytes=2**40, error="too large", warmup=5),
        *pairs(3),
        collective(MIB, 9.0, kind="overlap", slowdown=1.5),
    ]
    found = read_foreign(write(tmp_path, comm_suite_document(rows, "x"))).comm_rows
    same(found, rows)
    assert found[1].error == "skipped: too large"
    product = collective(MIB, 9.0, kind="matmul", op="all_reduce", flops_per_s=1e9)
    (found_product,) = read_foreign(write(tmp_path, comm_suite_document([product], "x"))).comm_rows
    assert (found_product.kind, found_product.flops_per_s) == ("matmul", 1e9)
    assert found_product.time_ns_median == product.time_ns_median


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allreduce": {"1KB": {"time_ms": 0}}}, "above 0"),
        ({"allreduce": {"1KB": {"time_ms": 0.1, "bandwidth_GB_s": 500.0}}}, "contradicts"),
        ({"allreduce": {"big": {"time_ms": 0.1}}}, "'big' is not a size"),
        ({"allreduce": [{"op": "all_reduce", "sizes": [{"size_bytes": "many"}]}]}, "is damaged"),
        ({"allreduce": [{"op": "all_reduce", "sizes": [{"from_the_future": 1}]}]}, "unknown from_the_future"),
        ({}, "neither collectives nor training"),
    ],
)
def test_figures_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path, suite(communication=change))
    with pytest.raises(DataError) as caught:
        read_foreign(path)
    assert message in str(caught.value)
    assert path.name in str(caught.value)


def test_throughput_that_contradicts_its_step_time_is_refused(tmp_path: Path) -> None:
    wrong = training(N)
    wrong["training_results"][0]["samples_per_sec"] *= 2
    with pytest.raises(DataError, match="samples_per_sec contradicts"):
        read_foreign(write(tmp_path, suite(training=wrong)))


def test_an_operation_that_is_not_known_is_left_out(tmp_path: Path) -> None:
    found = communication() | {"allbroadcast": {"1KB": {"time_ms": 1.0}}}
    imported = read_foreign(write(tmp_path, suite(communication=found)))
    assert len(imported.comm_rows) == 5
    assert any("allbroadcast" in note for note in imported.notes)


def test_a_truncated_document_is_refused(tmp_path: Path) -> None:
    text = json.dumps(suite(communication=communication()), indent=2)
    with pytest.raises(DataError, match="not readable as JSON"):
        read_foreign(write(tmp_path, text[: len(text) * 2 // 3]))


def test_a_folder_with_one_damaged_file_keeps_the_rest(tmp_path: Path) -> None:
    write(tmp_path, suite(communication=communication()))
    text = json.dumps(suite(communication=communication()), indent=2)
    write(tmp_path, text[:-40], "cut.json")
    imported = read_foreign(tmp_path)
    assert len(imported.comm_rows) == 5
    assert any("cut.json" in note and "left out" in note for note in imported.notes)
