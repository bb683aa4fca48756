"""Times of a planted job's steps, by the job itself: every rank leaves a file in the folder OWN_JOBS_TRUTH; else nothing."""

import atexit
import json
import os
import time

_FOLDER = os.environ.get("OWN_JOBS_TRUTH")
_TICKS: list[float] = []


def tick() -> None:
    """The end of a step."""
    if _FOLDER:
        _TICKS.append(time.perf_counter())


def _write() -> None:
    name = f"{os.environ.get('RANK', '0')}-{os.getpid()}.json"
    with open(os.path.join(_FOLDER or "", name), "w") as file:  # noqa: PTH118, PTH123
        json.dump(_TICKS, file)


if _FOLDER:
    atexit.register(_write)
