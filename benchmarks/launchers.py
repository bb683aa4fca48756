"""Every example under every launcher, alone, with `stepscope run` and `profile`: exit code and output are its own.

    python -m benchmarks.launchers [--examples train_ddp,...] [--launchers torchrun,...] [--steps 30]

A launcher that is not installed is skipped, and said. The last one has two hosts, each with an output folder of its own:
there ranks begin at a fixed step, and each leaves its trace where it ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.launch.netns import world
from stepscope.launch.netns.start import probe_emulation
from stepscope.store.layout import ProfileLayout

EXAMPLES = Path(__file__).parents[1] / "examples"
BIN = Path(sys.executable).parent
RULE = "───"
"""Of the block that `profile` prints into the job's output."""

SPAWN = """
import os, runpy, sys
import torch.multiprocessing as mp
def work(rank, script, arguments):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29761")
    sys.path.insert(0, os.path.dirname(script))
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[2], sys.argv[3:]), nprocs=2, start_method=sys.argv[1])
"""
OF_MPI = """
export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29762
exec "$@"
"""
OWN_FOLDER = """
[ "$RANK" = 0 ] && exec "$@"
exec unshare -m sh -c 'mount -t tmpfs none "$HIDDEN" && exec "$@"' sh "$@"
"""

Line = Callable[[Path, list[str]], "list[str] | None"]
"""The command line of a script with its arguments, helpers written into a folder; None where the launcher is missing."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", default="train_ddp,train_naive,train_fsdp2,train_tp,train_hf_like")
    parser.add_argument("--launchers", default=",".join(LAUNCHERS))
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args([] if arguments is None else arguments)
    heading("examples under launchers: alone, `run` and `profile` (bar: exit code and output unchanged in all)")
    changed = 0
    for example in asked.examples.split(","):
        for launcher in asked.launchers.split(","):
            with tempfile.TemporaryDirectory() as folder:
                said, wrong = _compared(Path(folder), example, launcher, asked.steps)
            changed += wrong
            print(f"{example:<14} {launcher:<16} {said}", flush=True)
    print(f"changed: {changed}")


def _compared(folder: Path, example: str, launcher: str, steps: int) -> tuple[str, bool]:
    line = LAUNCHERS[launcher](folder, [str(EXAMPLES / f"{example}.py"), "--steps", str(steps)])
    if line is None:
        return "skipped: not installed here", False
    runs = {}
    for how in ("alone", "run", "profile"):
        hidden = folder / how
        hidden.mkdir()
        before = [] if how == "alone" else [str(BIN / "stepscope"), how, "-o", str(hidden / "job"), "--"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HIDDEN": str(hidden)}
        done = subprocess.run([*before, *line], capture_output=True, text=True, env=env, check=False)
        runs[how] = done.returncode, _of_job(done.stdout) + _logs(folder)
    wrong = [how for how in ("run", "profile") if runs[how] != runs["alone"]]
    layout = ProfileLayout(folder / "profile" / "job")
    traces = len(list(layout.traces(1).glob("rank-*.json.gz")))
    code, said = runs["alone"]
    text = f"exit code {code}, {said[-1] if said else 'no output'}; {traces} traces; "
    if wrong:
        return text + f"CHANGED by {', '.join(wrong)}: {[runs[how] for how in wrong]}", True
    return text + "unchanged", False


def _of_job(stdout: str) -> list[str]:
    """The losses: what the job itself prints; all else on stdout is the block of `profile`."""
    return sorted(line for line in stdout.splitlines() if line.startswith("loss "))


def _logs(folder: Path) -> list[str]:
    """What ranks of the emulated network print: the file of the last run."""
    return [line for path in folder.glob("logs/**/stdout.log") for line in _of_job(path.read_text())]


def _torchrun() -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def _accelerate(folder: Path, job: list[str]) -> list[str] | None:  # noqa: ARG001
    """One process: without GPUs accelerate starts several with MPI only."""
    found = shutil.which("accelerate")
    if found is None:
        return None
    options = ["--cpu", "--num_processes=1", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    return [found, "launch", *options, *job]


def _mpirun(folder: Path, job: list[str]) -> list[str] | None:
    if shutil.which("mpirun") is None:
        return None
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "-x", "PYTHONPATH", "-x", "STEPSCOPE_HOOK",
            *_shell(folder, OF_MPI), sys.executable, *job]  # fmt: skip


def _multiprocessing(method: str) -> Line:
    def line(folder: Path, job: list[str]) -> list[str]:
        script = folder / "start.py"
        script.write_text(SPAWN)
        return [sys.executable, str(script), method, *job]

    return line


def _script(folder: Path, job: list[str]) -> list[str]:
    return [*_shell(folder, 'cd "$(dirname "$0")"\nexec "$@"\n'), *_torchrun(), *job]


def _hosts(folder: Path, job: list[str]) -> list[str] | None:
    if os.geteuid() or isinstance(probe_emulation(), Unavailable):
        return None
    line = world.command_of_ranks(
        "1gbit", parent=0, world_size=2, log_dir=folder / "logs", error_file=folder / "error.json",
        argv=[*_shell(folder, OWN_FOLDER), sys.executable, *job],
    )  # fmt: skip
    del line[line.index("--parent") : line.index("--parent") + 2]
    return line


def _shell(folder: Path, text: str) -> list[str]:
    script = folder / "a script.sh"
    script.write_text(text)
    return ["sh", str(script)]


LAUNCHERS: dict[str, Line] = {
    "python": lambda _, job: [sys.executable, *job],
    "torchrun": lambda _, job: [*_torchrun(), *job],
    "accelerate": _accelerate,
    "mpirun": _mpirun,
    "spawn": _multiprocessing("spawn"),
    "fork": _multiprocessing("fork"),
    "shell script": _script,
    "hosts apart": _hosts,
}

if __name__ == "__main__":
    main(sys.argv[1:])
