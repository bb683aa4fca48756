"""The user's own command under the hook: its folder, its environment, its signals; and why no rank of it reported a step."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from stepscope import __version__
from stepscope.core.errors import MissingError, UsageError
from stepscope.core.forks import STOP_SIGNALS, signals_call
from stepscope.core.words import counted
from stepscope.launch.job_window import runs_here
from stepscope.records import codec
from stepscope.records.profile import HookedProcess, ProfileRecord, WindowRequest
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_bytes, read_if_there, read_record, steps_in
from stepscope.store.writer import make_dir, write_bytes, write_record, writing

HOOK = Path(__file__).parents[1] / "hook"
JOIN_POLL_S = 0.2
"""How long to wait between looks for a job that another host begins."""


def _how_to_start(command: Sequence[str]) -> str:
    """Say how to start a command that was not found."""
    if command[0].endswith(".py"):
        return f"Python runs a script: -- python {shlex.join(command)}"
    beside = Path(sys.executable).with_name(command[0])
    if beside.is_file():  # stepscope was started by its path, in an environment that is not activated
        return f"write {beside}, or activate its environment first"
    return "check the command after `--`"


def check_program(command: Sequence[str]) -> None:
    """Raise UsageError where the command names no program that can be started."""
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]!r} cannot be started",
            why="there is no such program" if not Path(command[0]).exists() else "it is not executable",
            fix=_how_to_start(command),
        )


def prepare(
    layout: ProfileLayout,
    record: ProfileRecord,
    *,
    nccl_debug: bool,
    step_optimizer: int,
    memory: bool,
    diary: bool = True,
    knobs: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Make the output folder and return the environment of the command. Raises StepscopeError.

    memory: keep the allocator's history from the first use of CUDA on. diary: time every step; without, the hook only waits
    for requests. knobs: settings of the job that the hook changes (hook/stepscope_hook/knobs.py).
    The folder must be new or empty: windows of two jobs in one folder could not be told apart. That of a job which failed
    before its first step is emptied: the same line is typed again once its fault is corrected.
    """
    root = layout.root
    check_program(record.command)
    if layout.end.exists():
        make_room(layout)
    taken = UsageError(f"{root} exists and is not an empty folder", fix="choose another folder with -o DIR")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise taken
    make_dir(root)
    with writing(layout.control):
        try:
            layout.control.mkdir()
        except FileExistsError:  # of a job that was started at the same moment
            raise taken from None
    write_record(layout.record, record)
    options = {
        "output": str(root.resolve()),
        "tool_version": __version__,
        "step_optimizer": step_optimizer,
        "memory": memory,
        "diary": diary,
        "first": codec.to_builtins(record.first),
        "command": (record.host, os.getpid()),
        **({"knobs": dict(knobs)} if knobs else {}),
    }
    write_bytes(layout.hook, json.dumps(options).encode())
    environment = _hooked_environment(options)
    if record.first is not None and record.first.tool == "nsys":
        make_dir(layout.traces(1))  # nsys makes no folder
    if nccl_debug:
        make_dir(layout.nccl_debug)
        environment["NCCL_DEBUG"] = environment.get("NCCL_DEBUG") or "INFO"
        environment["NCCL_DEBUG_FILE"] = str(layout.nccl_debug.resolve() / "%h.%p.log")
    return environment


def _hooked_environment(options: Mapping[str, object]) -> dict[str, str]:
    """Return this environment with the hook in it."""
    environment = dict(os.environ)
    environment["STEPSCOPE_HOOK"] = json.dumps(options)
    environment["PYTHONPATH"] = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment.setdefault("KINETO_LOG_LEVEL", "99")  # what Kineto says of its own work would change the job's output
    return environment


def environment_of(layout: ProfileLayout, *, patience_s: float) -> dict[str, str]:
    """Return the environment of a command that takes part in the job of the folder, which another host starts.

    Raises MissingError where no job begins there in time, UsageError where the job of the folder has ended.
    """
    limit = time.monotonic() + patience_s
    while not layout.hook.exists():
        if time.monotonic() > limit:
            raise MissingError(
                f"no job began in {layout.root} within {patience_s:.0f} s",
                why="the host that starts it, and this one, see one folder",
                fix=f"start it on another host: stepscope run -o {layout.root} -- COMMAND, on a file system that both share",
            )
        time.sleep(JOIN_POLL_S)
    if layout.end.exists():
        raise UsageError(
            f"the job of {layout.root} has ended", fix="choose a new folder with -o DIR, the same on all hosts"
        )
    options = json.loads(read_bytes(layout.hook))
    return _hooked_environment({**options, "output": str(layout.root.resolve())})


