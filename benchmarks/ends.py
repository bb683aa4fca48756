"""How often the end of a job is told right: kind, who is at fault, and the step, of ends that are provoked.

Every job is small DDP over gloo under torchrun. A step counts as right where it is the one, or is bounded and not beyond it.
``ENDS`` of the environment: names, separated by commas; ``ENDS_RUNS``: how often each (1); ``ENDS_COMMAND``: profile or run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._report import heading
from stepscope.records.profile import EndKind, JobEnd
from stepscope.results.profiled_job import end_sentence, read_job_end
from stepscope.store.layout import ProfileLayout

JOB = Path(__file__).with_name("_ending_job.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
LONGEST_S = 150.0
BAR = 16
GROUP = Path("/sys/fs/cgroup/memory/stepscope-ends")
"""Of version 1 of control groups: in this one a rank runs out of memory, and nobody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """how: what the job is told; kind, ranks, launcher: what is true. step: in which it happens; None: before any, or not in
    a step. place: what the line at fault holds. command: in place of the job. interrupt_s: when Ctrl-C is sent.
    """

    name: str
    how: str
    kind: EndKind
    ranks: tuple[int, ...] = (1,)
    launcher: bool = False
    step: int | None = 30
    world: int = 2
    timeout_s: float = 600.0
    place: str = ""
    signal: str | None = None
    command: str | None = None
    options: tuple[str, ...] = ()
    interrupt_s: float | None = None


LAUNCHES = """
import torch.multiprocessing as mp
if __name__ == "__main__":
    mp.spawn(print, nprocs=mp.number_of_devices)
"""

BY_SIGNAL: dict[str, Any] = {"how": "launcher-SIGKILL", "kind": "killed", "ranks": (), "launcher": True, "step": None}
STOPPED: dict[str, Any] = {"kind": "interrupted", "ranks": (), "step": None}
BEHIND: dict[str, Any] = {"kind": "hang", "place": "goes_wrong"}

ENDINGS = (
    Ending(name="exception in one rank", how="raise", kind="crash", place="goes_wrong"),
    Ending(name="exception in all ranks", how="raise", kind="crash", ranks=(0, 1), place="goes_wrong"),
    Ending(name="exception in the launcher's script", how="", kind="crash", ranks=(), step=None, command=LAUNCHES),
    Ending(name="import error", how="import", kind="crash", ranks=(0, 1), step=None),
    Ending(name="sys.exit(1) of one rank", how="exit", kind="exit-code"),
    Ending(name="os._exit(3) of one rank", how="os-exit", kind="exit-code"),
    Ending(name="SIGSEGV in one rank", how="SIGSEGV", kind="killed", signal="SIGSEGV", step=40),
    Ending(name="SIGABRT in one rank", how="SIGABRT", kind="killed", signal="SIGABRT", step=40),
    Ending(name="SIGKILL of one rank", how="SIGKILL", kind="killed", signal="SIGKILL"),
    Ending(name="SIGTERM to one rank", how="SIGTERM", kind="killed", signal="SIGTERM"),
    Ending(name="SIGKILL of the launcher", signal="SIGKILL", **BY_SIGNAL),
    Ending(name="SIGTERM to the launcher", signal="SIGTERM", **{**BY_SIGNAL, "how": "launcher-SIGTERM"}),
    Ending(name="Ctrl-C", how="stepscope-SIGINT", signal="SIGINT", **STOPPED),
    Ending(name="SIGTERM to stepscope", how="stepscope-SIGTERM", signal="SIGTERM", **STOPPED),
    Ending(name="exception in a DataLoader worker", how="worker", kind="crash", place="__getitem__"),
    Ending(name="MemoryError", how="memory", kind="out-of-memory", place="goes_wrong"),
    Ending(name="device out of memory", how="oom", kind="out-of-memory", place="goes_wrong"),
    Ending(name="host out of memory", how="host-memory", kind="out-of-memory", signal="SIGKILL"),
    Ending(name="hang", how="hang-sleep", options=("--hang-after", "5"), interrupt_s=30.0, **BEHIND),
    Ending(name="timeout of 5 s: sleeps", how="hang-sleep", timeout_s=5.0, **BEHIND),
    Ending(name="timeout of 20 s: sleeps", how="hang-sleep", timeout_s=20.0, **BEHIND),
    Ending(name="timeout of 5 s: loops, 3 ranks", how="hang-loop", timeout_s=5.0, world=3, **BEHIND),
    Ending(name="timeout of 20 s: loops, 3 ranks", how="hang-loop", timeout_s=20.0, world=3, **BEHIND),
    Ending(name="timeout of 5 s: reads a pipe", how="hang-io", timeout_s=5.0, **BEHIND),
    Ending(
        name="timeout of 5 s: data, 3 ranks", how="hang-data", timeout_s=5.0, world=3, kind="hang", place="read_the_row"
    ),
    Ending(name="timeout of 20 s: data", how="hang-data", timeout_s=20.0, kind="hang", place="read_the_row"),
)


