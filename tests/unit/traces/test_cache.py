"""The cache: the same trace comes back, and a stale or damaged entry never does."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests.trace_builder import build, rank_text, write_job
from tests.trace_layout import write

from stepscope.core.errors import DataError
from stepscope.traces import cache
from stepscope.traces.cache import cache_folder, cached
from stepscope.traces.events import Events, RankTrace
from stepscope.traces.load import load_file, load_traces


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "rank-1.json", rank_text(build(memory=True, steps=2), 1))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def assert_same(a: RankTrace, b: RankTrace) -> None:
    assert (a.rank, a.path, a.size_bytes, a.meta, a.notes, a.quality, a.partial) == (
        b.rank, b.path, b.size_bytes, b.meta, b.notes, b.quality, b.partial)  # fmt: skip
    for f in fields(Events):
        x, y = getattr(a.events, f.name), getattr(b.events, f.name)
        if f.name == "memory":
            for name in cache._MEMORY if x is not None else ():
                assert getattr(x, name).tolist() == getattr(y, name).tolist()
        elif isinstance(x, np.ndarray):
            assert x.dtype == y.dtype
            assert x.tolist() == y.tolist()
        else:
            assert x == y
            assert type(x) is type(y)


def test_facts_of_quality_come_out(place: Path, tmp_path: Path) -> None:
    text = rank_text(build(), 1)
    first = text.index('"ts": ', text.index('"cat": "kernel"'))
    path = write(tmp_path / "r.json", text[:first] + '"ts": 0.001, "was": ' + text[first + len('"ts": ') :])
    assert [fact.kind for fact in cached(path, lambda: load_file(path), folder=place).quality] == ["impossible-times"]
    assert [fact.kind for fact in cached(path, refuse, folder=place).quality] == ["impossible-times"]


def refuse() -> RankTrace:
    raise AssertionError("it should have come from the cache")


@pytest.mark.parametrize("shape", ["gpu", "gloo"])
def test_what_was_put_in_comes_out(shape: str, place: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", rank_text(build(device=shape, memory=True, shape="fsdp"), 1))
    first = cached(path, lambda: load_file(path), folder=place)
    again = cached(path, refuse, folder=place)
    assert_same(first, load_file(path))
    assert_same(again, first)
    again.events.ts_ns[0] = 1  # as writable as a loaded one


def test_a_device_scan_has_an_entry_of_its_own_and_a_full_one_serves_it(path: Path, place: Path) -> None:
    scanned = cached(path, lambda: load_file(path, device_only=True), device_only=True, folder=place)
    assert scanned.partial
    assert_same(cached(path, refuse, device_only=True, folder=place), scanned)
    full = cached(path, lambda: load_file(path), folder=place)
    assert not full.partial
    assert not cached(path, refuse, device_only=True, folder=place).partial


@pytest.mark.parametrize("change", ["size", "time", "schema"])
def test_a_changed_file_or_schema_is_loaded_again(
    change: str, path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(path, lambda: load_file(path), folder=place)
    if change == "size":
        state = path.stat()
        path.write_text(path.read_text() + " ")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    else:
        monkeypatch.setattr(cache, "_SHAPE_OF_EVENTS", "another")
    with pytest.raises(AssertionError, match="should have come"):
        cached(path, refuse, folder=place)
    cached(path, lambda: load_file(path), folder=place)
    cached(path, refuse, folder=place)
    assert len(list(place.iterdir())) == 1


def test_another_path_with_the_same_content_has_its_own_entry(path: Path, place: Path) -> None:
    cached(path, lambda: load_file(path), folder=place)
    other = write(path.with_name("rank-2.json"), path.read_bytes())
    os.utime(other, ns=(1, path.stat().st_mtime_ns))
    assert cached(other, lambda: load_file(other), folder=place).path == other
    assert len(list(place.iterdir())) == 2


def test_an_entry_damaged_anywhere_is_ignored_and_replaced(path: Path, place: Path) -> None:
    first = cached(path, lambda: load_file(path), folder=place)
    (entry,) = place.iterdir()
    whole = entry.read_bytes()
    for at in [*range(24), *range(24, len(whole), len(whole) // 60)]:
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        assert_same(cached(path, lambda: load_file(path), folder=place), first)
        assert entry.read_bytes() == whole
    for end in (0, 5, 20, 100, len(whole) // 2, len(whole) - 1):
        entry.write_bytes(whole[:end])
        assert_same(cached(path, lambda: load_file(path), folder=place), first)
        assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_a_note_not_an_error(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trace = cached(path, lambda: load_file(path), folder=tmp_path / "file" / "cache")
    assert [n.kind for n in trace.notes] == ["skipped"]
    assert trace.notes[0].text.startswith("not kept in the cache: ")


def test_a_failed_write_leaves_nothing_behind(path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    trace = cached(path, lambda: load_file(path), folder=place)
    assert "No space left on device" in trace.notes[0].text
    assert list(place.iterdir()) == []


def test_errors_of_the_file_come_through(tmp_path: Path, place: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        cached(tmp_path / "none.json", lambda: load_file(tmp_path / "none.json"), folder=place)
    assert not place.exists()


def test_the_entries_not_used_for_longest_make_room(path: Path, place: Path) -> None:
    others = [write(path.with_name(f"other{i}.json"), path.read_bytes()) for i in range(4)]
    for i, other in enumerate(others):
        cached(other, lambda other=other: load_file(other), folder=place)
        (newest,) = [e for e in place.iterdir() if e.stat().st_mtime > 1e9]
        os.utime(newest, (100 + i, 100 + i))
    size = next(place.iterdir()).stat().st_size
    cached(others[0], refuse, folder=place)  # used again: the oldest is now others[1]
    cached(path, lambda: load_file(path), folder=place, limit_bytes=3 * size + size // 2)
    assert len(list(place.iterdir())) == 3
    cached(others[0], refuse, folder=place)
    with pytest.raises(AssertionError, match="should have come"):
        cached(others[1], refuse, folder=place)


def test_the_cache_is_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = write_job(build(), tmp_path / "job")
    load_traces(folder)
    assert not (tmp_path / "home").exists()
    first = load_traces(folder, cache=True)
    assert len(list((tmp_path / "home" / "stepscope" / "traces").iterdir())) == 2
    again = load_traces(folder, cache=True)
    for a, b in zip(first.ranks, again.ranks, strict=True):
        assert_same(a, b)


def test_the_folder_is_that_of_xdg() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/stepscope/traces")
    assert cache_folder({"XDG_CACHE_HOME": ""}) == Path.home() / ".cache" / "stepscope" / "traces"
