"""HolisticTraceAnalysis 0.5.0's numbers: equal to its recorded answers, and its known mistakes kept on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.hta_oracle.records import HtaDescription, HtaFailure, HtaReport
from tests.hta_oracle.report import hta_report, kernel_type

from stepscope.traces.events import NONE, Category, Events, RankTrace, TraceMeta, TraceSet
from stepscope.traces.load import load_traces

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "traces"
Row = TypeVar("Row")
SETS = sorted(p.name for p in DATA.iterdir() if p.is_dir()) if DATA.is_dir() else ["none"]
RUNS: dict[str, dict[str, bool]] = {
    "default": {},
    "include_last_profiler_step": {"include_last_profiler_step": True},
    "include_last_profiler_step__no_ns_rounding": {"include_last_profiler_step": True, "ns_rounding": False},
}
ORDER_OF_TIES = ("get_queue_length_summary", "get_memory_bw_summary")
"""Tables that count equal times in the order of numpy's unstable sort; it depends on the processor."""


@dataclass(frozen=True)
class Span:
    """One event by hand, in microseconds."""

    name: str
    start: float
    duration: float
    category: Category = Category.KERNEL
    stream: int = NONE
    correlation: int = NONE


def kernel(name: str, start: float, duration: float, *, correlation: int, stream: int = 7) -> Span:
    return Span(name, start, duration, Category.KERNEL, stream, correlation)


def launch(start: float, *, correlation: int, name: str = "cudaLaunchKernel") -> Span:
    return Span(name, start, 1, Category.RUNTIME, NONE, correlation)


def step(number: int, start: float, duration: float) -> Span:
    return Span(f"ProfilerStep#{number}", start, duration, Category.USER_ANNOTATION)


def events_of(*spans: Span) -> Events:
    names = tuple(dict.fromkeys(s.name for s in spans))
    wide = {i: s.stream for i, s in enumerate(spans) if s.stream > 2**31 - 1}

    def column(values: list[int], dtype: Any) -> Any:
        return np.array(values, dtype=dtype)

    count = len(spans)
    return Events(
        ts_ns=column([round(s.start * 1000) for s in spans], np.int64),
        dur_ns=column([round(s.duration * 1000) for s in spans], np.int64),
        category=column([s.category for s in spans], np.int8),
        name=column([names.index(s.name) for s in spans], np.int32),
        thread=np.zeros(count, dtype=np.int32),
        stream=column([NONE if i in wide else s.stream for i, s in enumerate(spans)], np.int32),
        device=np.zeros(count, dtype=np.int32),
        correlation=column([s.correlation for s in spans], np.int64),
        external_id=np.full(count, NONE, dtype=np.int64),
        sequence=np.full(count, NONE, dtype=np.int64),
        forward_thread=np.full(count, NONE, dtype=np.int32),
        shape=np.full(count, NONE, dtype=np.int32),
        names=names,
        threads=(("0", "0"),),
        wide_streams=wide,
    )


def job(*ranks: Events) -> TraceSet:
    return TraceSet(
        ranks=tuple(
            RankTrace(rank=i, path=Path(f"rank-{i}.json"), size_bytes=1, events=e, meta=TraceMeta(rank=i))
            for i, e in enumerate(ranks)
        )
    )


def report_of(*spans: Span, **options: Any) -> HtaReport:
    return hta_report(job(events_of(*spans)), **options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "COMMUNICATION"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "COMMUNICATION"),
        ("ncclSymk", "COMPUTATION"),
        ("Memcpy DtoH (Device -> Pageable)", "MEMORY"),
        ("Memset (Device)", "MEMORY"),
        ("Stream Wait Event", "COMPUTATION"),
        ("Stream Sync", "OTHER"),
        ("void kernelWithSyncInItsName()", "OTHER"),
        ("void myMemcpyKernel()", "OTHER"),
        ("void myMemsetKernel()", "COMPUTATION"),
        ("rccl_AllReduce", "COMPUTATION"),
    ],
)
def test_classes_come_from_the_name_alone_as_hta_reads_it(name: str, expected: str) -> None:
    assert kernel_type(name) == expected


