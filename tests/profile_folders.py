"""Folders as ``stepscope profile`` writes them, made by hand: a record, a window of built traces, diaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.trace_builder import build, write_job

from stepscope.records import codec
from stepscope.records.profile import ProfileRecord
from stepscope.store.layout import ProfileLayout


def profile_folder(root: Path, *, windows: int = 1, **plan: Any) -> Path:
    """``plan``: of the traces of every window (tests/trace_builder.py)."""
    layout = ProfileLayout(root)
    layout.control.mkdir(parents=True, exist_ok=True)
    record = ProfileRecord(command=("train",), folder="/", host="node0", first=None, argv=("stepscope", "profile"))
    layout.record.write_bytes(codec.encode(record))
    for number in range(1, windows + 1):
        write_job(build(**({"shape": "ddp", "layers": 2, "world": 2, "steps": 3} | plan)), layout.traces(number))
    return root
