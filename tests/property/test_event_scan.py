"""The compiled scanner and the reader in Python give the same columns, notes and errors, on plain text and on any other."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.property.test_trace_loader import damaged, mutation
from tests.trace_builder import build, rank_text

from stepscope.core.errors import DataError
from stepscope.traces import scan
from stepscope.traces.decode import ColumnBuilder
from stepscope.traces.scan import BlockScanner

pytestmark = pytest.mark.skipif(scan.compiled() is None, reason="event_scan.c is not compiled here: no C compiler")
TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "compiled", lambda: None)


def built(blocks: list[bytes], *, device_only: bool = False) -> Any:
    """Everything that a builder makes of the blocks; an error's text where it refuses one."""
    builder = ColumnBuilder("file")
    try:
        for block in blocks:
            if not device_only or not builder.add_device(block):
                builder.add(block, offset=0)
    except DataError as error:
        return str(error)
    notes = [note.text for note in builder.notes()]
    beside = builder.foreign, builder.process_labels
    return _plain(builder.build()), notes, *beside


def _plain(columns: Any) -> dict[str, Any]:
    found = {}
    for field in fields(columns):
        value = getattr(columns, field.name)
        if isinstance(value, np.ndarray):
            value = (value.dtype.str, value.tolist())
        found[field.name] = _plain(value) if field.name == "memory" and value is not None else value
    return found


def same(blocks: list[bytes], *, device_only: bool = False) -> None:
    scanned = built(blocks, device_only=device_only)
    with pytest.MonkeyPatch.context() as patch:
        in_python(patch)
        assert built(blocks, device_only=device_only) == scanned


def is_scanned(block: bytes, *, device_only: bool = False) -> bool:
    scanner = BlockScanner(code=lambda _: 0, place=lambda _: 0, shape=lambda _: 0)
    return scanner.scan(block, device_only=device_only) is not None


def inner(text: str) -> bytes:
    """The events of a trace without their list's brackets."""
    events = json.loads(text)["traceEvents"]
    return ", ".join(json.dumps(e) for e in events).encode()


PLAIN = {
    "ph": "X", "cat": "kernel", "name": "a \u00e9 \U0001f600 \\ \" \n", "pid": 0, "tid": "7",
    "ts": 1712195495505582.988, "dur": 2.5, "args": {
        "External id": 4, "device": 0, "stream": 7, "correlation": 135071, "grid": [1, 2, [3]], "est. %": -1.5e-3,
        "Input Dims": [[2, 3], []], "Input type": ["float"], "deep": {"a": {"b": [True, False, None]}},
    },
}  # fmt: skip
OTHERS = [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "ts": 0, "args": {"name": "main"}},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 5.5, "args": {"Bytes": 8, "Total Allocated": 8}},
    {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 5, "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "cat": "Trace", "name": "window", "pid": "Spans", "tid": "t", "ts": 1.5, "dur": 9.25},
    {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "pid": 0, "tid": 7, "ts": 3, "dur": 1, "args": {"bytes": 4096}},
    {"ph": "X", "cat": "new_kind", "name": "k", "pid": 3, "tid": 7, "ts": 3, "dur": 1},
    {"ph": "X", "cat": "cpu_op", "name": "aten::convolution", "pid": 3, "tid": 3, "ts": 3, "dur": 1,
     "args": {"Concrete Inputs": ["", "1"], "flops": 12}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "pid": 0, "tid": 7, "ts": 3, "dur": 1,
     "args": {"Collective name": "allreduce", "In msg nelems": 5, "dtype": "Float", "Group size": 2, "stream": "13"}},
]  # fmt: skip


def test_what_profilers_write_is_scanned_and_read_alike() -> None:
    whole = b", ".join(json.dumps(e).encode() for e in [PLAIN, *OTHERS, PLAIN])
    assert is_scanned(whole)
    same([whole, json.dumps(PLAIN, ensure_ascii=False).encode(), whole])


@pytest.mark.parametrize("generation", ["relative", "lines", "absolute"])
def test_a_generated_trace_is_scanned_and_read_alike(generation: str) -> None:
    block = inner(rank_text(build(steps=2, layers=2, generation=generation), 0))
    assert is_scanned(block, device_only=True)
    assert is_scanned(block)
    same([block, block])


STEP = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#12", "pid": 1, "tid": 2, "ts": 1.5, "dur": 9}
SPAN = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 3, "dur": 1.25}


