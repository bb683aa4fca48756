"""Folders of profiled jobs with planted steps: exact times, a window, evaluations with a period, a long step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tests.diaries import write_diary

from stepscope.records.profile import FIRST, PROFILED
from stepscope.results.profiled_job import ProfiledJob, read_profiled_job

MS = 1e6
EVERY, EVALUATION_MS = 25, 100.0
WINDOW = (41, 48)
"""First and last profiled step."""


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
