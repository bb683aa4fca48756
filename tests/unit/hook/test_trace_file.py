"""Two sessions of the profiler in one file: events in order, ids apart; what cannot be joined is the first alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest


def _session(path: Path, numbers: range, *, base: int = 1_790_000_000, shapes: bool = False) -> Path:
    """As kineto lays it out."""
    events = []
    for number in numbers:
        events += [
            f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "ts": {number}.000,\n'
            f'    "args": {{\n      "External id": {number}\n    }}\n  }}',
            f'  {{\n    "ph": "s",\n    "id": {number - numbers[0] + 1},\n    "cat": "fwdbwd", "ts": {number}.500\n  }}',
        ]
    more = '"record_shapes": 1,\n' if shapes else ""
    path.write_text(
        f'{{\n  "schemaVersion": 1,\n{more}"baseTimeNanoseconds": {base},\n  "traceEvents": [\n  \n'
        + ",\n".join(events)
        + f'\n  ],"traceName": "{path.name}" }}'
    )
    return path


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def test_events_of_both_sessions_follow_each_other(hook: Any, tmp_path: Path) -> None:
    parts = [_session(tmp_path / "a", range(3, 7)), _session(tmp_path / "b", range(7, 9), shapes=True)]
    hook.trace_file.pack(parts, tmp_path / "c.gz")
    trace = _read(tmp_path / "c.gz")
    assert [e["name"] for e in trace["traceEvents"] if "name" in e] == [f"ProfilerStep#{n}" for n in range(3, 9)]
    arrows = [e["id"] for e in trace["traceEvents"] if e["ph"] == "s"]
    assert len(set(arrows)) == 6
    assert trace["record_shapes"] == 1


@pytest.mark.parametrize("broken", ["base", "empty"])
def test_what_cannot_be_joined_is_the_first_session(hook: Any, tmp_path: Path, broken: str) -> None:
    first = _session(tmp_path / "a", range(3, 7))
    second = _session(tmp_path / "b", range(7, 9), base=5)
    if broken == "empty":
        second.write_text('{"traceEvents": []}')
    hook.trace_file.pack([first, second], tmp_path / "c.gz")
    assert _read(tmp_path / "c.gz") == json.loads(first.read_text())


def test_the_step_in_which_the_job_ended_is_none(hook: Any, tmp_path: Path) -> None:
    hook.trace_file.pack([_session(tmp_path / "a", range(3, 7))], tmp_path / "c.gz", b'"ProfilerStep#6"')
    names = [e["name"] for e in _read(tmp_path / "c.gz")["traceEvents"] if "name" in e]
    assert names == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5", "unfinished step"]
