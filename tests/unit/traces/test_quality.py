"""What a trace lacks or cannot be is counted, and takes away what rests on it; sound traces have no such fact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.grids import Grid, write_grid
from tests.hand_events import Row, call, copy, events, kernel, launch, op, trace
from tests.trace_builder import build, write_job

from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose_traces
from stepscope.examples.jobs import EXAMPLES
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.idle import idle_causes
from stepscope.traces.job import analyse_job
from stepscope.traces.load import load_file
from stepscope.traces.plausible import plausible
from stepscope.traces.rank_pass import analyse

US, MS, HOUR = 1_000, 1_000_000, 3_600_000_000_000


def launched(
    count: int, *, lost: set[int] = frozenset(), name: str = "cudaLaunchKernel", more: Sequence[Row] = ()
) -> RankTrace:
    """A launch every 100 us, each with a kernel of 60 us that begins 10 us later, but for those that are lost."""
    rows = []
    for i in range(count):
        at = i * 100 * US
        rows += [op("aten::mm", at - 2 * US, at + 6 * US), call(name, at, at + 4 * US, correlation=i + 1)]
        if i not in lost:
            rows.append(kernel("gemm", at + 10 * US, at + 70 * US, i + 1))
    return trace(*rows, *more)


@pytest.mark.parametrize(
    "name", ["cudaLaunchKernel", "hipExtModuleLaunchKernel", "cuLaunchKernelEx", "urEnqueueKernelLaunch"]
)
def test_gaps_with_lost_kernels_have_no_cause(name: str) -> None:
    recorded = launched(100, lost={20, 21, 22, 60}, name=name)
    assert [(f.kind, f.count, f.of, f.matters) for f in analyse(recorded).quality] == [
        ("missing-kernels", 4, 100, True)
    ]
    idle = {cause.cause: (cause.idle_ns, cause.gap_count) for cause in idle_causes(RankView(recorded))}
    assert idle["unknown"] == (340 * US + 140 * US, 2)
    assert sum(ns for ns, _ in idle.values()) == (100 * 100 - 40) * US - 96 * 60 * US + 10 * US - 10 * US


def test_what_a_graph_capture_took_is_told_from_what_was_dropped() -> None:
    recorded = launched(40, lost={5, 6, 7, 30})
    rows = recorded.events
    more = events(
        [call("cudaStreamBeginCapture", 450 * US, 451 * US), call("cudaStreamEndCapture", 790 * US, 791 * US)]
    )
    assert len(more) == 2
    captured = trace(*_rows_of(40, {5, 6, 7, 30}), *_capture(450, 790))
    facts = {fact.kind: fact.count for fact in analyse(captured).quality}
    assert facts == {"captured-kernels": 3, "missing-kernels": 1}
    assert len(rows) == len(captured.events) - 2


def _rows_of(count: int, lost: set[int]) -> list:
    rows = []
    for i in range(count):
        at = i * 100 * US
        rows += [op("aten::mm", at - 2 * US, at + 6 * US), launch(at, at + 4 * US, i + 1)]
        if i not in lost:
            rows.append(kernel("gemm", at + 10 * US, at + 70 * US, i + 1))
    return rows


def _capture(low: int, high: int) -> list:
    return [
        call("cudaStreamBeginCapture", low * US, (low + 1) * US),
        call("cudaStreamEndCapture", high * US, (high + 1) * US),
    ]


def test_links_that_were_never_recorded_are_no_loss() -> None:
    rows = [
        row
        for i in range(10)
        for row in (launch(i * 100, i * 100 + 4, i + 1), kernel("gemm", i * 100 + 10, i * 100 + 50))
    ]
    assert analyse(trace(*rows)).quality == ()


@pytest.mark.parametrize("linked", [True, False])
def test_kernels_that_are_all_lost_are_counted_where_a_copy_shows_that_links_were_recorded(linked: bool) -> None:
    copies = [call("cudaMemcpyAsync", 5 * MS, 5 * MS + US, correlation=500)]
    copies += [copy("Memcpy HtoD", 5 * MS + 2 * US, 5 * MS + 50 * US, 500 if linked else 999)]
    facts = analyse(launched(40, lost=set(range(40)), more=copies)).quality
    assert [(f.kind, f.count, f.of) for f in facts] == ([("missing-kernels", 40, 40)] if linked else [])


def test_times_outside_of_the_capture_are_left_out() -> None:
    base = 700_000 * HOUR
    rows = [kernel(f"k{i}", base + i * MS, base + i * MS + 500 * US) for i in range(20)]
    broken = [kernel("lost", 0, 0), kernel("lost", 0, 400), kernel("endless", base, base + 2 * HOUR)]
    kept, facts = plausible(events([*rows, *broken]))
    assert [(f.kind, f.count, f.of) for f in facts] == [("impossible-times", 3, 23)]
    assert (int(kept.ts_ns.min()), int(kept.end_ns.max())) == (base, base + 19 * MS + 500 * US)


def test_an_end_behind_the_next_of_its_stream_is_cut_there() -> None:
    rows = [kernel("k", i * MS, i * MS + 900 * US, i + 1) for i in range(20)]
    rows += [copy("Memcpy DtoH", 950 * US, 15 * MS, 77, stream=7)]
    kept, facts = plausible(events(rows))
    assert [(f.kind, f.count, f.time_ns) for f in facts] == [("impossible-ends", 1, 15 * MS - 950 * US - 50 * US)]
    assert int(kept.dur_ns[-1]) == 50 * US


def _busy(count: int, step: int = MS) -> list:
    rows = []
    for i in range(count):
        rows += [launch(i * step, i * step + 5 * US, i + 1), kernel("gemm", i * step + 10 * US, (i + 1) * step, i + 1)]
    return [*rows, call("cudaDeviceSynchronize", (count - 1) * step + 6 * US, count * step + 9 * US)]


@pytest.mark.parametrize("moved", [-20_000, 30_000], ids=["before its launch", "behind what follows it"])
@pytest.mark.parametrize("step", [MS, 400 * MS], ids=["a short capture", "a long one"])
def test_a_few_kernels_at_times_without_calls_are_left_out(moved: int, step: int) -> None:
    rows = _busy(40, step)
    window = 40 * step - 10 * US
    for place in (21, 23):
        row = rows[place]
        rows[place] = kernel("gemm", row.start + moved * MS, row.end + moved * MS, (place + 1) // 2)
    kept, facts = plausible(events(rows))
    assert [(f.kind, f.count, f.of, f.matters) for f in facts] == [("impossible-times", 2, 40, True)]
    device = kept.is_device
    assert int(kept.end_ns[device].max() - kept.ts_ns[device].min()) == window


@pytest.mark.parametrize("queue", ["another clock", "a long queue", "work from before"])
def test_many_kernels_or_the_last_of_a_queue_may_lie_outside_of_all_calls(queue: str) -> None:
    rows = _busy(40, 200 * MS)[:-1]
    if queue == "another clock":
        rows = [r if r.name != "gemm" else kernel("gemm", r.start - HOUR // 2, r.end - HOUR // 2, 1) for r in rows]
    elif queue == "a long queue":  # the host is done, the last ones run
        rows += [kernel("gemm", (10_000 + i) * MS, (10_001 + i) * MS, 40 + i) for i in range(3)]
        rows += [launch(7_900 * MS, 7_901 * MS, 40 + i) for i in range(3)]
    else:  # launched before the capture
        rows += [kernel("gemm", -3_000 * MS, -2_000 * MS, 900)]
    made = events(rows)
    kept, facts = plausible(made)
    assert facts == ()
    assert len(kept) == len(made)


def test_the_last_kernel_cannot_last_until_long_after_all_calls() -> None:
    rows = _busy(40)
    rows[-2] = kernel("gemm", 39 * MS + 10 * US, 3000_000 * MS, 40)
    kept, facts = plausible(events(rows))
    assert [(f.kind, f.count) for f in facts] == [("impossible-ends", 1)]
    assert int(kept.end_ns.max()) == 40 * MS + 9 * US


@pytest.mark.parametrize(("behind", "matters"), [(5 * MS, True), (20 * US, False)])
def test_a_device_whose_clock_is_behind_the_hosts_has_no_causes_of_idle_time(behind: int, matters: bool) -> None:
    rows = [r if r.name != "gemm" else replace(r, start=r.start - behind, end=r.end - behind) for r in _busy(30)]
    facts = analyse(trace(*rows)).quality
    expected = [("clocks-apart", 30, 30, 5 * MS - 10 * US, ("idle",))] if matters else []
    assert [(f.kind, f.count, f.of, f.time_ns, f.takes) for f in facts] == expected


def test_a_lost_launch_behind_the_work_before_a_gap_may_have_run_in_it() -> None:
    """A graph of which no kernel is recorded is launched while the device works; the gap comes later."""
    rows = _busy(4)[:-1]
    rows += [call("hipGraphLaunch", 3 * MS + 100 * US, 3 * MS + 110 * US, correlation=77)]
    rows += [launch(30 * MS, 30 * MS + 5 * US, 99), kernel("gemm", 30 * MS + 10 * US, 31 * MS, 99)]
    causes = {idle.cause: idle.idle_ns for idle in idle_causes(RankView(trace(*rows)))}
    assert causes["unknown"] == 26 * MS + 10 * US
    assert causes["host_late"] == 3 * 5 * US


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "hipMemcpyAsync", "cudaMemsetAsync"])
def test_copies_that_were_lost_leave_their_gaps_unknown(name: str) -> None:
    """Only where every such call has its copy in a whole file."""
    rows = _busy(6)[:-1]
    rows += [call(name, 20 * US, 25 * US, correlation=70), copy("Memcpy HtoD", 30 * US, 40 * US, 70, stream=9)]
    rows += [call(name, 5 * MS + 20 * US, 5 * MS + 25 * US, correlation=71)]
    rows += [launch(5 * MS + 30 * US, 5 * MS + 35 * US, 99), kernel("gemm", 26 * MS, 27 * MS, 99)]
    facts = [(f.kind, f.count, f.of) for f in analyse(trace(*rows)).quality]
    causes = {idle.cause: idle.idle_ns for idle in idle_causes(RankView(trace(*rows)))}
    lost = name == "cudaMemcpyAsync"
    assert facts == ([("missing-copies", 1, 2)] if lost else [])
    assert causes["unknown" if lost else "dependency"] == 20 * MS


def test_what_stands_in_the_file_twice_is_read_once() -> None:
    rows = _busy(20)
    kept, facts = plausible(events([*rows, *[row for row in rows if row.name == "gemm"][5:11]]))
    assert [(f.kind, f.count, f.of, f.matters) for f in facts] == [("repeated", 6, 26, False)]
    assert len(kept) == len(rows)


@pytest.mark.parametrize("case", ["another stream", "a graph's branches", "an early start"])
def test_work_that_runs_side_by_side_is_left_as_it_is(case: str) -> None:
    stream = 8 if case == "another stream" else 7
    end = 1_050 * US if case == "an early start" else 15 * MS
    rows = [kernel("k", i * MS, i * MS + 900 * US, 5) for i in range(20)]
    rows += [kernel("beside", 950 * US, end, 5, stream=stream), call("cudaGraphLaunch", -5 * US, 0, correlation=5)]
    if case != "a graph's branches":
        rows.pop()
    made = events(rows)
    kept, facts = plausible(made)
    assert facts == ()
    assert np.array_equal(kept.dur_ns, made.dur_ns)


def test_a_sound_job_has_no_such_fact(tmp_path: Path) -> None:
    summary = analyse_job(write_job(build(world=2), tmp_path))
    assert summary.quality == ()
    assert all(finding.rule != "unfit-trace" for finding in diagnose_traces(summary).findings)


def test_rules_that_rest_on_what_is_lacking_are_not_asked(tmp_path: Path) -> None:
    summary = analyse_job(_written(tmp_path, launched(100, lost=set(range(20, 80)))))
    diagnosis = diagnose_traces(summary)
    assert diagnosis.findings[0].rule == "unfit-trace"
    assert {finding.rule for finding in diagnosis.findings}.isdisjoint(
        {"launch-bound", "queued-idle", "python-overhead"}
    )
    assert [s.reason for s in diagnosis.skipped if s.rule == "queued-idle"] == [summary.quality[0].text]


def test_a_job_that_lacks_most_kernels_has_no_long_gap_no_steps_and_no_mfu(tmp_path: Path) -> None:
    EXAMPLES["unfit"].write(tmp_path / "job")
    summary = analyse_job(tmp_path / "job")
    assert [(f.kind, f.rank, f.count, f.of) for f in summary.quality] == [
        ("missing-kernels", 0, 176, 294),
        ("missing-kernels", 1, 176, 294),
    ]
    assert [finding.rule for finding in diagnose_traces(summary).findings] == ["unfit-trace"]
    for rank in summary.ranks:
        assert rank.long_gaps == ()
        assert rank.steps == ()
        assert {missing.section: missing.reason for missing in rank.unavailable}["steps"] == summary.quality[0].text
        assert rank.utilisation is not None
        assert (rank.utilisation.mfu, rank.utilisation.steps) == (None, ())
        assert max(rank.idle, key=lambda cause: cause.idle_ns).cause == "unknown"


def _written(folder: Path, recorded: RankTrace) -> Path:
    spans, categories = recorded.events, {1: "kernel", 4: "cpu_op", 5: "cuda_runtime"}
    rows = [
        {
            "ph": "X", "cat": categories[int(spans.category[i])], "name": spans.name_of(i), "pid": 1, "tid": 1,
            "ts": 1e6 + spans.ts_ns[i] / 1e3, "dur": spans.dur_ns[i] / 1e3,
            "args": {"correlation": int(spans.correlation[i]), "stream": 7, "device": 0}
            if spans.category[i] != 4
            else {},
        }
        for i in range(len(spans))
    ]  # fmt: skip
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": rows}))
    return folder


@pytest.mark.parametrize("category", ["FEE", "devtools.timeline", "disabled-by-default-v8.cpu_profiler", ""])
def test_a_file_of_another_tool_is_refused_with_its_categories(tmp_path: Path, category: str) -> None:
    rows = [{"ph": "X", "cat": category, "name": "f", "pid": 1, "tid": 1, "ts": i * 10, "dur": 5} for i in range(30)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    with pytest.raises(DataError, match="not a PyTorch profiler trace") as caught:
        load_file(tmp_path / "trace.json")
    assert f"{category or 'no category'} (30 spans)" in str(caught.value.why)


def test_one_span_of_the_profiler_makes_it_a_trace(tmp_path: Path) -> None:
    rows = [{"ph": "X", "cat": "FEE", "name": "f", "pid": 1, "tid": 1, "ts": i * 10, "dur": 5} for i in range(30)]
    rows.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 400, "dur": 5})
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    assert len(load_file(tmp_path / "trace.json").events) == 31


def test_launches_behind_the_place_where_a_file_stops_are_no_fact_of_their_own(tmp_path: Path) -> None:
    job = _written(tmp_path, launched(100, lost=set(range(80, 100))))
    assert [fact.count for fact in analyse_job(job).quality] == [20]
    for file in job.glob("*.json*"):
        file.write_text(file.read_text().rstrip().rstrip("]}").rstrip())
    assert analyse_job(job).quality == ()


def test_communication_is_not_exposed_where_the_kernels_beside_it_are_lost(tmp_path: Path) -> None:
    grid = Grid(replicas=2, micro_batches=4, steps=3)
    write_grid(grid, tmp_path)
    for file in tmp_path.glob("*.json"):
        document = json.loads(file.read_text())
        kept = [e for i, e in enumerate(document["traceEvents"]) if "gemm" not in e["name"] or i % 3 == 0]
        file.write_text(json.dumps({**document, "traceEvents": kept}))
    diagnosis = diagnose_traces(analyse_job(tmp_path))
    assert diagnosis.findings[0].rule == "unfit-trace"
    assert all(finding.rule != "exposed-communication" for finding in diagnosis.findings)
    assert "exposed-communication" in {skipped.rule for skipped in diagnosis.skipped}
