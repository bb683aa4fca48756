"""One file with all ranks that a viewer loads, and that can be taken apart again."""

from __future__ import annotations

import errno
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trace_builder import Clock, build, write_job

from stepscope.core.errors import DataError, UsageError
from stepscope.results.open import load_evidence
from stepscope.store.writer import WriteError
from stepscope.traces.collectives import communication
from stepscope.traces.envelope import MERGED, MERGED_KEY
from stepscope.traces.events import Events, RankView
from stepscope.traces.load import load_file, load_traces
from stepscope.traces.merge import PIDS_PER_RANK, merge_traces
from stepscope.traces.waiting import job_collectives


def _read(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        merged: dict[str, Any] = json.load(file)
    return merged


def _events(path: Path) -> Events:
    """The merged events, as a file without the mark that refuses it."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    copy = path.with_name("unmarked.json")
    copy.write_bytes(text.replace(MERGED_KEY.encode(), b"other", 1))
    return load_file(copy).events


def _ids(merged: dict[str, Any]) -> Iterator[tuple[str, Any, int]]:
    for event in merged["traceEvents"]:
        rank = event["pid"] // PIDS_PER_RANK
        if "id" in event:
            yield "flow", event["id"], rank
        for key in ("correlation", "External id"):
            if event.get("args", {}).get(key):
                yield key, event["args"][key], rank


def _no_id_is_shared(merged: dict[str, Any]) -> int:
    owners = defaultdict(set)
    for kind, value, rank in _ids(merged):
        owners[kind, value].add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())
    return len(owners)


def test_a_merged_timeline_is_no_rank_of_the_job(tmp_path: Path) -> None:
    folder = write_job(build(world=2, steps=2), tmp_path / "job")
    merge_traces({t.rank: t.path for t in load_traces(folder).ranks}, folder / "all.json.gz")
    loaded = load_traces(folder)
    assert [r.rank for r in loaded.ranks] == [0, 1]
    assert [n.text for n in loaded.notes] == [f"all.json.gz: not a trace: {MERGED}"]
    with pytest.raises(DataError, match="not a PyTorch profiler trace") as refused:
        load_traces(folder / "all.json.gz")
    assert refused.value.why == MERGED
    found = load_evidence([folder])
    assert [len(trace.summary.ranks) for trace in found.traces] == [2]
    assert [each.left_out for each in found.files_found if each.left_out] == [MERGED]


@pytest.mark.parametrize("layout", ["kineto", "compact", "indented"])
def test_all_ranks_stand_beside_each_other(tmp_path: Path, layout: str) -> None:
    planted = build(world=3, steps=2)
    folder = write_job(planted, tmp_path / "job", layout=layout)
    files = {t.rank: t.path for t in load_traces(folder).ranks}
    report = merge_traces(files, tmp_path / "all.json.gz")
    merged = _read(tmp_path / "all.json.gz")
    names = [e["args"]["name"] for e in merged["traceEvents"] if e["name"] == "process_name"]
    assert all(n.startswith("rank ") for n in names)
    assert {n.split(":")[0] for n in names} == {"rank 0", "rank 1", "rank 2"}
    assert _no_id_is_shared(merged) > 0
    assert [p.rank for p in report.ranks] == [0, 1, 2]
    assert report.size_bytes == (tmp_path / "all.json.gz").stat().st_size


def test_every_event_keeps_its_text_and_its_rank(tmp_path: Path) -> None:
    folder = write_job(build(world=2, steps=2, late={1: 100_000}), tmp_path / "job")
    files = {t.rank: t.path for t in load_traces(folder).ranks}
    merge_traces(files, tmp_path / "all.json")
    merged = _events(tmp_path / "all.json")
    pids = [int(pid) for pid, _ in merged.threads]
    for trace in load_traces(folder).ranks:
        mine = [i for i in range(len(merged)) if pids[int(merged.thread[i])] // PIDS_PER_RANK == trace.rank]
        assert merged.ts_ns[mine].tolist() == trace.events.ts_ns.tolist()
        assert merged.dur_ns[mine].tolist() == trace.events.dur_ns.tolist()
        assert [merged.name_of(i) for i in mine] == [trace.events.name_of(i) for i in range(len(mine))]
        assert merged.category[mine].tolist() == trace.events.category.tolist()
        links = {
            (int(a), int(b)) for a, b in zip(merged.correlation[mine], trace.events.correlation, strict=True) if b > 0
        }
        assert len(links) == len({a for a, _ in links}) == len({b for _, b in links})


@pytest.mark.parametrize(
    ("generation", "clock"),
    [
        ("relative", Clock(offset_ns=5_000_001, drift_ppm=30)),
        ("absolute", Clock(offset_ns=-5_000_001, drift_ppm=30)),
        ("whole", Clock(offset_ns=5_000_000)),
    ],
)
def test_clocks_are_moved_to_the_nanosecond(tmp_path: Path, generation: str, clock: Clock) -> None:
    planted = build(world=2, steps=6, generation=generation, clocks={1: clock})
    folder = write_job(planted, tmp_path / "job")
    traces = load_traces(folder).ranks
    found = job_collectives([communication(RankView(t)) for t in traces])
    assert found.clocks.fits[1].status == "corrected"
    merge_traces({t.rank: t.path for t in traces}, tmp_path / "all.json.gz", clocks=found.clocks)
    merged = _events(tmp_path / "all.json.gz")
    ends: dict[int, list[int]] = defaultdict(list)
    for i in range(len(merged)):
        if merged.is_device[i] and "AllReduce" in merged.name_of(i):
            pid = int(merged.threads[int(merged.thread[i])][0])
            ends[pid // PIDS_PER_RANK].append(int(merged.end_ns[i]))
    assert len(ends[0]) == len(planted.collectives)
    for a, b in zip(sorted(ends[0]), sorted(ends[1]), strict=True):
        assert abs(a - b) <= 5
    raw = [e["ts"] for e in _read(tmp_path / "all.json.gz")["traceEvents"] if e["ph"] == "X"]
    assert len(raw) == len(merged)


def test_the_output_is_never_one_of_the_inputs(tmp_path: Path) -> None:
    folder = write_job(build(world=2, steps=1), tmp_path)
    before = (folder / "rank-0.json").read_bytes()
    with pytest.raises(UsageError, match="one of the traces"):
        merge_traces({0: folder / "rank-0.json", 1: folder / "rank-1.json"}, folder / "rank-0.json")
    assert (folder / "rank-0.json").read_bytes() == before


def test_a_name_that_no_viewer_knows_is_refused(tmp_path: Path) -> None:
    folder = write_job(build(world=1, steps=1), tmp_path)
    with pytest.raises(UsageError, match="cannot merge into"):
        merge_traces({0: folder / "rank-0.json"}, tmp_path / "all.zip")
    with pytest.raises(UsageError, match="nothing to merge"):
        merge_traces({}, tmp_path / "all.json.gz")


def test_a_damaged_trace_leaves_no_half_written_file(tmp_path: Path) -> None:
    folder = write_job(build(world=2, steps=1), tmp_path / "job")
    text = (folder / "rank-1.json").read_text()
    (folder / "rank-1.json").write_text(text.replace('"cat": "kernel"', '"cat": kernel', 1))
    with pytest.raises(DataError, match=r"rank-1\.json"):
        merge_traces({r: folder / f"rank-{r}.json" for r in (0, 1)}, tmp_path / "all.json.gz")
    assert [p.name for p in tmp_path.iterdir()] == ["job"]


def test_a_read_only_file_system_is_an_error_of_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    files = {0: next(write_job(build(world=1), tmp_path / "job").iterdir())}
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(WriteError):
        merge_traces(files, tmp_path / "merged.json")


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    other = tmp_path / "rank-0.json"
    other.write_text('{"a": 1}')
    with pytest.raises(DataError, match="not a PyTorch profiler trace"):
        merge_traces({0: other}, tmp_path / "all.json.gz")