def test_computation_hides_the_communication_and_the_copies_under_it() -> None:
    report = report_of(
        launch(0, correlation=1), kernel("gemm", 10, 100, correlation=1),
        launch(1, correlation=2), kernel("ncclKernel_AllReduce", 50, 100, correlation=2, stream=20),
        launch(2, correlation=3), kernel("Memcpy HtoD", 170, 30, correlation=3),
    )  # fmt: skip
    assert not isinstance(report.temporal, HtaFailure)
    (row,) = report.temporal
    assert (row.compute_us, row.non_compute_us, row.idle_us, row.kernel_us) == (100, 70, 20, 190)
    assert row.idle_percent == 10.53
    assert report.overlap[0].overlap_percent == 60.0
    assert {t.kernel_type: t.sum_us for t in report.kernel_types} == {
        "COMPUTATION": 40,
        "COMPUTATION overlapping COMMUNICATION": 60,
        "COMMUNICATION": 40,
        "MEMORY": 30,
    }


def test_a_wait_with_an_unset_stream_counts_as_device_work() -> None:
    wait = Span("Stream Wait Event", 0, 500, Category.SYNC, 2**32 - 1, 9)
    report = report_of(launch(0, correlation=1), kernel("gemm", 10, 100, correlation=1), wait)
    assert not isinstance(report.temporal, HtaFailure)
    assert report.temporal[0].compute_us == 500


def test_rounding_moves_starts_up_and_ends_down_so_a_short_kernel_is_negative() -> None:
    spans = [launch(0, correlation=1), kernel("tiny", 10.2, 0.5, correlation=1)]
    (rounded,) = report_of(*spans).kernels
    (exact,) = report_of(*spans, ns_rounding=False).kernels
    assert (rounded.sum_us, exact.sum_us) == (-1.0, 0.5)


def test_whole_microseconds_are_left_alone_even_with_fractional_durations() -> None:
    (row,) = report_of(launch(0, correlation=1), kernel("k", 10, 0.5, correlation=1)).kernels
    assert row.sum_us == 0.5


def test_the_last_step_and_work_launched_before_the_window_are_dropped() -> None:
    spans = [
        step(1, 100, 100), step(2, 200, 100),
        launch(110, correlation=1), kernel("a", 120, 10, correlation=1),
        launch(210, correlation=2), kernel("b", 220, 10, correlation=2),
        kernel("launched before the window", 105, 10, correlation=77),
    ]  # fmt: skip
    assert [k.name for k in report_of(*spans).kernels] == ["a"]
    with_last = report_of(*spans, include_last_profiler_step=True)
    assert [k.name for k in with_last.kernels] == ["a", "b"]


def test_with_a_single_step_nothing_is_dropped() -> None:
    spans = [
        step(1, 0, 50),
        kernel("no launch", 10, 10, correlation=77),
        kernel("late", 90, 1, correlation=78),
    ]
    assert len(report_of(*spans).kernels) == 2


def test_device_work_with_two_host_events_of_its_correlation_counts_twice() -> None:
    spans = [
        step(1, 0, 50), step(2, 50, 50),
        launch(10, correlation=1), launch(11, correlation=1, name="cuLaunchKernel"),
        kernel("a", 20, 10, correlation=1),
    ]  # fmt: skip
    assert report_of(*spans).kernels[0].sum_us == 20


