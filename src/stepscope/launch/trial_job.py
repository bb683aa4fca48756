"""One trial of the user's command: started under the hook with other settings, stopped once enough steps are timed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.launch import hooked_job
from stepscope.launch.job_window import runs_here, window_state
from stepscope.records.profile import HookedProcess, ProfileRecord, WindowRequest
from stepscope.records.tuning import HookedKnobs, KnobTurn
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record, steps_in
from stepscope.store.writer import writing

POLL_S = 0.2
WARM_STEPS = 5
"""The first steps of every rank, before the time of a trial counts: they compile, allocate and open connections."""
LEAST_STEPS = 30
PATIENCE = 6.0
"""A trial is given so many times its budget for its least number of steps."""
WINDOW_S = 120.0
"""So much longer is waited where a window of profiled steps is wanted: its traces are written in it."""
GRACE_S = 10.0
"""Time from SIGTERM to SIGKILL."""
_USAGE = re.compile(
    r"(?m)^.*(?:error: (?:unrecognized arguments|argument |invalid choice|the following arguments)|No such option).*$"
)
_OOM = re.compile(r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory|bad_alloc")


def run_trial(
    layout: ProfileLayout, record: ProfileRecord, knobs: Mapping[str, object], *, budget_s: float, start_s: float
) -> str | None:
    """Run the command until its steps have been timed for ``budget_s``, or to its end; what it prints goes to output.log.
    Return why that says nothing; None: it does.

    knobs: for the hook. start_s: how long it may take to its first steps. A window that ``record`` asks for is waited for.
    Raises StepscopeError where it cannot be started; what a signal raises passes through once the job is stopped.
    """
    environment = hooked_job.prepare(
        layout, record, nccl_debug=False, step_optimizer=1, memory=False, knobs=dict(knobs) or None
    )
    log = layout.root / "output.log"
    with writing(log), log.open("wb") as output:
        child = subprocess.Popen(
            list(record.command), env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        timed = _wait_for_steps(layout, child, budget_s=budget_s, start_s=start_s, window=record.first)
    finally:
        code = child.poll()
        stop(child, layout)
    if code is None:
        return None if timed else f"no step in {start_s:g} s"
    return _problem_text(log, code) if code else None


def _wait_for_steps(
    layout: ProfileLayout,
    child: subprocess.Popen[bytes],
    *,
    budget_s: float,
    start_s: float,
    window: WindowRequest | None,
) -> bool:
    """Wait for the steps of a budget, or the job's end; return whether there were any."""
    began, warm_at, warm_steps = time.monotonic(), None, 0
    while child.poll() is None:
        time.sleep(POLL_S)
        now, steps = time.monotonic(), _fewest_steps(layout)
        if warm_at is None:
            if steps >= WARM_STEPS:
                warm_at, warm_steps = now, steps
            elif now - began > start_s:
                return steps > 0
            continue
        if now - warm_at > PATIENCE * budget_s + (WINDOW_S if window else 0.0):
            return True
        written = window is None or window_state(layout, 1, window).complete
        if written and now - warm_at >= budget_s and steps - warm_steps >= LEAST_STEPS:
            return True
    return True


def _fewest_steps(layout: ProfileLayout) -> int:
    """Return the steps of the rank that has the fewest."""
    diaries = layout.diaries()
    with suppress(OSError):
        return min((steps_in(path) for path in diaries), default=0)
    return 0


def stop(child: subprocess.Popen[bytes], layout: ProfileLayout) -> None:
    """End the command and its ranks, whatever session they are in."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=GRACE_S)
    for path in layout.processes():
        process = read_record(path, HookedProcess)
        if runs_here(process):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


def _problem_text(log: Path, code: int) -> str:
    """Say why a command failed, from what it printed: one line."""
    with suppress(OSError):
        text = log.read_bytes()[-(64 << 10) :].decode("utf-8", "replace")
        if code == 2 and (usage := _USAGE.search(text)):
            return f"the command refuses it: {usage[0].strip()}"
        if _OOM.search(text):
            return "out of memory"
        lines = [
            line.strip() for line in text.splitlines() if re.match(r"^(?:\[\w+\]:)?\s*\w*(?:Error|Exception)\b", line)
        ]
        if lines:
            return f"exit code {code}: {lines[-1][:160]}"
    return f"exit code {hooked_job.exit_code(code)}"


def read_knobs(layout: ProfileLayout, asked: Sequence[str]) -> dict[str, KnobTurn]:
    """Return by knob what the hook made of it, in the process that changed most; or that there was nothing to change."""
    turns: dict[str, KnobTurn] = {}
    for path in sorted(layout.control.glob("knobs-*.json")):
        with suppress(DataError):  # of a process that was stopped while it wrote
            for name, turn in read_record(path, HookedKnobs).found.items():
                if name not in turns or not turns[name].applied:
                    turns[name] = turn
    return {name: turns.get(name) or _unturned_knob(name, turns) for name in asked}


def _unturned_knob(knob: str, turns: Mapping[str, KnobTurn]) -> KnobTurn:
    owner, made = ("DataLoader", "data loader") if knob == "num_workers" else (("DistributedDataParallel",) * 2)
    return turns.get(owner) or KnobTurn(applied=False, words=f"the job made no {made}")
