"""A trace read by several processes is the trace that one process reads."""

from __future__ import annotations

import gzip
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.trace_reference import SHARED

from stepscope.core.errors import DataError
from stepscope.traces import load
from stepscope.traces.events import RankTrace
from stepscope.traces.job import analyse_job
from stepscope.traces.load import load_file
from stepscope.traces.sections import SCANNED, Wanted

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the real traces are not beside this checkout"),
]

REAL = ("ns-resolution-v100", "nccl-meta-a100-rank0of2", "resnet-ddp-mi300-rank0of8", "edge-cpu-gloo-rank34of300")


def real_trace_text(name: str) -> bytes:
    (packed,) = (SHARED / "traces" / name).glob("*.gz")
    return gzip.decompress(packed.read_bytes())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every file is worth several processes; what they were given to read."""
    read: list[object] = []
    original = load.read_parts

    def note(*args: object, **kwargs: object) -> tuple[int, int] | None:
        done = original(*args, **{**kwargs, "part_bytes": 1 << 20})  # type: ignore[arg-type]
        read.append(done)
        return done

    monkeypatch.setattr(load, "WORTH_BYTES", 0)
    monkeypatch.setattr(load, "read_parts", note)
    return read


def same(a: RankTrace, b: RankTrace) -> None:
    """Equal but for the order of the tables of names, which the device scan leaves open."""
    for f in fields(a.events):
        left, right = getattr(a.events, f.name), getattr(b.events, f.name)
        if f.name in ("name", "thread", "shape"):
            tables = [(*getattr(each.events, f"{f.name}s"), None) for each in (a, b)]  # NONE, -1: the last
            assert [tables[0][i] for i in left] == [tables[1][i] for i in right], f.name
        elif isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            assert np.array_equal(left, right), f.name
        elif f.name == "memory":
            assert left is None is right
        elif f.name in ("names", "threads", "shapes"):
            assert sorted(left, key=repr) == sorted(right, key=repr)
        else:
            assert left == right, f.name
    assert (a.meta, a.notes, a.partial, a.rank) == (b.meta, b.notes, b.partial, b.rank)


@pytest.mark.parametrize(
    ("name", "device_only"), [(REAL[0], False), (REAL[0], True), (REAL[1], True), (REAL[2], False)]
)
def test_columns_notes_and_header_are_equal(
    name: str, device_only: bool, tmp_path: Path, small_parts: list[object]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(real_trace_text(name))
    together = load_file(path, device_only=device_only, processes=2)
    assert small_parts[0] is not None
    same(together, load_file(path, device_only=device_only))


def test_the_stretches_are_whole_events_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = real_trace_text(REAL[0])
    path.write_bytes(text)
    found = load.cuts(path, part_bytes=1 << 20)
    assert len(found) > 10
    for (_, end), (start, _) in pairwise(found):
        assert text[end:start] == b",\n"
        assert text[end - 3 : end] == b"  }"
        assert text[start : start + 4] == b"  {\n"


@pytest.mark.parametrize("damage", ["event", "packed", "other layout"])
def test_what_needs_a_second_look_is_read_by_one_process(
    damage: str, tmp_path: Path, small_parts: list[object]
) -> None:
    text = real_trace_text(REAL[1])
    middle = text.index(b'"ph": "X"', len(text) // 2)
    path = tmp_path / "trace.json"
    if damage == "event":
        path.write_bytes(text[:middle] + b'"ph": "X" ?' + text[middle + 9 :])
        with pytest.raises(DataError, match="not valid JSON near byte"):
            load_file(path, processes=2)
    else:
        path.write_bytes(gzip.compress(text) if damage == "packed" else text.replace(b"\n  ", b"\n"))
        same(load_file(path, processes=2), load_file(path))
    assert small_parts == [None]


def test_an_error_behind_the_stretches_tells_its_place_in_the_file(tmp_path: Path, small_parts: list[object]) -> None:
    text = real_trace_text(REAL[1])
    at = text.rindex(b'"ph": "X"')
    path = tmp_path / "trace.json"
    path.write_bytes(text[:at] + b'"ph": "X" ?' + text[at + 9 :])
    with pytest.raises(DataError) as alone:
        load_file(path)
    with pytest.raises(DataError) as together:
        load_file(path, processes=2)
    assert small_parts[0] is not None
    assert str(together.value) == str(alone.value)


@pytest.mark.parametrize("name", REAL)
def test_budget_and_overlap_of_the_device_scan_are_those_of_the_whole_reading(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(real_trace_text(name))
    (quick,) = analyse_job(path, Wanted(sections=SCANNED)).ranks
    (full,) = analyse_job(path, Wanted(sections=frozenset({"budget", "overlap", "steps"}))).ranks
    assert quick.budget is not None
    assert quick.partial == (full.budget.source == "device")
    assert quick.budget == full.budget
