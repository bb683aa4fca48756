"""Step diaries made by hand, as the hook writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.records.profile import COLUMNS, NO_DELAY, RECORD

START_UNIX_NS = 1_763_000_000_000_000_000


def write_diary(
    root: Path,
    columns: Mapping[str, Sequence[float]],
    *,
    rank: int = 0,
    world_size: int = 1,
    attempt: int = 0,
    flags: Sequence[int] | int = 0,
    delay: float | Sequence[float] | None = None,
    micro_steps: int = 1,
    events: Sequence[Mapping[str, Any]] = (),
    end: Mapping[str, Any] | None = None,
    **header: Any,
) -> Path:
    """diary-, events- and end- files of one process below ``root/.stepscope``. columns: ms of each step; left out: NaN.

    delay: share without a processor, of each step or of all. whole_ns is the sum of the others (without cpu) where it is
    left out.
    """
    folder = root / ".stepscope"
    folder.mkdir(parents=True, exist_ok=True)
    steps = len(next(iter(columns.values())))
    given = {f"{name}_ns": np.asarray(values, float) * 1e6 for name, values in columns.items()}
    if "whole_ns" not in given:
        given["whole_ns"] = np.nansum([v for k, v in given.items() if k != "cpu_ns"], axis=0)
    marks = [flags] * steps if isinstance(flags, int) else list(flags)
    shares = [delay] * steps if delay is None or isinstance(delay, int | float) else list(delay)
    parts = [NO_DELAY if each is None else round(each * (NO_DELAY - 1)) for each in shares]
    body = b"".join(
        struct.pack(
            RECORD,
            *(given.get(name, np.full(steps, np.nan))[at] for name in COLUMNS),
            parts[at],
            micro_steps,
            marks[at],
        )
        for at in range(steps)
    )
    same = {"rank": rank, "world_size": world_size, "host": "node0", "pid": 100 + rank, "restart": 0}
    head = {**same, "start_unix_ns": START_UNIX_NS, **header}
    name = f"{rank:05d}-{attempt}"
    path = folder / f"diary-{name}.bin"
    path.write_bytes(json.dumps({"schema": "stepscope.diary/1", **head}).encode() + b"\n" + body)
    if events:
        (folder / f"events-{name}.jsonl").write_text("".join(json.dumps(dict(e)) + "\n" for e in events))
    if end is not None:
        document = {**same, "kind": "exit", "steps": steps, "at_unix_ns": START_UNIX_NS, **end}
        (folder / f"end-{name}.json").write_text(json.dumps(document))
    return path
