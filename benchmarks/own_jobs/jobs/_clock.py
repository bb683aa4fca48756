"""Times of a planted job's steps, by the job itself: every rank leaves a file in the folder OWN_JOBS_TRUTH; else nothing."""

import atexit
import gc
import json
import os
import sys
import time

_FOLDER = os.environ.get("OWN_JOBS_TRUTH")
_TICKS: list[float] = []
_STEPS = [0]

BLOCK = 10
"""Steps with the fault, then as many without it, with --alternate: one run compares them, however fast the machine is."""


def tick() -> None:
    """The end of a step."""
    _STEPS[0] += 1
    if _FOLDER:
        _TICKS.append(time.perf_counter())


def faulty(step: int | None = None) -> bool:
    """Whether this step (or that one, where another process works for it) has the planted fault. --clean: none has;
    --alternate: every second block of steps."""
    if "--clean" in sys.argv:
        return False
    return "--alternate" not in sys.argv or (_STEPS[0] if step is None else step) // BLOCK % 2 == 0


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