def make_room(layout: ProfileLayout) -> None:
    """Empty the folder of an ended job that left nothing there but what stepscope needs, so that it can be used again.

    Nothing is removed while a process of the job still runs on this host, and no diary that holds a step.
    """
    with suppress(OSError):  # the job may have removed the folder itself
        there = set(layout.root.iterdir()) - {layout.record, layout.control, layout.verdict}
        empty = [path for path in there if path.is_dir() and not any(path.iterdir())]
        processes = [read_record(path, HookedProcess) for path in layout.processes()]
        if (
            len(empty) < len(there)
            or any(runs_here(process) for process in processes)
            or any(steps_in(path) for path in layout.diaries())
        ):
            return
        for path in empty:
            path.rmdir()
        shutil.rmtree(layout.control)
        layout.verdict.unlink(missing_ok=True)
        layout.record.unlink()


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the command as a child with our own stdin, stdout and stderr. Raises UsageError where it cannot be started."""
    try:
        return subprocess.Popen(list(command), env=dict(environment))
    except OSError as error:
        raise UsageError(
            f"{command[0]!r} cannot be started", why=error.strerror or str(error), fix="check the command after `--`"
        ) from error


@contextmanager
def signals_passed_on(child: subprocess.Popen[bytes]) -> Iterator[list[tuple[int, int]]]:
    """Within the block a signal to this process is one to the job; Ctrl-C of a terminal reaches the job by itself.

    Yields the signals that came, a list that grows: number, and when on the wall clock.
    """
    came: list[tuple[int, int]] = []

    def pass_on(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        came.append((signum, time.time_ns()))
        if child.poll() is None and not (signum == signal.SIGINT and _in_foreground()):
            child.send_signal(signum)

    with signals_call(pass_on, (signal.SIGINT, *STOP_SIGNALS)):
        yield came


def _in_foreground() -> bool:
    """Whether a terminal sends its signals to our process group, which is the job's too."""
    try:
        with Path("/dev/tty").open() as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def exit_code(returncode: int) -> int:
    """Return the job's own exit code as a shell gives it: 128 + the signal's number for one that a signal ended."""
    return returncode if returncode >= 0 else 128 - returncode


def wake(layout: ProfileLayout, request: WindowRequest) -> int:
    """Ask the ranks of a running job for a window; returns its number."""
    number = 1 + max((int(p.stem.split("-")[1]) for p in layout.control.glob("request-*.json")), default=0)
    if read_if_there(layout.record, ProfileRecord) is None:
        raise UsageError(
            f"{layout.root} is not the folder of a job that stepscope started",
            why="it has no profile.json",
            fix="name the folder of `stepscope run -o RUN`, which that command prints as the job starts",
        )
    record = read_record(layout.record, ProfileRecord)
    number += record.first is not None and number == 1
    path = layout.request(number)
    temporary = path.with_suffix(".tmp")
    with writing(path):
        temporary.write_text(json.dumps(codec.to_builtins(request)), encoding="utf-8")
        temporary.replace(path)
    return number


def why_no_rank(layout: ProfileLayout, command: Sequence[str]) -> tuple[str, str]:
    """Return (reason, what to do) for a job none of whose ranks reported a step."""
    if processes := layout.processes():
        count = f"{counted(len(processes), 'process')} imported torch"
        return (
            f"{count}, but no optimizer of torch.optim made a step",
            "a job without an optimizer: `stepscope profile --duration 10 -- ...` profiles forward passes for 10 s",
        )
    first, line = Path(command[0]).name, shlex.join(command)
    passing = "PYTHONPATH,STEPSCOPE_HOOK"
    by_launcher = {
        "srun salloc sbatch": f"srun must export {passing}: --export=ALL,{passing}",
        "mpirun mpiexec orterun": f"{first} must export the environment: -x PYTHONPATH -x STEPSCOPE_HOOK "
        f"(MPICH: -genvlist {passing})",
        "docker podman singularity apptainer enroot": "a container sees neither the environment nor the folder: pass "
        f"{passing} in and mount {HOOK} and {layout.root}",
    }
    for names, fix in by_launcher.items():
        if first in names.split():
            return "no process of the job loaded the hook when it imported torch", fix
    if " -I " in line or " -E " in line or " -S " in line:
        return "Python ignores the environment with -I, -E and -S", "leave that option of python out"
    return (
        f"no process of the job imported torch, or none that did sees {layout.root}",
        f"check that the command runs training, that its launcher passes {passing} on to the ranks, and that -o is a folder "
        "on every host",
    )