def ended(ending: Ending, folder: Path, command: str) -> JobEnd | None:
    """What is told of the end; None: nothing, in time."""
    at_rank = -1 if ending.ranks == (0, 1) else 1
    job = [str(TORCHRUN), "--standalone", "--nproc-per-node", str(ending.world), str(JOB), ending.how,
           str(ending.step or 30), str(at_rank), str(ending.timeout_s)]  # fmt: skip
    if ending.command is not None:
        script = folder / "launches.py"
        script.write_text(ending.command)
        job = [sys.executable, str(script)]
    out = folder / "run"
    line = [sys.executable, "-m", "stepscope.cli", command, *ending.options, "-o", str(out), "--", *job]
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=(folder / "stderr").open("w"), env={**os.environ, "ENDS_CGROUP": str(GROUP)},
        start_new_session=True,
    )  # fmt: skip
    try:
        if ending.interrupt_s is not None:
            time.sleep(ending.interrupt_s)
            process.send_signal(signal.SIGINT)
        process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return read_job_end(ProfileLayout(out))


def faults(ending: Ending, end: JobEnd | None) -> list[str]:
    """What is told wrong; empty: nothing."""
    if end is None:
        return ["nothing is told"]
    right: dict[str, tuple[object, object]] = {
        "kind": (end.kind, ending.kind), "ranks": (end.ranks, ending.ranks), "launcher": (end.launcher, ending.launcher),
    }  # fmt: skip
    if ending.signal is not None:
        right["signal"] = end.signal, ending.signal
    if ending.step is not None and (end.step_exact or end.step is None or end.step > ending.step):
        right["step"] = end.step, ending.step
    if ending.place and ending.place not in (end.place or end.message or ""):
        right["place"] = end.place, ending.place
    if ending.name == "SIGKILL of the launcher":
        right["ranks that run"] = tuple(rank for rank, _ in end.running), (0, 1)
    return [f"{name} {told!r}, true {true!r}" for name, (told, true) in right.items() if told != true]


def main() -> None:
    """Print each end and what is told of it."""
    names = [name for name in os.environ.get("ENDS", "").split(",") if name]
    runs, command = int(os.environ.get("ENDS_RUNS", "1")), os.environ.get("ENDS_COMMAND", "profile")
    wanted = [each for each in ENDINGS if not names or any(name in each.name for name in names)]
    limits = os.access(GROUP.parent, os.W_OK)
    if not limits:
        print(f"not provoked: a host out of memory: {GROUP.parent} cannot be written")
        wanted = [each for each in wanted if each.how != "host-memory"]
    heading(f"Ends of jobs: {len(wanted)} kinds under `stepscope {command}`, {runs} each")
    right = bounded = 0
    stalls: list[str] = []
    for ending in wanted:
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder, _group(made=limits):
                end = ended(ending, Path(folder), command)
                wrong = faults(ending, end)
                stalls += [line for line in (Path(folder) / "stderr").read_text().splitlines() if "no step for" in line]
            right += not wrong
            bounded += end is not None and not end.step_exact
            told = "-" if end is None else end_sentence(end)
            print(f"{'right' if not wrong else 'WRONG: ' + '; '.join(wrong):<8} {ending.name}: {told}", flush=True)
    print("\n".join(["stalls that were told before:", *stalls]))
    print(f"{right} of {len(wanted) * runs} told right, {bounded} with a bounded step; bar: all of {BAR} kinds")


@contextmanager
def _group(*, made: bool) -> Iterator[None]:
    if made:
        GROUP.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if made:
            GROUP.rmdir()
