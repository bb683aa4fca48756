"""load_traces: every layout, generation and packing gives the same columns; bad files give one clear line."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from tests.trace_builder import Job, build, rank_text, write_job
from tests.trace_layout import GENERATIONS, LAYOUTS, PACKINGS, rewritten, write
from tests.trace_reference import SHARED, reference_rows, rows_of

from stepscope.core.errors import DataError
from stepscope.traces.load import load_file, load_traces
from stepscope.traces.scan import compiled

TRACES = SHARED / "traces"
real = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the real traces are not at {TRACES}")


def real_files() -> list[Path]:
    others = ("hta_oracle.json", "reference.json")
    return sorted(f for f in TRACES.glob("*/*.json*") if f.name not in others)


@pytest.fixture(scope="module")
def job() -> Job:
    return build(world=2, steps=2, layers=3, memory=True, late={1: 70_000})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_layout_of_every_generation_gives_what_json_gives(generation: str, layout: str, tmp_path: Path) -> None:
    text = rank_text(build(steps=2, layers=3, generation=generation), 0, layout=layout)
    trace = load_file(write(tmp_path / "rank-0.json", text))
    assert rows_of(trace.events) == reference_rows(text)
    assert trace.meta.rank == (None if layout == "bare" else 0)
    assert trace.notes == ()


@pytest.mark.skipif(compiled() is None, reason="event_scan.c is not compiled here: no C compiler")
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("shape", ["ddp", "fsdp", "tensor", "pipeline"])
def test_the_device_scan_sees_every_device_event_and_step(shape: str, generation: str, tmp_path: Path) -> None:
    job = build(shape=shape, generation=generation, world=4)
    path = write(tmp_path / "rank-1.json", rank_text(job, 1))
    full, scanned = load_file(path), load_file(path, device_only=True)
    assert scanned.partial
    kept = full.events.is_device
    steps = np.array([full.events.name_of(i).startswith("ProfilerStep#") for i in range(len(full.events))])
    expected = [r[:7] for r, k in zip(rows_of(full.events), kept | steps, strict=True) if k]
    assert [r[:7] for r in rows_of(scanned.events)] == expected
    assert scanned.events.is_device.sum() == job.truth[1].device_events
    assert scanned.meta == full.meta


def test_a_cpu_job_is_read_in_full_even_when_only_device_events_were_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "rank-0.json", rank_text(build(device="gloo"), 0))
    trace = load_file(path, device_only=True)
    assert not trace.partial
    assert "gloo:all_reduce" in trace.events.names


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("layout", ["kineto", "compact", "indent2"])
def test_packed_files_give_the_same(job: Job, layout: str, packing: str, tmp_path: Path) -> None:
    loaded = load_traces(write_job(job, tmp_path / "job", layout=layout, ending=packing))
    assert [rows_of(r.events) for r in loaded.ranks] == [reference_rows(rank_text(job, r)) for r in (0, 1)]


def test_times_of_absolute_microseconds_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    times = [f"17121954955055{i:02d}.{i * 37 % 1000:03d}" for i in range(100)]
    events = ",".join(f'{{"ph":"X","cat":"kernel","name":"k","ts":{t},"dur":0.001,"pid":0,"tid":7}}' for t in times)
    trace = load_file(write(tmp_path / "rank-0.json", f'{{"traceEvents":[{events}]}}'))
    assert trace.events.ts_ns.tolist() == [int(Decimal(t) * 1000) for t in times]
    assert set(trace.events.dur_ns.tolist()) == {1}
    assert any(round(float(t) * 1000) != int(Decimal(t) * 1000) for t in times)


def test_memory_instants_of_absolute_microseconds_are_exact_without_any_span(tmp_path: Path) -> None:
    instant = '{"ph":"i","name":"[memory]","ts":1712195495505582.123,"pid":1,"tid":1,"args":{"Bytes":8}}'
    trace = load_file(write(tmp_path / "rank-0.json", f'{{"traceEvents":[{instant}]}}'))
    assert trace.events.memory.ts_ns.tolist() == [1712195495505582123]


@pytest.mark.shared_data
@real
@pytest.mark.parametrize("path", real_files(), ids=lambda p: f"{p.parent.name}/{p.name[:8]}")
def test_real_traces_give_what_json_gives(path: Path) -> None:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    trace = load_file(path)
    expected = reference_rows(text)
    assert rows_of(trace.events) == expected
    scanned = load_file(path, device_only=True)
    if scanned.partial:
        on_device = [r[:7] for r in expected if r[2] in ("KERNEL", "MEMCPY", "MEMSET")]
        found = rows_of(scanned.events)
        assert [r[:6] for r in found if r[2] != "USER_ANNOTATION"] == [r[:6] for r in on_device]
        steps = [r[3] for r in expected if r[2] == "USER_ANNOTATION" and r[3].startswith("ProfilerStep#")]
        assert [r[3] for r in found if r[2] == "USER_ANNOTATION"] == steps
    assert trace.notes == ()


@pytest.mark.shared_data
@real
@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != "kineto"])
@pytest.mark.parametrize(
    "name", ["edge-mi250-runtime-stream-arg", "edge-cuda-sync-alexnet-a100", "edge-cpu-gloo-rank34of300"]
)
def test_real_traces_dumped_again_give_the_same(name: str, layout: str, tmp_path: Path) -> None:
    (path,) = (f for f in real_files() if f.parent.name == name)
    original = load_file(path)
    text = rewritten(gzip.decompress(path.read_bytes()).decode(), layout)
    again = load_file(write(tmp_path / "again.json", text))
    assert rows_of(again.events) == rows_of(original.events)
    assert again.events.collectives == original.events.collectives
    assert again.events.copied_bytes == original.events.copied_bytes
    if layout != "bare":
        assert again.meta == original.meta


def test_the_rank_is_not_the_position_in_the_list(tmp_path: Path) -> None:
    job = build(world=4, steps=1)
    folder = write_job(job, tmp_path, name="trace{}".format)
    for files in (["trace3", "trace1"], ["trace1", "trace3"]):
        loaded = load_traces([folder / f"{f}.json" for f in files])
        assert [(r.rank, r.path.name) for r in loaded.ranks] == [(1, "trace1.json"), (3, "trace3.json")]
    assert loaded.world_size == 4


def test_the_rank_of_the_file_name_counts_where_none_is_recorded(job: Job, tmp_path: Path) -> None:
    folder = write_job(job, tmp_path, layout="bare", name="host.rank_{}.x".format)
    loaded = load_traces(folder)
    assert [r.rank for r in loaded.ranks] == [0, 1]
    assert all("from the file name" in r.notes[0].text for r in loaded.ranks)


def test_the_recorded_rank_wins_over_the_file_name_and_says_so(job: Job, tmp_path: Path) -> None:
    trace = load_traces(write(tmp_path / "rank-7.json", rank_text(job, 1)))
    assert trace.ranks[0].rank == 1
    assert "its name says 7" in trace.ranks[0].notes[0].text


def test_a_single_file_without_a_rank_is_rank_0_and_says_so(job: Job, tmp_path: Path) -> None:
    loaded = load_traces(write(tmp_path / "trace.json", rank_text(job, 1, layout="bare")))
    assert loaded.ranks[0].rank == 0
    assert loaded.ranks[0].notes[0].kind == "assumed"


def test_unknown_ranks_of_several_files_are_asked_for(job: Job, tmp_path: Path) -> None:
    folder = write_job(job, tmp_path, layout="bare", name="part{}of2".format)
    with pytest.raises(DataError, match="its rank is unknown") as error:
        load_traces(folder)
    assert "--rank-of" in str(error.value)
    loaded = load_traces(folder, ranks={"part0of2.json": 5, str(folder / "part1of2.json"): 2})
    assert [(r.rank, r.path.name) for r in loaded.ranks] == [(2, "part1of2.json"), (5, "part0of2.json")]


def test_two_files_of_one_rank_are_refused(job: Job, tmp_path: Path) -> None:
    write(tmp_path / "a.json", rank_text(job, 1))
    write(tmp_path / "b.json", rank_text(job, 1))
    with pytest.raises(DataError, match=r"rank 1 twice: a\.json and b\.json"):
        load_traces(tmp_path)


def test_an_executor_maps_the_files(job: Job, tmp_path: Path) -> None:
    folder = write_job(job, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        loaded = load_traces(folder, executor=pool)
    assert [rows_of(r.events) for r in loaded.ranks] == [rows_of(r.events) for r in load_traces(folder).ranks]


def test_a_folder_of_mixed_things_gives_its_traces_and_says_what_was_skipped(job: Job, tmp_path: Path) -> None:
    write_job(job, tmp_path)
    write(tmp_path / "results.json", '{"traceEventsCount": 3, "rows": [{"a": 1}]}')
    write(tmp_path / "list.json", '[{"loss": 1.0}, {"loss": 0.5}]')
    write(tmp_path / "numbers.json", "[1, 2, 3]")
    write(tmp_path / "text.json", "not json at all")
    write(tmp_path / "nothing.json.gz", "")
    write(tmp_path / "notes.txt", "see above")
    (tmp_path / "folder.json").mkdir()
    loaded = load_traces(tmp_path)
    assert [r.rank for r in loaded.ranks] == [0, 1]
    arrays, others = ["list.json", "numbers.json"], ["nothing.json.gz", "results.json", "text.json"]
    reasons = dict.fromkeys(others, 'no "traceEvents" in it') | dict.fromkeys(
        arrays, "an array of other values than events"
    )
    assert [n.text for n in loaded.notes] == [f"{name}: not a trace: {reasons[name]}" for name in sorted(reasons)]
    assert {n.text.partition(":")[0]: n.kind for n in loaded.notes} == {
        **dict.fromkeys(reasons, "beside"),
        "text.json": "missing",
    }


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "[]]", "hello", "{", '[{"a": 1}]', "null", "\x00\x01"])
def test_a_named_file_that_is_no_trace_is_an_error(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", text)
    if text == "[]]":  # an empty array of events, with rubbish behind
        assert len(load_traces(path).ranks[0].events) == 0
        return
    with pytest.raises(DataError, match="not a PyTorch profiler trace"):
        load_traces(path)


def test_a_folder_without_any_trace_says_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "results.json", "{}")
    with pytest.raises(DataError, match="no trace among 1 file") as error:
        load_traces(tmp_path)
    assert "results.json: not a trace" in str(error.value)


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", '{"traceEvents": [ \n ], "a": 1}', "[ ]"])
def test_a_trace_of_no_events_is_a_trace_with_a_note(text: str, tmp_path: Path) -> None:
    trace = load_traces(write(tmp_path / "rank-0.json", text)).ranks[0]
    assert len(trace.events) == 0
    assert [n.text for n in trace.notes if n.kind == "dropped"] == ["the file holds no spans"]


KERNEL = json.dumps(
    {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 9, "pid": 0, "tid": 7, "args": {}}]}
)


@pytest.mark.parametrize("form", ["BE", "C", "be"])
def test_a_timeline_without_spans_is_none_of_torchs(form: str, tmp_path: Path) -> None:
    events = [{"ph": form[i % len(form)], "cat": "sched", "name": "n", "ts": i, "pid": 1} for i in range(20)]
    with pytest.raises(DataError, match="not a PyTorch profiler trace") as error:
        load_traces(write(tmp_path / "rank-0.json", json.dumps({"traceEvents": events})))
    assert "holds no spans" in str(error.value)
    assert "20 " in str(error.value)


def test_settings_in_a_folder_are_none_of_its_traces_and_a_torn_file_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.json", KERNEL)
    write(tmp_path / "config.json", '{"lr": 1}')
    write(tmp_path / "rank-1.json", '{"schemaVersion": 1, "deviceProperties": [{"id": 0,')
    notes = {note.text.partition(":")[0]: note.kind for note in load_traces(tmp_path).notes}
    assert notes == {"config.json": "beside", "rank-1.json": "missing"}


def test_spans_without_a_duration_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "pid": 0, "tid": 7},
        {"ph": "X", "cat": "kernel", "name": "k", "dur": 5, "pid": 0, "tid": 7},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": -1, "pid": 0, "tid": 7},
        {"ph": "X", "name": "no category", "ts": 7, "dur": 1, "pid": 0, "tid": 7},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 9, "dur": 2, "pid": 0, "tid": 7},
        {"ph": "B", "name": "b", "ts": 5, "pid": 0, "tid": 7},
        {"ph": "?", "name": "b", "ts": 5, "pid": 0, "tid": 7},
    ]
    trace = load_file(write(tmp_path / "rank-0.json", json.dumps({"traceEvents": events})))
    assert [(r[0], r[2], r[3]) for r in rows_of(trace.events)] == [
        (7000, "OTHER", "no category"), (9000, "KERNEL", "k")]  # fmt: skip
    texts = [n.text for n in trace.notes]
    assert "2 events without a start or a duration (left out)" in texts
    assert "1 events with a negative duration (left out)" in texts
    assert any("begin/end pairs" in t for t in texts)
    assert any("of no known phase" in t for t in texts)


@pytest.mark.parametrize("value", ["1e300", "-1e300", "99999999999999999999", "1e999999999"])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_impossible_times_are_left_out_and_counted(key: str, value: str, tmp_path: Path) -> None:
    good = '{"ph":"X","cat":"kernel","name":"k","ts":9,"dur":2,"pid":0,"tid":7}'
    bad = good.replace('"ts":9' if key == "ts" else '"dur":2', f'"{key}":{value}')
    later = good.replace('"ts":9', '"ts":19')
    trace = load_file(write(tmp_path / "rank-0.json", f'{{"traceEvents":[{good},{bad},{later}]}}'))
    assert len(trace.events) == 2
    assert any("(left out)" in n.text for n in trace.notes)


def test_a_glob_and_a_trace_folder_below_are_found(job: Job, tmp_path: Path) -> None:
    write_job(job, tmp_path / "run" / "trace")
    assert len(load_traces(tmp_path / "run")) == 2
    assert len(load_traces(str(tmp_path / "run" / "trace" / "rank-*.json"))) == 2
    assert len(load_traces(str(tmp_path / "**" / "rank-1.json"))) == 1
