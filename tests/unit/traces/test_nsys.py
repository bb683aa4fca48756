"""nsys SQLite exports: counts and times as plain SQL gives them, schema variants, what is no export.

Reports of Nsight Systems are exported by the installed nsys, or answered with the command that would.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.trace_reference import SHARED

from stepscope.core.errors import DataError, MissingError
from stepscope.traces import nsys
from stepscope.traces.classes import work_of
from stepscope.traces.discover import candidates
from stepscope.traces.events import Category, RankView
from stepscope.traces.job import analyse_job
from stepscope.traces.kernel_names import Work
from stepscope.traces.load import load_file, load_traces
from stepscope.traces.nsys import load_nsys

EXPORTS = SHARED / "nsys_sqlite"
real = pytest.mark.skipif(not EXPORTS.is_dir(), reason=f"the real exports are not at {EXPORTS}")
real_exports = [pytest.param(p, id=p.stem) for p in sorted(EXPORTS.glob("*.sqlite"))]

CATEGORIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (Category.KERNEL,), "CUPTI_ACTIVITY_KIND_MEMCPY": (Category.MEMCPY,),
    "CUPTI_ACTIVITY_KIND_MEMSET": (Category.MEMSET,), "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (Category.SYNC,),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (Category.RUNTIME, Category.DRIVER), "OSRT_API": (Category.OTHER,),
    "PROFILER_OVERHEAD": (Category.OVERHEAD,),
}  # fmt: skip

PROCESS = 77 << 24


def export(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


STRINGS = (
    "CREATE TABLE StringIds (id INTEGER, value TEXT)",
    "INSERT INTO StringIds VALUES (1, 'gemm(float*)'), (2, 'cudaLaunchKernel_v7000'), (3, 'ncclAllReduce'), "
    "(4, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL')",
)
KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER)",
    f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 1, 7, 5, {PROCESS}, 1), (150, 260, 1, 20, 6, {PROCESS}, 4)",
)
CALLS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER, eventClass INTEGER)",
    f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (90, 95, {PROCESS + 78}, 5, 2, 0), (1, 2, {PROCESS + 78}, 1, 3, 1)",
)
Make = Callable[..., Path]


@pytest.mark.shared_data
@real
@pytest.mark.parametrize("path", real_exports)
def test_real_exports_give_what_plain_sql_gives(path: Path) -> None:
    events = load_nsys(path).events
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        tables = {t for (t,) in database.execute("SELECT name FROM sqlite_master")}
        for table, categories in CATEGORIES.items():
            found = events.where(*categories)
            if table not in tables:
                assert len(found) == 0
                continue
            count, first, total = database.execute(
                f'SELECT COUNT(*), COALESCE(MIN(start), 0), COALESCE(SUM("end" - start), 0) FROM {table}'
            ).fetchone()
            assert len(found) == count
            assert int(events.dur_ns[found].sum()) == total
            assert count == 0 or int(events.ts_ns[found].min()) == first
        query = (
            'SELECT value, COUNT(*), SUM("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL '
            "JOIN StringIds ON id = demangledName GROUP BY value"
        )
        for name, count, total in database.execute(query):
            chosen = [i for i in events.where(Category.KERNEL).tolist() if events.name_of(i) == name]
            assert (len(chosen), int(events.dur_ns[chosen].sum())) == (count, total)
        copied = database.execute("SELECT SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY").fetchone()[0]
        of_copies = set(events.where(Category.MEMCPY).tolist())
        assert sum(n for i, n in events.copied_bytes.items() if i in of_copies) == copied


def test_columns_of_a_small_export(tmp_path: Path) -> None:
    trace = load_nsys(export(tmp_path / "rank3.sqlite", *STRINGS, *KERNELS, *CALLS))
    events = trace.events
    assert [events.name_of(i) for i in range(4)] == [
        "gemm(float*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernel", "ncclAllReduce"]  # fmt: skip
    assert (events.ts_ns.tolist(), events.dur_ns.tolist()) == ([100, 150, 90, 1], [100, 110, 5, 1])
    assert (events.stream.tolist(), events.device.tolist()) == ([7, 20, -1, -1], [1, 1, -1, -1])
    assert events.correlation.tolist() == [5, 6, 5, 1]
    assert [events.threads[t] for t in events.thread] == [("1", "7"), ("1", "20"), ("77", "78"), ("77", "78")]
    assert [Category(c).name for c in events.category] == ["KERNEL", "KERNEL", "RUNTIME", "DRIVER"]
    assert work_of(RankView(trace)).tolist() == [Work.COMPUTE, Work.COMMUNICATION, 0, 0]


def test_the_rank_is_that_of_the_file_name(tmp_path: Path) -> None:
    for rank in (3, 1):
        export(tmp_path / f"report-rank{rank}.sqlite", *STRINGS, *KERNELS)
    loaded = load_traces(tmp_path)
    assert [r.rank for r in loaded.ranks] == [1, 3]
    assert all("from the file name" in r.notes[-1].text for r in loaded.ranks)


def test_an_export_of_any_name_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    path = export(tmp_path / "report1.db", *STRINGS, *KERNELS)
    assert len(load_traces(path).ranks[0].events) == 2


def test_ranges_of_nvtx_are_annotations_and_those_of_emit_nvtx_operators(tmp_path: Path) -> None:
    path = export(
        tmp_path / "a.sqlite", *STRINGS,
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, globalTid)",
        f"INSERT INTO NVTX_EVENTS VALUES (1, 9, 59, 'step', NULL, {PROCESS}), (2, 3, 59, NULL, 3, {PROCESS}), "
        f"(4, NULL, 34, 'mark', NULL, {PROCESS}), (5, 8, 59, 'aten::mm, seq = 12, sizes = [[2, 2]]', NULL, {PROCESS})",
    )  # fmt: skip
    events = load_nsys(path).events
    assert [events.name_of(i) for i in range(3)] == ["step", "ncclAllReduce", "aten::mm"]
    assert [Category(c).name for c in events.category] == ["USER_ANNOTATION", "USER_ANNOTATION", "CPU_OP"]
    assert events.sequence.tolist() == [-1, -1, 12]


def test_copies_sets_and_waits_are_named_as_the_profiler_names_them(tmp_path: Path) -> None:
    path = export(
        tmp_path / "a.sqlite", *STRINGS,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY "
        "(start, end, deviceId, streamId, correlationId, bytes, copyKind, srcKind, dstKind)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 0, 7, 1, 64, 1, 1, 2), (3, 4, 0, 0, 0, 32, 12, 7, 7), "
        "(5, 6, 0, 7, 1, 16, 8, NULL, NULL)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId, correlationId, bytes, memKind)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (7, 8, 0, 7, 1, 8, 2)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION "
        "(start, end, deviceId, streamId, correlationId, syncType, eventId)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (1, 2, 0, 4294967295, 1, 1, 4294967295), "
        "(1, 2, 0, 7, 1, 3, 4294967295), (1, 2, 0, 4294967295, 1, 2, 5), (1, 2, 0, 7, 1, 2, 5)",
    )  # fmt: skip
    events = load_nsys(path).events
    assert [events.name_of(i) for i in range(len(events))] == [
        "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Unified)", "Memcpy DtoD (Unknown -> Unknown)",
        "Memset (Device)", "Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event",
    ]  # fmt: skip
    assert events.copied_bytes == {0: 64, 1: 32, 2: 16, 3: 8}
    assert events.correlation.tolist()[:3] == [1, -1, 1]
    assert events.stream.tolist()[4] == -1
    assert events.is_device.sum() == 4


def test_other_columns_of_other_versions_are_no_obstacle(tmp_path: Path) -> None:
    path = export(
        tmp_path / "a.sqlite", *STRINGS,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 1), (3, 4, 99)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2)",
        "CREATE TABLE OSRT_API (begin INTEGER)",
    )  # fmt: skip
    trace = load_nsys(path)
    assert [trace.events.name_of(i) for i in range(3)] == ["gemm(float*)", "?", "Memcpy ?"]
    assert trace.events.stream.tolist() == [-1, -1, -1]
    assert any("OSRT_API has no column end, start" in n.text for n in trace.notes)


def test_events_without_an_end_are_left_out_and_counted(tmp_path: Path) -> None:
    more = (
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, NULL, 1, 7, 5, {PROCESS}, 1), (9, 8, 1, 7, 5, {PROCESS}, 1)"
    )
    trace = load_nsys(export(tmp_path / "a.sqlite", *STRINGS, *KERNELS, more))
    assert len(trace.events) == 2
    assert any(n.text.startswith("2 events without an end") for n in trace.notes)


def test_cuda_graphs_recorded_as_a_whole_are_said(tmp_path: Path) -> None:
    path = export(
        tmp_path / "a.sqlite", *STRINGS,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, correlationId, graphId)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 9, 0, 7, 3, 4)",
    )  # fmt: skip
    trace = load_nsys(path)
    assert trace.events.name_of(0) == "CUDA graph 4"
    assert any("CUDA graphs were recorded whole" in n.text for n in trace.notes)


def test_the_work_of_several_processes_is_never_merged(tmp_path: Path) -> None:
    more = f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 6, 1, 7, 5, {88 << 24}, 1)"
    with pytest.raises(DataError, match="GPU work of 2 processes") as error:
        load_nsys(export(tmp_path / "a.sqlite", *STRINGS, *KERNELS, more))
    assert "%q{RANK}" in str(error.value)


def test_a_large_table_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nsys, "ROWS_AT_ONCE", 7)
    rows = ", ".join(f"({i}, {i + 1}, 1, 7, {i + 1}, {PROCESS}, {1 + i % 4})" for i in range(100))
    path = export(tmp_path / "a.sqlite", *STRINGS, KERNELS[0], f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {rows}")
    events = load_nsys(path).events
    assert events.ts_ns.tolist() == list(range(100))
    assert events.correlation.tolist() == list(range(1, 101))
    assert [events.name_of(i) for i in (0, 4, 3)] == [
        "gemm(float*)",
        "gemm(float*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "it is empty"), (b"{}", "not an SQLite database"), (b"SQLite format 3\0" + b"x" * 500, "")],
)
def test_what_is_no_export_is_one_clear_error(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(content)
    for read in (load_nsys, load_traces):
        with pytest.raises(DataError) as error:
            read(path)
        assert str(path) in error.value.what
        assert why in (error.value.why or "")
        assert "nsys export" in (error.value.fix or "")


def test_another_database_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not an Nsight Systems export"):
        load_nsys(export(tmp_path / "a.sqlite", "CREATE TABLE people (name TEXT)"))
    with pytest.raises(DataError, match="cannot be read"):
        load_nsys(tmp_path / "none.sqlite")


def test_an_export_cut_short_is_one_clear_error(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", *STRINGS, *KERNELS, *CALLS)
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(DataError):
        load_nsys(path)


@pytest.mark.parametrize("value", ["'soon'", "NULL", "-9223372036854775807", "4611686018427387904", "1.5", "x'ff'"])
@pytest.mark.parametrize("column", ["start", "deviceId", "correlationId", "demangledName"])
def test_what_is_no_number_in_a_column_of_numbers_is_left_out_and_counted(
    column: str, value: str, tmp_path: Path
) -> None:
    change = f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = {value} WHERE start = 150"
    loaded = load_traces(export(tmp_path / "rank0.sqlite", *STRINGS, *KERNELS, *CALLS, change)).ranks[0]
    kept = loaded.events.where(Category.KERNEL)
    assert len(kept) in (1, 2)
    assert loaded.events.name_of(int(kept[0])) == "gemm(float*)"
    if len(kept) == 1:
        said = "not whole numbers in range" if value != "-9223372036854775807" else "left out"
        assert any(said in note.text for note in loaded.notes)


def test_a_view_in_place_of_a_table_is_refused_unread(tmp_path: Path) -> None:
    endless = (
        'WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS "end" FROM n'
    )
    path = export(tmp_path / "rank0.sqlite", *STRINGS, f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    with pytest.raises(DataError, match="not an Nsight Systems export") as error:
        load_nsys(path)
    assert "CUPTI_ACTIVITY_KIND_KERNEL: a view" in (error.value.why or "")


def test_an_export_without_device_work_says_what_to_record(tmp_path: Path) -> None:
    export(tmp_path / "rank0.sqlite", *STRINGS, *CALLS)
    summary = analyse_job(tmp_path)
    (rank,) = summary.ranks
    assert rank.budget is None
    assert [v.verdict.kind for v in summary.verdicts] == ["unknown"]
    assert [fact.kind for fact in rank.quality] == ["not-exported"]
    assert rank.unread is not None


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "rank 3.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"NSYS report")
    return path


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "bin").mkdir()
    nsys = folder / "bin" / "nsys"
    nsys.write_text(f"#!/bin/sh\n{script}\n")
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_without_nsys_the_answer_is_the_command(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError) as refused:
        candidates([report])
    assert f"nsys export --type sqlite --output '{report.with_suffix('.sqlite')}' '{report}'" in str(refused.value)


@pytest.mark.parametrize("by_folder", [True, False])
def test_the_installed_nsys_exports_once(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_folder: bool
) -> None:
    made = export(tmp_path / "made.sqlite", *STRINGS, *KERNELS, *CALLS)
    calls = tmp_path / "calls"
    _install(tmp_path, monkeypatch, f'echo "$@" >> {calls}; cp {made} "$7"')
    for _ in range(2):
        files, _named = candidates([report.parent if by_folder else report])
        assert files == [report.with_suffix(".sqlite")]
    assert len(calls.read_text().splitlines()) == 1
    assert len(load_file(files[0]).events)


def test_what_nsys_says_is_passed_on(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, "echo the report is damaged >&2; exit 1")
    with pytest.raises(DataError, match="nsys could not export it") as refused:
        candidates([report])
    assert refused.value.why == "the report is damaged"
