"""Predicted against published tables: the bars, and how tables are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.validate.collectives import SIZE_CLASSES, ValidationReport, predict_row, validate
from benchmarks.validate.tables import Given, MeasuredRow, read_measured_table

from stepscope.core.errors import DataError

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
PUBLISHED = SHARED / "published"

HEAD = (
    "source,accelerator,n_gpus,nodes,gpus_per_node,inter_node,collective,dtype,size_bytes,time_us,busbw_gbps,"
    "library,notes"
)
LOG = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1024
#  Rank  0 Group  0 Pid 1 on node-a device  0 [0x19] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 2 on node-a device  1 [0x2d] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid 3 on node-b device  0 [0x19] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid 4 on node-b device  1 [0x2d] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    12.90    0.00    0.00      0    12.87    0.00    0.00      0
        1024           256      half     sum      -1    16.43    0.06    0.11      0    15.61    0.07    0.11    N/A
# Collective test concluded: all_reduce_perf
"""


def write(folder: Path, *lines: str) -> Path:
    file = folder / "collectives_mine.csv"
    file.write_text("\n".join((HEAD, *lines)) + "\n")
    return file


def test_a_rate_without_a_time_is_the_time_it_stands_for(tmp_path: Path) -> None:
    file = write(tmp_path, "me,H100_SXM,8,1,8,,all_reduce,float,1073741824,,350,,")
    (row,) = read_measured_table(file).rows
    assert row.time_ns == pytest.approx(1073741824 * 1.75 / 350)
    assert (row.gpu, row.dtype, row.gpus_per_node) == ("h100-sxm", "float32", 8)


def test_how_it_was_measured_is_read_from_the_tables_words(tmp_path: Path) -> None:
    table = read_measured_table(
        write(
            tmp_path,
            "me,H200_SXM,8,1,8,,all_reduce,,8589934592,,365,nccl 2.27.7,NCCL_NVLS_ENABLE=0 (Ring)",
            "me,B200,8,1,8,,all_reduce,,32768,48,,torch 2.9.1,",
            "me,H200_SXM,4,1,8,,all_reduce,,8589934592,,363,nccl 2.27.7,NVLS default: Ring",
        )
    )
    assert [row.algorithm for row in table.rows] == ["ring", None, None]
    assert [row.caller for row in table.rows] == ["nccl-tests", "torch", "nccl-tests"]


def test_nodes_stand_in_for_gpus_per_node_and_the_reverse(tmp_path: Path) -> None:
    table = read_measured_table(
        write(
            tmp_path,
            "me,A100_SXM_40GB,16,2,,RoCE,all_gather,float,1024,50,,,",
            "me,A100_SXM_40GB,,2,8,RoCE,all_gather,float,1024,50,,,",
        )
    )
    assert [(row.n_gpus, row.gpus_per_node) for row in table.rows] == [(16, 8), (16, 8)]


def test_rows_that_cannot_be_used_are_counted_with_the_reason(tmp_path: Path) -> None:
    table = read_measured_table(
        write(
            tmp_path,
            "me,H100_SXM,8,1,8,,all_reduce,float,1024,,,,",
            "me,FANTASY,8,1,8,,all_reduce,float,1024,5,,,",
            "me,H100_SXM,8,1,8,,all_shuffle,float,1024,5,,,",
            "me,H100_SXM,8,1,8,,all_reduce,float,1024,15,,,",
        )
    )
    assert len(table.rows) == 1
    text = " ".join(table.skipped)
    assert "neither a time nor a bandwidth (1)" in text
    assert "FANTASY" in text.upper()
    assert "all_shuffle" in text


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a table of collectives"):
        read_measured_table(file)
    with pytest.raises(DataError, match="cannot read"):
        read_measured_table(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("me,H100_SXM,8,1,8,,all_reduce,float,many,5,,,", "size_bytes: a value that is not a number"),
        ("me,H100_SXM,8,1,8,,all_reduce,float,0,5,,,", "size_bytes is not a whole number of 1 or more"),
        ("me,H100_SXM,inf,1,8,,all_reduce,float,8,5,,,", "n_gpus: a value that is not a number"),
        ("me,H100_SXM,8,1,8,,all_reduce,float,8,-5,,,", "time_us is below zero"),
        ("me,H100_SXM,8,1,8,,all_reduce,float,8,0,,,", "neither a time nor a bandwidth"),
        ("me,,8,1,8,,all_reduce,float,8,5,,,", "GPU not stated"),
    ],
)
def test_an_odd_row_is_counted_and_the_others_read(line: str, why: str, tmp_path: Path) -> None:
    table = read_measured_table(write(tmp_path, line, "me,H100_SXM,8,1,8,,all_reduce,float,8,5,,,"))
    assert [row.time_ns for row in table.rows] == [5000.0]
    assert table.skipped == (f"{why} (1)",)