def test_beyond_ten_names_mean_and_sum_are_the_same_for_every_named_kernel() -> None:
    spans: list[Span] = []
    for correlation in range(1, 25):
        number = (correlation - 1) // 2
        spans.append(launch(0, correlation=correlation))
        spans.append(kernel(f"k{number:02}", 100 * correlation, 24 - number, correlation=correlation))
    table = report_of(*spans).kernels
    named = [k for k in table if k.name != "others"]
    (others,) = [k for k in table if k.name == "others"]
    assert len(named) < 12
    assert all(k.mean_us == k.sum_us == k.max_us for k in named)
    assert others.sum_us + sum(k.sum_us for k in named) == sum(2 * (24 - i) for i in range(12))
    correct = report_of(*spans, num_kernels=100).kernels
    assert {k.name: k.mean_us for k in correct} == {f"k{i:02}": 24 - i for i in range(12)}


def test_gaps_are_taken_against_the_previous_kernel_not_the_latest_end() -> None:
    report = report_of(
        Span("first event", 0, 1, Category.CPU_OP),
        launch(1, correlation=1), kernel("long", 10, 100, correlation=1),
        launch(2, correlation=2), kernel("inside", 20, 10, correlation=2),
        launch(3, correlation=3), kernel("also inside", 50, 10, correlation=3),
        launch(200, correlation=4), kernel("launched late", 205, 10, correlation=4),
    )  # fmt: skip
    assert not isinstance(report.idle, HtaFailure)
    found = {row.category: row.idle_us for row in report.idle}
    assert found == {"host_wait": 145.0, "kernel_wait": -90.0 + 20.0, "other": 0.0}


def test_two_stragglers_are_named_even_where_one_rank_alone_is_late() -> None:
    def rank(start: float) -> Events:
        return events_of(
            step(3, 0, 1000), launch(5, correlation=1),
            kernel("ncclKernel_AllReduce", start, 900 - start, correlation=1),
        )  # fmt: skip

    assert hta_report(job(rank(100), rank(101), rank(600))).stragglers == (1, 2)


def test_newer_nccl_names_give_the_exception_instead_of_stragglers() -> None:
    report = report_of(step(3, 0, 1000), launch(5, correlation=1), kernel("ncclDevKernel_X", 10, 900, correlation=1))
    assert isinstance(report.stragglers, HtaFailure)
    assert report.stragglers.raises == "ValueError"


def test_a_cpu_trace_fails_as_it_fails_in_hta() -> None:
    report = report_of(Span("aten::mm", 0, 10, Category.CPU_OP))
    assert isinstance(report.temporal, HtaFailure)
    assert isinstance(report.idle, HtaFailure)
    assert report.temporal.raises == "IndexError"
    assert report.overlap[0].overlap_percent is None
    assert (report.kernel_types, report.kernels) == ((), ())


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is absent")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("trace_set", SETS)
def test_every_table_equals_what_hta_printed(trace_set: str, run: str) -> None:
    traces = load_traces(DATA / trace_set)
    printed = json.loads((DATA / trace_set / "hta_oracle.json").read_text())["runs"][run]
    assert printed.pop("ranks") == [r.rank for r in traces.ranks]
    default = hta_report(traces, **RUNS[run])
    full = hta_report(traces, num_kernels=10**9, duration_ratio=1.0, **RUNS[run])
    for table, expected in printed.items():
        found = _as_printed(table, full if table.endswith("all_kernels") else default)
        same_order = table not in ORDER_OF_TIES or _sorts_like_the_oracle()
        differences = list(_differences(found, expected, 0.0 if same_order else 0.03))
        assert not differences, (table, differences[:3])


def _sorts_like_the_oracle() -> bool:
    from numpy._core._multiarray_umath import __cpu_features__

    return bool(__cpu_features__.get("X86_V4"))


