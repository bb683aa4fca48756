"""The loader on damaged files: the right columns, or a clear error; never anything else, never for long."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.trace_builder import build, rank_text
from tests.trace_layout import rewritten
from tests.trace_reference import reference_rows, rows_of

from stepscope.core.errors import DataError
from stepscope.traces.load import load_file
from stepscope.traces.source import ByteSource

SECONDS = 5.0
"""No file of some ten kilobytes may take as much of the processor."""

TEXTS = [
    rank_text(build(steps=1, layers=1, generation=generation), 0, layout=layout).encode()
    for generation in ("relative", "lines", "absolute")
    for layout in ("kineto", "compact", "indent2", "bare")
]
ODD = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\n", b"\xff", b"NaN", b"1e999", b'"ts": ', b"null", b"-",
]  # fmt: skip

mutation = st.tuples(
    st.sampled_from(["replace", "delete", "insert", "cut", "copy"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 60),
    st.one_of(st.sampled_from(ODD), st.binary(min_size=1, max_size=4)),
)


def damaged(data: bytes, changes: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, place, length, new in changes:
        at = int(place * len(data))
        if kind == "cut":
            data = data[:at]
        elif kind == "delete":
            data = data[:at] + data[at + length :]
        elif kind == "copy":
            data = data[: at + length] + data[at:]
        else:
            data = data[:at] + new + data[at + (len(new) if kind == "replace" else 0) :]
    return data


def outcome(data: bytes, *, device_only: bool) -> Any:
    """The loaded trace, or None where it was refused with an error that names the file and tells what to do."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.json"
        path.write_bytes(data)
        start = time.process_time()
        refused: DataError | None = None
        trace = None
        try:
            trace = load_file(path, device_only=device_only)
        except DataError as error:
            refused = error
        assert time.process_time() - start < SECONDS
        assert refused is None or (str(path) in refused.what and refused.why and refused.fix)
    return trace


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TEXTS), st.lists(mutation, min_size=1, max_size=3), st.booleans())
def test_a_damaged_text_is_read_or_refused(
    text: bytes, changes: list[tuple[str, float, int, bytes]], device_only: bool
) -> None:
    data = damaged(text, changes)
    trace = outcome(data, device_only=device_only)
    if trace is None:
        return
    events = trace.events
    assert (events.dur_ns >= 0).all()
    assert len(events.names) == 0 or events.name.max(initial=0) < len(events.names)
    if trace.partial:
        return
    try:
        expected = reference_rows(data)
    except (ValueError, AttributeError, KeyError, TypeError, ArithmeticError):
        return  # not valid, or not what a trace looks like: the loader has said so
    if not trace.notes:
        assert [r[:2] for r in rows_of(events)] == [r[:2] for r in expected]
    assert len(events) <= len(expected)


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TEXTS), st.sampled_from(["gz", "zst"]), st.lists(mutation, min_size=1, max_size=2))
def test_a_damaged_packed_file_is_read_or_refused(
    text: bytes, packing: str, changes: list[tuple[str, float, int, bytes]]
) -> None:
    packed = gzip.compress(text, 1) if packing == "gz" else zstandard.ZstdCompressor(write_checksum=True).compress(text)
    data = damaged(packed, changes)
    trace = outcome(data, device_only=False)
    if trace is not None and not trace.notes:
        assert rows_of(trace.events) == reference_rows(text)


@examples(60)
@given(st.sampled_from(TEXTS), st.floats(0, 1))
def test_a_text_cut_anywhere_gives_a_beginning_of_its_events(text: bytes, place: float) -> None:
    trace = outcome(text[: int(place * len(text))], device_only=False)
    if trace is not None:
        found = rows_of(trace.events)
        assert found == reference_rows(text)[: len(found)]


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
arguments = st.sampled_from(
    ["stream", "correlation", "External id", "device", "Input Dims", "bytes", "size", "flops", "Seq", "Bytes", "name",
     "Collective name", "Group size", "Process Group Ranks", "Sequence number", "Fwd thread id", "Device Id"]
)  # fmt: skip


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["X", "X", "X", "i", "M", "s"]), st.dictionaries(keys, values, max_size=4),
            st.dictionaries(arguments, values, max_size=4),
        ),
        max_size=6,
    ),
    st.sampled_from([None, 2]),
)  # fmt: skip
def test_events_of_any_types_are_read_or_left_out_and_counted(
    changes: list[tuple[str, dict[str, Any], dict[str, Any]]], indent: int | None
) -> None:
    events = [
        {"ph": ph, "cat": "kernel", "name": "[memory]", "pid": 0, "tid": 7, "ts": 5, "dur": 2, "args": args} | fields
        for ph, fields, args in changes
    ]
    events.append({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2})  # of no other tool
    data = json.dumps({"traceEvents": events}, indent=indent).encode()
    trace = outcome(data, device_only=False)
    untouched = sum(e["ph"] == "X" and e["ts"] == 5 and e["dur"] == 2 for e in events)
    assert len(trace.events) + sum(fact.count or 0 for fact in trace.quality) >= untouched


@examples(40)
@given(st.integers(1, 400), st.sampled_from(TEXTS[:4]))
def test_the_size_of_a_chunk_does_not_matter(chunk_bytes: int, text: bytes) -> None:
    from unittest.mock import patch

    def small(path: Path, *, hole: tuple[int, int] | None) -> ByteSource:
        return ByteSource(path, chunk_bytes=chunk_bytes, hole=hole)

    with patch("stepscope.traces.load.ByteSource", small):
        for device_only in (False, True):
            trace = outcome(text, device_only=device_only)
            assert trace.notes == ()
            if not trace.partial:
                assert rows_of(trace.events) == reference_rows(text)


@pytest.mark.parametrize("layout", ["compact", "indent4"])
def test_rewritten_texts_keep_every_digit(layout: str) -> None:
    text = rank_text(build(steps=1, generation="absolute"), 0)
    assert reference_rows(rewritten(text, layout)) == reference_rows(text)
