"""EventStream: the same events at every cut, the array's real end, headers of any size, broken tails."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.trace_builder import build, rank_text
from tests.trace_layout import LAYOUTS, write

from stepscope.core.errors import DataError
from stepscope.traces import envelope
from stepscope.traces.envelope import EventStream, NotATrace
from stepscope.traces.source import ByteSource

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}


def read(path: Path, *, chunk_bytes: int = 1 << 19, limit: int | None = None) -> tuple[list[object], EventStream]:
    stream = EventStream(ByteSource(path, chunk_bytes=chunk_bytes), header_limit=limit)
    events: list[object] = []
    for block in stream:
        events += json.loads(b"[" + block + b"]")
    return events, stream


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    job = build(steps=1, layers=1)
    return {layout: rank_text(job, 0, layout=layout) for layout in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cutting_anywhere_gives_the_same_events_and_header(texts: dict[str, str], layout: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", texts[layout])
    whole = json.loads(texts[layout])
    expected = whole if layout == "bare" else whole["traceEvents"]
    for chunk_bytes in [*range(1, 200, 3), 1000, 4096]:
        events, stream = read(path, chunk_bytes=chunk_bytes)
        assert events == expected, chunk_bytes
        assert stream.kineto == (layout == "kineto")
        assert stream.notes == []
        if layout != "bare":
            assert stream.header == {k: v for k, v in whole.items() if k != "traceEvents"}


@pytest.mark.parametrize("layout", ["kineto", "compact", "indent2"])
def test_offset_tells_where_a_block_lies_in_the_text(texts: dict[str, str], layout: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", texts[layout])
    stream = EventStream(ByteSource(path, chunk_bytes=300))
    blocks = [(stream.offset, block) for block in stream]
    assert len(blocks) > 3
    for offset, block in blocks:
        assert texts[layout].encode()[offset : offset + len(block)] == block


TRICKY = [
    {**EVENT, "name": "a }, { b", "args": {"x": [{"a": 1}, {"b": [{}]}], "y": "}]"}},
    {**EVENT, "name": 'quote " and \\ and \\" }', "args": {"l": [[], [{}], {}]}},
    {**EVENT, "name": "\\", "args": {"end": "\\\\"}},
    {**EVENT, "name": "\n  },\n  {", "args": {}},
    {**EVENT, "name": "ünï 漢", "args": {"deep": [{"a": [{"b": {"c": [{}, {}]}}, {}]}]}},
]


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
@pytest.mark.parametrize("where", ["first", "last", "everywhere"])
def test_lists_of_objects_and_brackets_in_strings_are_no_boundaries(
    where: str, indent: int | None, tmp_path: Path
) -> None:
    plain = [dict(EVENT, ts=i) for i in range(5)]
    events = {"first": TRICKY + plain, "last": plain + TRICKY, "everywhere": TRICKY * 3}[where]
    trace = {"a": [{}, {}], "traceEvents": events, "z": [{"q": 1}, {"r": [{}]}], "stackFrames": {"1": {"x": {}}}}
    path = write(tmp_path / "t.json", json.dumps(trace, indent=indent, ensure_ascii=False))
    for chunk_bytes in [*range(1, 150, 7), 1 << 19]:
        found, stream = read(path, chunk_bytes=chunk_bytes)
        assert found == events
        assert stream.header == {k: v for k, v in trace.items() if k != "traceEvents"}
        assert stream.notes == []


def test_an_event_with_hundreds_of_inner_objects_ends_where_it_ends(tmp_path: Path) -> None:
    event = {**EVENT, "args": {"many": [{"a": [{}]}] * 300}}
    trace = {"traceEvents": [event] * 5, "tail": [{"a": [{}]}] * 300}
    for text in (json.dumps(trace), json.dumps(trace, indent=1)):
        for chunk_bytes in (500, 5000, 1 << 19):
            found, stream = read(write(tmp_path / "t.json", text), chunk_bytes=chunk_bytes)
            assert found == trace["traceEvents"]
            assert stream.header == {"tail": trace["tail"]}


def test_a_tail_longer_than_the_events_is_read(tmp_path: Path) -> None:
    trace = {"traceEvents": [EVENT] * 3, "stackFrames": {str(i): {"name": "f", "p": [{}, {}]} for i in range(4000)}}
    found, stream = read(write(tmp_path / "t.json", json.dumps(trace)), chunk_bytes=1000)
    assert found == trace["traceEvents"]
    assert len(stream.header["stackFrames"]) == 4000


def test_the_events_may_come_late_and_only_so_late_as_allowed(tmp_path: Path) -> None:
    trace = {"pad": "x" * 20_000, "traceEvents": [EVENT]}
    path = write(tmp_path / "t.json", json.dumps(trace))
    for chunk_bytes in (100, 20_010, 20_020, 1 << 19):
        found, stream = read(path, chunk_bytes=chunk_bytes)
        assert found == [EVENT]
        assert stream.header == {"pad": trace["pad"]}
    with pytest.raises(NotATrace):
        read(path, chunk_bytes=100, limit=10_000)


@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n", " \ufeff"])
def test_marks_and_space_before_the_text_do_not_matter(start: str, tmp_path: Path) -> None:
    trace = {"a": 1, "traceEvents": [EVENT]}
    if start != " \ufeff":
        found, stream = read(write(tmp_path / "t.json", start + json.dumps(trace)))
        assert (found, stream.header) == ([EVENT], {"a": 1})
    assert read(write(tmp_path / "b.json", start.strip(" ") + json.dumps([EVENT])))[0] == [EVENT]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_cut_anywhere_gives_its_whole_events_and_says_so(
    texts: dict[str, str], layout: str, tmp_path: Path
) -> None:
    text = texts[layout].encode()
    whole = json.loads(text)
    expected = whole if layout == "bare" else whole["traceEvents"]
    begin = text.index(b'"traceEvents"') + 20 if layout != "bare" else 5000
    for end in range(begin, len(text) - 1, 61):
        path = write(tmp_path / "t.json", text[:end])
        for chunk_bytes in (257, 1 << 19):
            found, stream = read(path, chunk_bytes=chunk_bytes)
            assert found == expected[: len(found)]
            if len(found) < len(expected):
                (note,) = [n.text for n in stream.notes if n.kind == "truncated"]
                assert note.endswith("how many are lost behind that place is unknown")
    assert len(found) >= len(expected) - 1


def test_a_packed_file_that_breaks_off_in_its_header_is_an_error_of_its_own(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"a": list(range(10_000)), "traceEvents": [EVENT]}).encode())
    (tmp_path / "t.json.gz").write_bytes(packed[:-400])
    with pytest.raises(DataError, match="truncated before its first event"):
        read(tmp_path / "t.json.gz")


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 19])
@pytest.mark.parametrize("layout", ["compact", "indent2"])
def test_a_damaged_event_of_a_dumped_file_is_an_error_with_its_place(
    texts: dict[str, str], layout: str, chunk_bytes: int, tmp_path: Path
) -> None:
    text = texts[layout]
    place = text.index('"cat"', len(text) // 2)
    path = write(tmp_path / "t.json", text[:place] + "!" + text[place:])
    with pytest.raises(DataError, match="not valid JSON at byte") as error:
        read(path, chunk_bytes=chunk_bytes)
    said = int(error.value.what.split("byte ")[1].split(" ")[0].replace(",", ""))
    assert abs(said - place) <= 1


def test_text_without_any_boundary_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(envelope, "MAX_UNCUT_BYTES", 10_000)
    path = write(tmp_path / "t.json", '{"traceEvents": [{"ph": "X", "name": "' + "x" * 100_000)
    with pytest.raises(DataError, match="no boundary between events"):
        read(path, chunk_bytes=1000)


def test_a_broken_header_is_repaired_or_said_to_be_lost(tmp_path: Path) -> None:
    _, stream = read(write(tmp_path / "t.json", '{"a": NaN, "traceEvents": [' + json.dumps(EVENT) + "]}"))
    assert stream.header == {"a": None}
    assert stream.notes[0].kind == "repaired"
    _, stream = read(write(tmp_path / "t.json", '{"a": !, "traceEvents": [' + json.dumps(EVENT) + "]}"))
    assert stream.header == {}
    assert stream.notes[0].kind == "dropped"


@pytest.mark.parametrize("layout", ["kineto", "compact"])
@pytest.mark.parametrize("before", ['"traceEvents"', "[", "{", ":", ","])
def test_long_stretches_of_blanks_change_nothing_and_are_read_once(
    texts: dict[str, str], layout: str, before: str, tmp_path: Path
) -> None:
    """Read in pieces of 16 KiB: 4 MB of blanks would be 500 MB to copy where each piece is put behind all before it."""
    text = texts[layout]
    at = text.index(before, text.index('"traceEvents"')) + len(before)
    path = tmp_path / "t.json"
    found = []
    for blanks in ("", " " * (4 << 20)):
        path.write_text(text[:at] + blanks + text[at:])
        events, stream = read(path, chunk_bytes=1 << 14)
        found.append((events, stream.header, stream.notes))
    assert found[0] == found[1]
