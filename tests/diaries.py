"""Folders of profiled jobs made by hand: step diaries as the hook writes them, exact, with planted events, or drawn at
random; the record of the job; windows of built traces.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.trace_builder import build, write_job

from stepscope.records.profile import COLUMNS, FIRST, NO_DELAY, PROFILED, RECORD
from stepscope.results.profiled_job import ProfiledJob, read_profiled_job
from stepscope.store.layout import ProfileLayout

MS = 1e6
START_UNIX_NS = 1_763_000_000_000_000_000
EVERY, EVALUATION_MS = 25, 100.0
WINDOW = (41, 48)
"""First and last profiled step of ``planted``."""


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


def simulate(
    root: Path,
    *,
    ranks: int,
    steps: int,
    seed: int,
    data_ms: float = 0.2,
    forward_ms: float = 4.0,
    backward_ms: float = 8.0,
    optimizer_ms: float = 1.0,
    transfer_ms: float = 0.5,
    noise: float = 0.03,
    dependence: float = 0.6,
    slow: Mapping[int, float] | None = None,
    delay: float = 0.01,
) -> None:
    """slow: rank -> factor of its forward and backward. noise: standard deviation / mean of every part, autocorrelated.

    Without noise a step is data + forward + backward + transfer (of several ranks) + optimizer.
    """
    rng = np.random.default_rng(seed)

    def series(mean_ms: float) -> np.ndarray:
        draws = rng.normal(0.0, np.sqrt(1 - dependence**2), steps)
        found = np.empty(steps)
        last = rng.normal()
        for at, draw in enumerate(draws):
            last = dependence * last + draw
            found[at] = last
        return np.maximum(mean_ms * (1 + noise * found), 0.0)

    factor = [(slow or {}).get(rank, 1.0) for rank in range(ranks)]
    parts = [
        {
            "data": series(data_ms),
            "forward": series(forward_ms) * factor[rank],
            "backward": series(backward_ms) * factor[rank],
            "optimizer": series(optimizer_ms),
        }
        for rank in range(ranks)
    ]
    entered = np.stack([each["data"] + each["forward"] + each["backward"] + each["optimizer"] for each in parts])
    transfer = series(transfer_ms) if ranks > 1 else np.zeros(steps)
    for rank, each in enumerate(parts):
        columns = {**each, "comm": entered.max(axis=0) - entered[rank] + transfer, "cpu": entered[rank] - each["data"]}
        write_diary(root, columns, rank=rank, world_size=ranks, delay=delay)


def write_record(folder: Path) -> Path:
    """profile.json of ``folder``, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"command": ["train"], "folder": ".", "host": "node0", "first": None, "argv": []}
    (folder / "profile.json").write_text(json.dumps({"schema": "stepscope.profile/1", **record}))
    return folder


def planted(
    folder: Path, *, ranks: int = 2, steps: int = 200, long_step: int | None = None, long_ms: float = 60.0
) -> Path:
    """A step is 2 ms of data, 8 forward, 16 backward, 1 optimizer, and of several ranks 3 ms of transfer; rank 1 takes 6 ms
    longer in backward and the others wait for it. The first step takes 40 ms more, a profiled one 5.
    """
    numbers = np.arange(1, steps + 1)
    flags = np.where((numbers >= WINDOW[0]) & (numbers <= WINDOW[1]), PROFILED, 0)
    flags[0] = FIRST
    evaluated = numbers % EVERY == 0
    for rank in range(ranks):
        late = 6.0 if rank == 1 else 0.0
        forward = 8.0 + np.where(numbers == 1, 40.0, 0.0) + np.where(flags == PROFILED, 5.0, 0.0)
        if long_step is not None:
            forward = forward + np.where(numbers == long_step, long_ms, 0.0)
        backward = np.full(steps, 16.0 + late)
        columns = {
            "data": np.full(steps, 2.0),
            "forward": forward,
            "backward": backward,
            "optimizer": np.full(steps, 1.0),
            "outside": np.where(evaluated, EVALUATION_MS, 0.0),
            "cpu": forward + backward + 1.0,
        }
        if ranks > 1:
            columns["comm"] = np.full(steps, 3.0 + 6.0 - late)
        write_diary(
            folder,
            columns,
            rank=rank,
            world_size=ranks,
            delay=0.01,
            flags=flags.tolist(),
            events=[
                {"kind": "evaluation", "step": int(n), "at_ns": 0, "ns": int(EVALUATION_MS * MS), "what": "eval()"}
                for n in numbers[evaluated]
            ],
            threads=1,
            cores=2,
        )
    return write_record(folder)


def job(folder: Path) -> ProfiledJob:
    """The job of ``folder``."""
    found = read_profiled_job(folder)
    assert found is not None
    return found


def profile_folder(root: Path, *, windows: int = 1, **plan: Any) -> Path:
    """``plan``: of the traces of every window (tests/trace_builder.py)."""
    layout = ProfileLayout(write_record(root))
    layout.control.mkdir(exist_ok=True)
    for number in range(1, windows + 1):
        write_job(build(**({"shape": "ddp", "layers": 2, "world": 2, "steps": 3} | plan)), layout.traces(number))
    return root
