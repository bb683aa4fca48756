"""Copies by kind: sizes, rates and the time that no kernel hid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hand_events import copy, kernel, op, trace

from stepscope.traces.kernels import copy_kind, copy_table
from stepscope.traces.load import load_traces

SETS = Path(__file__).parents[3].parent / "shared" / "data" / "traces"


@pytest.mark.parametrize(
    ("name", "kind", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "pinned"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
        ("Memcpy HtoD (Host -> Device)", "HtoD", None),
        ("CopyDeviceToHost", "DtoH", None),
        ("Memset (Device)", "memset", None),
        ("__amd_rocclr_fillBufferAligned", "memset", None),
        ("something else", "other", None),
    ],
)
def test_names_tell_direction_and_host_memory(name: str, kind: str, memory: str | None) -> None:
    assert copy_kind(name) == (kind, memory)


def test_a_rate_is_bytes_over_time_of_the_copies_whose_size_is_known() -> None:
    name = "Memcpy HtoD (Pinned -> Device)"
    table = copy_table(
        trace(copy(name, 0, 100, size_bytes=1000), copy(name, 200, 500, size_bytes=5000), copy(name, 600, 900))
    )
    assert table is not None
    (row,) = table.rows
    assert (row.calls, row.sized_calls, row.size_bytes, row.largest_bytes, row.median_bytes) == (
        3,
        2,
        6000,
        5000,
        3000.0,
    )
    assert row.bytes_per_s == 6000 / 400e-9


def test_without_sizes_the_rate_is_unknown() -> None:
    table = copy_table(trace(copy("Memcpy DtoH (Device -> Pageable)", 0, 100)))
    assert table is not None
    assert (table.rows[0].size_bytes, table.rows[0].bytes_per_s) == (None, None)


def test_exposed_is_what_neither_computation_nor_communication_covers() -> None:
    table = copy_table(trace(
        copy("Memcpy HtoD (Pinned -> Device)", 0, 100), copy("Memcpy DtoD (Device -> Device)", 50, 150, stream=9),
        kernel("gemm", 20, 40, stream=1), kernel("ncclDevKernel_AllReduce", 140, 200, stream=2),
    ))  # fmt: skip
    assert table is not None
    assert {r.kind: r.exposed_ns for r in table.rows} == {"HtoD": 80, "DtoD": 90}
    assert (table.busy_ns, table.exposed_ns) == (150, 120)


def test_a_trace_without_copies_has_no_table() -> None:
    assert copy_table(trace(op("aten::copy_", 0, 5), kernel("k", 0, 5))) is None


@pytest.mark.shared_data
@pytest.mark.skipif(not SETS.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize(
    "name", ["dlrm-v100-8rank", "nccl-meta-a100-rank0of2", "resnet-ddp-mi300-rank0of8", "sampled-2of128"]
)
def test_exposed_copies_of_real_traces_equal_the_reference(name: str) -> None:
    reference = json.loads((SETS / name / "reference.json").read_text())["ranks"]
    for each in load_traces(SETS / name).ranks:
        table = copy_table(each)
        assert table is not None
        expected = reference[str(each.rank)]
        assert (table.busy_ns, table.exposed_ns) == (expected["memory"], expected["exposed_memory"])
