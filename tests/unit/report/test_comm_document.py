"""Comm rows as CSV and as the documented JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest
from tests.comm_rows import collective, pairs, row, sweep

from stepscope.core.errors import StepscopeError
from stepscope.records import codec
from stepscope.records.comm import CommRow
from stepscope.report.comm_document import comm_suite_document, rows_csv


def test_what_sweeps_do_not_share_is_null_at_the_top() -> None:
    document = comm_suite_document([collective(1024, 9.0), collective(2048, 9.0, iterations=7)], "x")
    assert document["config"]["benchmark_iters"] is None
    assert document["config"]["warmup_iters"] == 5
    assert comm_suite_document([], "x")["world_size"] is None


def test_the_document_is_json() -> None:
    document = comm_suite_document([*sweep(), *pairs(3)], "x")
    assert json.loads(codec.encode_document(document)) == json.loads(json.dumps(document))


def test_csv_is_flat_and_unknown_is_empty() -> None:
    rows = [collective(1024, 50.0, env={"NCCL_ALGO": "Ring"}, notes=("a, b",)), row(status="timeout", error="why")]
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