def test_device_events_alone() -> None:
    events = [
        {"z": 1},
        STEP,
        {**STEP, "name": "mine"},
        SPAN,
        {**SPAN, "cat": "cpu_op"},
        {**SPAN, "args": {"x": [1, "cat"]}},
    ]
    block = b", ".join(json.dumps(e).encode() for e in events)
    assert is_scanned(block, device_only=True)
    columns = built([block], device_only=True)[0]
    assert columns["ts_ns"][1] == [1500, 3000, 3000]


@pytest.mark.parametrize(
    "event",
    [
        {"cat": "kernel", **{k: v for k, v in SPAN.items() if k != "cat"}}, {**SPAN, "cat": "gpu_memory_pool"},
        {**SPAN, "cat": "concurrent_kernel"}, {k: v for k, v in SPAN.items() if k != "dur"}, {**SPAN, "ts": 1e300},
    ],
)  # fmt: skip
def test_device_events_that_are_written_otherwise_are_left_to_python(event: dict[str, Any]) -> None:
    block = json.dumps(event).encode()
    assert not is_scanned(block, device_only=True)
    same([block], device_only=True)


WORDS = st.sampled_from(["kernel", "cpu_op", "Trace", "X", "7", "-7", "0x7f", "", "stream", "\u00e9", "a\\b", "\x7f"])
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-5, 5), WORDS,
        st.floats(allow_nan=True, width=64), st.integers(0, 2**53).map(lambda n: n / 1000),
    ),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(WORDS, inside, max_size=3),
    max_leaves=5,
)  # fmt: skip
KEYS = st.sampled_from([*PLAIN, "id", "bp"])
ARGUMENTS = st.sampled_from([*[key.decode() for key, _ in scan._argument_keys()], "grid", "Concrete Inputs"])


@examples(60)
@given(st.lists(st.tuples(st.booleans(), KEYS, ARGUMENTS, VALUES), min_size=1, max_size=4))
def test_events_with_any_values_are_read_alike(changes: list[tuple[bool, str, str, Any]]) -> None:
    event = json.loads(json.dumps(PLAIN))
    for top, key, argument, value in changes:
        if not top and isinstance(event.get("args"), dict):
            event["args"][argument] = value
        else:
            event[key] = value
    text = json.dumps(event).encode()
    plain = json.dumps(PLAIN).encode()
    same([plain, plain + b", " + text, text + b"," + plain])


@examples(60)
@given(st.lists(mutation, min_size=1, max_size=3))
def test_damaged_text_is_read_alike(changes: list[tuple[str, float, int, bytes]]) -> None:
    whole = b", ".join(json.dumps(e).encode() for e in [PLAIN, *OTHERS])
    same([whole, damaged(whole, changes), whole])


@pytest.mark.parametrize(
    "changes",
    [
        {"ts": "5"}, {"ts": 5.12345}, {"ts": 1e30}, {"dur": -1}, {"pid": 1.0}, {"name": None}, {"args": []},
        {"args": {"stream": True}}, {"args": {"correlation": 2.0}}, {"args": {"device": "1"}},
        {"args": {"External id": 10**30}}, {"x": float("nan")},
    ],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_python(changes: dict[str, Any]) -> None:
    text = json.dumps({**PLAIN, **changes}).encode()
    assert not is_scanned(text)
    same([text])


def test_a_refused_block_leaves_no_names_behind() -> None:
    """Or codes would no longer follow the order of first sight."""
    bad = json.dumps({**PLAIN, "name": "lost"}).encode() + b', {"x": NaN}'
    other = json.dumps({**PLAIN, "name": "kept"}).encode()
    scanner = BlockScanner(code=[].append, place=[].append, shape=[].append)  # type: ignore[arg-type]
    assert scanner.scan(bad) is None
    names: list[str] = []
    scanner._code = lambda name: names.append(name) or len(names) - 1  # type: ignore[func-returns-value]
    scanner._place = scanner._shape = lambda _: 0
    assert scanner.scan(other) is not None
    assert names == ["kept"]


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
def test_real_traces_are_scanned_and_read_alike() -> None:
    from stepscope.traces.load import load_file

    files = sorted(f for f in TRACES.glob("*/*.json*") if f.name not in ("hta_oracle.json", "reference.json"))
    assert len(files) >= 16
    for file in files[::6]:
        scanned = load_file(file)
        with pytest.MonkeyPatch.context() as patch:
            in_python(patch)
            plain = load_file(file)
        assert _plain(scanned.events) == _plain(plain.events)
        assert (scanned.meta, scanned.notes) == (plain.meta, plain.notes)
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        assert is_scanned(b", ".join(json.dumps(e).encode() for e in json.loads(text)["traceEvents"][:2000]))