def _as_printed(table: str, report: HtaReport) -> Any:
    """Our records in the shape of the recorded answers."""
    match table:
        case "get_temporal_breakdown":
            return _failed(report.temporal) or [
                {
                    "rank": t.rank, "idle_time(us)": t.idle_us, "compute_time(us)": t.compute_us,
                    "non_compute_time(us)": t.non_compute_us, "kernel_time(us)": t.kernel_us,
                    "idle_time_pctg": t.idle_percent, "compute_time_pctg": t.compute_percent,
                    "non_compute_time_pctg": t.non_compute_percent,
                }
                for t in _rows(report.temporal)
            ]  # fmt: skip
        case "get_comm_comp_overlap":
            return [{"rank": o.rank, "comp_comm_overlap_pctg": o.overlap_percent} for o in report.overlap]
        case "get_idle_time_breakdown":
            return _failed(report.idle) or [
                {
                    "rank": i.rank, "stream": i.stream, "idle_category": i.category,
                    "idle_time": i.idle_us, "idle_time_ratio": i.ratio,
                }
                for i in _rows(report.idle)
            ]  # fmt: skip
        case "get_gpu_kernel_breakdown_default_top10" | "get_gpu_kernel_breakdown_all_kernels":
            types = [
                {"kernel_type": t.kernel_type, "sum": t.sum_us, "percentage": t.percent} for t in report.kernel_types
            ]
            kernels = [
                {
                    "name": k.name, "sum (us)": k.sum_us, "max (us)": k.max_us, "min (us)": k.min_us,
                    "stddev": k.std_us, "mean (us)": k.mean_us, "kernel_type": k.kernel_type, "rank": k.rank,
                }
                for k in report.kernels
            ]  # fmt: skip
            return {"kernel_type": types, "kernels": kernels}
        case "get_queue_length_summary":
            return _failed(report.queues) or [
                {"('rank', '')": q.rank, "('stream', '')": q.stream, **_described("queue_length", q.length)}
                for q in _rows(report.queues)
            ]
        case "get_memory_bw_summary":
            return [
                {"('rank', '')": b.rank, "('name', '')": b.name, **_described("memory_bw_gbps", b.gb_per_s)}
                for b in report.bandwidths
            ]
        case "get_potential_stragglers":
            return _failed(report.stragglers) or list(_rows(report.stragglers))
    raise AssertionError(f"a table that is not compared: {table}")


def _rows(table: tuple[Row, ...] | HtaFailure) -> tuple[Row, ...]:
    return () if isinstance(table, HtaFailure) else table


def _failed(table: object) -> dict[str, str] | None:
    return {"error": table.raises} if isinstance(table, HtaFailure) else None


def _described(column: str, d: HtaDescription) -> dict[str, Any]:
    values = {"count": d.count, "mean": d.mean, "std": d.std, "min": d.min,
              "25%": d.p25, "50%": d.p50, "75%": d.p75, "max": d.max}  # fmt: skip
    return {f"('{column}', '{key}')": value for key, value in values.items()}


def _differences(found: Any, expected: Any, tolerance: float, place: str = "") -> Iterator[str]:
    """Where the values differ in a printed digit: six decimals, or six digits of a tiny number."""
    if isinstance(expected, dict) and "error" in expected:
        # Where HTA returns no table at all, the recording script failed on it.
        expected = [] if expected["error"].startswith("AttributeError: 'NoneType'") else expected
        if expected:
            expected = {"error": expected["error"].split(":")[0]}
        if found != expected:
            yield f"{place}: {found} for {expected}"
    elif isinstance(expected, dict):
        if set(found) != set(expected):
            yield f"{place}: keys {sorted(found)}"
        for key, value in expected.items():
            yield from _differences(found.get(key), value, tolerance, f"{place}.{key}")
    elif isinstance(expected, list):
        if len(found) != len(expected):
            yield f"{place}: {len(found)} rows for {len(expected)}"
        for i, (a, b) in enumerate(zip(found, expected, strict=False)):
            yield from _differences(a, b, tolerance, f"{place}[{i}]")
    elif isinstance(expected, float) and isinstance(found, int | float):
        same = round(found, 6) == expected or float(f"{found:.6g}") == expected
        if not same and abs(found - expected) > tolerance * max(abs(expected), 1.0):
            yield f"{place}: {found} for {expected}"
    elif found != expected:
        yield f"{place}: {found} for {expected}"
