"""Times of a planted job's steps, by the job itself: every rank leaves a file in the folder OWN_JOBS_TRUTH; else nothing."""

import atexit
import gc
import json
import os
import time

_FOLDER = os.environ.get("OWN_JOBS_TRUTH")
_TICKS: list[float] = []


def tick() -> None:
    """The end of a step."""
    if _FOLDER:
        _TICKS.append(time.perf_counter())


def leave() -> None:
    """The end of a job over gloo. DDP's reducer must be gone by then: one that outlives its group may abort (torch 2.13)."""
    import torch.distributed as dist

    gc.collect()
    dist.destroy_process_group()


def _write() -> None:
    name = f"{os.environ.get('RANK', '0')}-{os.getpid()}.json"
    with open(os.path.join(_FOLDER or "", name), "w") as file:  # noqa: PTH118, PTH123
        json.dump(_TICKS, file)


if _FOLDER:
    atexit.register(_write)