def test_a_log_of_nccl_tests_says_gpu_ranks_nodes_and_op(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text(LOG)
    table = read_measured_table(file, Given(inter_node="infiniband-ndr"))
    assert [(r.size_bytes, r.time_ns, r.dtype) for r in table.rows] == [
        (8, 12900.0, "float32"),
        (1024, 16430.0, "float16"),
    ]
    row = table.rows[0]
    assert (row.op, row.gpu, row.n_gpus, row.gpus_per_node) == ("all_reduce", "h100-sxm", 4, 2)
    assert row.fabric is not None


def test_a_log_without_its_head_needs_to_be_told(tmp_path: Path) -> None:
    file = tmp_path / "allreduce.log"
    file.write_text("0: 8 2 float sum -1 164.3 0.00 0.00 0 163.3 0.00 0.00 0\n")
    assert read_measured_table(file).rows == ()
    assert "the number of ranks is unknown" in read_measured_table(file).skipped[0]
    (row,) = read_measured_table(file, Given(gpu="a100-sxm4-80gb", n_gpus=16, gpus_per_node=8)).rows
    assert row.time_ns == 164300


def test_a_report_counts_errors_bias_and_coverage() -> None:
    base = MeasuredRow(
        source="me", op="all_reduce", size_bytes=2**30, time_ns=1.0, n_gpus=8, gpu="h100-sxm", gpus_per_node=8,
        fabric=None, dtype="float32",
    )  # fmt: skip
    right = predict_row(base).time_ns
    rows = [
        MeasuredRow(**{name: getattr(base, name) for name in base.__slots__} | {"time_ns": right * factor})
        for factor in (1.0, 0.5, 1.25)
    ]
    (overall,) = validate(rows).overall
    assert overall.rows == 3
    assert overall.median_error == pytest.approx(0.2)  # errors 0, 1.0, 0.2
    assert overall.bias == pytest.approx(0.0, abs=1e-12)
    assert overall.coverage == pytest.approx(1 / 3)


@pytest.fixture(scope="module")
def published() -> ValidationReport:
    if not PUBLISHED.is_dir():
        pytest.skip("the shared data sets do not lie beside the checkout")
    rows = [row for file in sorted(PUBLISHED.glob("collectives_*.csv")) for row in read_measured_table(file).rows]
    return validate(rows)


@pytest.mark.shared_data
def test_every_published_row_is_predicted(published: ValidationReport) -> None:
    assert len(published.compared) == 324
    assert published.skipped == ()


@pytest.mark.shared_data
@pytest.mark.parametrize(("size_class", "bar"), [("< 64 KiB", 0.20), ("64 KiB - 16 MiB", 0.22), (">= 16 MiB", 0.07)])
def test_median_errors_on_published_rows_stay_below_the_bars(
    published: ValidationReport, size_class: str, bar: float
) -> None:
    # The bars of issue 4 are 35, 30 and 10%: these are nearer to what is reached, so that a loss shows.
    assert size_class in [name for name, _ in SIZE_CLASSES]
    (group,) = [g for g in published.overall if g.size_class == size_class]
    assert group.median_error <= bar


@pytest.mark.shared_data
def test_the_interval_holds_for_about_four_of_five_rows(published: ValidationReport) -> None:
    coverage = sum(one.covered for one in published.compared) / len(published.compared)
    assert 0.75 <= coverage <= 0.92
    assert published.sources_coverage is not None
    assert 0.72 <= published.sources_coverage <= 0.9


@pytest.mark.shared_data
def test_logs_of_other_authors_are_met_as_well() -> None:
    folder = SHARED / "nccl_tests"
    if not folder.is_dir():
        pytest.skip("the shared data sets do not lie beside the checkout")
    rows = [
        *read_measured_table(folder / "h100x8_dgxcloud_allreduce.log").rows,
        *read_measured_table(folder / "h200x16_runai_allreduce.log", Given(inter_node="infiniband-ndr")).rows,
    ]
    report = validate(rows)
    assert len(report.compared) == 37
    assert all(group.median_error <= 0.2 for group in report.overall)
