"""Starting a job or `stepscope` on it: with a deadline, in a session of its own, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import Popen

import psutil

from stepscope.core.dataclass import dataclass

MARK = "OWN_JOBS_RUN"
"""Every process of a run has this variable, so that those it leaves behind are found."""
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SETTINGS = {
    "OMP_NUM_THREADS": "1",  # as torchrun sets it
    "MALLOC_TRIM_THRESHOLD_": "1000000000",  # one large free moves the steps of a run by up to 25 %
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "COLUMNS": "100",
}
PATIENCE_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A finished command. code: None where the deadline ended it. left: processes that it left running (now killed)."""

    code: int | None
    out: str
    err: str
    wall_s: float
    left: int


def run_command(command: Sequence[str], *, timeout_s: float, folder: Path, extra: Mapping[str, str]) -> Ended:
    """Run it to its end, or to the deadline. folder: where its output is kept and where it works."""
    mark = uuid.uuid4().hex
    clean = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environ = {**clean, **SETTINGS, **extra, MARK: mark}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout").open("w+b") as out, (folder / "stderr").open("w+b") as err:
        begun = time.monotonic()
        process = Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, cwd=folder, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        finally:
            wall_s = time.monotonic() - begun
            left = end_marked(mark)
    return Ended(
        code=code, wall_s=wall_s, left=left,
        out=(folder / "stdout").read_text(errors="replace"), err=(folder / "stderr").read_text(errors="replace"),
    )  # fmt: skip


def end_marked(mark: str) -> int:
    """Kill what still runs with this mark, by id; how many there were. A second is given to those about to end."""
    for _ in range(10):
        found = _marked(mark)
        if not found:
            return 0
        time.sleep(0.1)
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return len(found)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found
