"""Comm rows as CSV and as the documented JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest
from tests.comm_rows import MIB, SIZES, collective, pairs, row, sweep

from stepscope.core.errors import StepscopeError
from stepscope.records import codec
from stepscope.records.comm import CommRow
from stepscope.report.comm_document import document_001, rows_csv


def test_the_document_has_the_documented_keys() -> None:
    document = document_001(
        sweep(world_size=4), "runs/benchmark_4gpu", timestamp="2024-01-15T10:30:00Z", device="NVIDIA H100"
    )
    assert list(document) == ["name", "world_size", "timestamp", "config", "results"]
    assert (document["name"], document["world_size"]) == ("benchmark_4gpu", 4)
    assert document["timestamp"] == "2024-01-15T10:30:00Z"
    config = document["config"]
    assert (config["warmup_iters"], config["benchmark_iters"], config["device"]) == (5, 40, "NVIDIA H100")
    assert list(document["results"]) == ["communication", "training", "memory"]


def test_operations_are_spelled_as_there_and_units_are_in_the_names() -> None:
    rows = [*sweep(), *sweep("all_gather"), *sweep("all_to_all_v"), *sweep(world_size=4)]
    found = document_001(rows, "x")["results"]["communication"]
    assert list(found) == ["allreduce", "allgather", "alltoallv"]
    assert [part["world_size"] for part in found["allreduce"]] == [2, 4]
    size = found["allreduce"][0]["sizes"][0]
    assert size["size_bytes"] == SIZES[0]
    assert size["busbw_bytes_per_s"] == rows[0].busbw_bytes_per_s
    assert not any(name.endswith(("_gbps", "_us", "_ms")) for name in size)


def test_what_sweeps_do_not_share_is_null_at_the_top() -> None:
    document = document_001([collective(1024, 9.0), collective(2048, 9.0, iterations=7)], "x")
    assert document["config"]["benchmark_iters"] is None
    assert document["config"]["warmup_iters"] == 5
    assert document_001([], "x")["world_size"] is None


def test_sizes_without_result_say_why() -> None:
    rows = [collective(1024, 9.0), row(status="skipped", asked_bytes=2**40, error="too large")]
    (part,) = document_001(rows, "x")["results"]["communication"]["allreduce"]
    missing = part["sizes"][1]
    assert (missing["status"], missing["asked_bytes"]) == ("skipped", 2**40)
    assert missing["error"] == "skipped: too large"
    assert missing["time_ns_median"] is None
    assert "status" not in part["sizes"][0]


def test_pairs_overlap_and_matrix_products_have_their_own_lists() -> None:
    rows = [
        *pairs(3),
        collective(MIB, 9.0, kind="overlap", slowdown=1.5),
        collective(MIB, 9.0, kind="matmul", flops_per_s=1e9),
    ]
    results = document_001(rows, "x")["results"]
    assert [tuple(p["peer"]) for p in results["communication"]["pairs"]][:2] == [(0, 1), (0, 2)]
    assert results["communication"]["overlap"][0]["slowdown"] == 1.5
    assert results["matmul"][0]["flops_per_s"] == 1e9


def test_the_document_is_json() -> None:
    document = document_001([*sweep(), *pairs(3)], "x")
    assert json.loads(codec.encode_document(document)) == json.loads(json.dumps(document))


def test_csv_is_flat_and_unknown_is_empty() -> None:
    rows = [
        collective(1024, 50.0, env={"NCCL_ALGO": "Ring"}, notes=("a, b",)),
        row(status="timeout", error="why"),
    ]
    lines = list(csv.DictReader(io.StringIO(rows_csv(rows))))
    assert tuple(lines[0]) == codec.field_names(CommRow)
    assert lines[0]["env"] == '{"NCCL_ALGO":"Ring"}'
    assert lines[0]["notes"] == '["a, b"]'
    assert (lines[0]["correct"], lines[0]["in_place"]) == ("true", "false")
    assert float(lines[0]["time_ns_median"]) == 50_000
    assert lines[1]["time_ns_median"] == ""
    assert lines[1]["error"] == "why"


def test_a_row_that_is_not_finite_is_refused() -> None:
    with pytest.raises(StepscopeError, match="never holds NaN"):
        rows_csv([row(time_ns_median=float("nan"))])
