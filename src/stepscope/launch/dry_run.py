"""A dry run: the program of a rank, started once for each world that is asked for, as a launcher would start its rank 0.

The hook in it (``hook/stepscope_dry``) takes the place of GPUs and other ranks, and ends it after the step that is recorded.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stepscope import __version__
from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, MissingError, UsageError
from stepscope.core.forks import usable_cores
from stepscope.core.processes import ask
from stepscope.launch.hooked_job import HOOK, check_program
from stepscope.launch.training_command import PYTHON, RankProgram, rank_program
from stepscope.machine.peaks import Accelerator
from stepscope.records.dry_run import DryFailure, DryRank, DryRun
from stepscope.store.layout import DryLayout
from stepscope.store.reader import read_bytes, read_if_there
from stepscope.store.writer import make_dir, write_record, writing

TIMEOUT_S = 600.0
"""What one rank may take to its second step."""
POLL_S = 0.05
MOST_AT_ONCE = 2
GRACE_S = 3.0
"""Time from SIGTERM to SIGKILL."""
LATE_S = 5.0
"""How much later a script is ended from outside: it says first where it is."""
_LOGGED = re.compile(r"[WI]\d{4} ")
"""Of torch's own warnings."""
LINES = 12
"""Last lines of what a script printed that are shown where it failed."""
_ACCELERATE = """\
import json, os, sys
before = dict(os.environ)
from accelerate.commands import launch
from accelerate.utils.launch import prepare_multi_gpu_env
words = [*sys.argv[2:], "--num_processes", sys.argv[1], *(["--multi_gpu"] if sys.argv[1] != "1" else []), "train.py"]
args, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
args.num_processes, args.main_process_port, args.num_machines = int(sys.argv[1]), 0, 1
print(json.dumps({k: v for k, v in prepare_multi_gpu_env(args).items() if before.get(k) != v}))
"""
"""What `accelerate launch` itself makes of its options and its configuration, as variables of the ranks."""


@record
class DrySettings:
    """gpu: that the script is told it runs on; None: it finds the host alone. batch_from: a file with the first batch; None:
    of the script's loader. timeout_s: what one rank may take."""

    gpu: Accelerator | None
    batch_from: Path | None = None
    timeout_s: float = TIMEOUT_S


def dry_run(
    layout: DryLayout, run: DryRun, settings: DrySettings, *, tell: Callable[[DryRank | DryFailure, float], None]
) -> DryRun:
    """Run the script of ``run.command`` once for each world, as ``dry_runs``; return the record with the failures."""
    return dry_runs(((layout, run),), settings, tell=tell)[0]


def dry_runs(
    asked: Sequence[tuple[DryLayout, DryRun]],
    settings: DrySettings,
    *,
    tell: Callable[[DryRank | DryFailure, float], None],
) -> list[DryRun]:
    """Run the script of each run once for each of its worlds, and once for each further stage of a pipeline,
    ``MOST_AT_ONCE`` at a time; write what it records and why it did not below its folder, and return the records with the
    failures.

    tell: told of each rank as it ends, with its seconds. What a signal raises passes through once all that was started has
    ended. Raises StepscopeError where nothing can be started.
    """
    runs = [(layout, *_begun_run(layout, run, settings)) for layout, run in asked]
    queues = {
        (number, world): [0] for number, (_, run, _) in enumerate(runs) for world in run.gpus
    }  # ranks of one world follow each other: stages tell the next their shapes
    failures: dict[int, list[DryFailure]] = {number: [] for number in range(len(runs))}
    running: dict[tuple[int, int], _Rank] = {}
    try:
        while running or any(queues.values()):
            free = [place for place, ranks in queues.items() if ranks and place not in running]
            for place in free[: max(0, min(MOST_AT_ONCE, usable_cores()) - len(running))]:
                layout, run, program = runs[place[0]]
                running[place] = _Rank(layout, program, run, settings, place[1], queues[place].pop(0))
            time.sleep(POLL_S)
            for place in [place for place, rank in running.items() if rank.has_ended()]:
                rank = running.pop(place)
                outcome = rank.outcome()
                tell(outcome, rank.seconds)
                if isinstance(outcome, DryFailure):
                    failures[place[0]].append(outcome)
                    queues[place].clear()
                elif not rank.rank and outcome.pipeline is not None:
                    queues[place] += sorted(set(outcome.pipeline.ranks) - {0})
    finally:
        for rank in running.values():
            rank.stop()
    ended = []
    for number, (layout, run, _) in enumerate(runs):
        ordered = sorted(failures[number], key=lambda failure: failure.world_size)
        ended.append(replace(run, failures=tuple(ordered)))
        write_record(layout.record, ended[-1])
    return ended


def _begun_run(layout: DryLayout, run: DryRun, settings: DrySettings) -> tuple[DryRun, RankProgram]:
    """Make the folder of a run and return it with its ranks of a node, and its program. Raises StepscopeError."""
    program = rank_program(run.command)
    check_program(program.words)
    script = next((word for word in program.words[:3] if word.endswith(".py")), None)
    if script is not None and PYTHON.fullmatch(Path(program.words[0]).name) and not Path(script).is_file():
        raise UsageError(f"{script}: no such file", fix="check the command after `--`, and the folder that you are in")
    if settings.batch_from is not None and not settings.batch_from.is_file():
        raise UsageError(f"--batch-from {settings.batch_from}: no such file")
    per_node = run.ranks_per_node or program.ranks or (settings.gpu.node if settings.gpu else max(run.gpus))
    if odd := next((world for world in run.gpus if world > per_node and world % per_node), None):
        raise UsageError(
            f"{odd} GPUs do not fill nodes of {per_node}",
            fix=f"ask for a multiple of {per_node}, or say --gpus-per-node, or --nproc-per-node of torchrun",
        )
    if layout.root.exists() and (not layout.root.is_dir() or any(layout.root.iterdir())):
        raise UsageError(f"{layout.root} exists and is not an empty folder", fix="choose another folder with -o DIR")
    run = replace(run, ranks_per_node=per_node)
    make_dir(layout.control)
    write_record(layout.record, run)
    return run, program


class _Rank:
    """The process of one rank of one world."""

    def __init__(
        self, layout: DryLayout, program: RankProgram, run: DryRun, settings: DrySettings, world: int, rank: int
    ) -> None:
        self.layout, self.world, self.rank = layout, world, rank
        self.began, self.seconds, self.timeout_s = time.monotonic(), 0.0, settings.timeout_s + LATE_S
        self.timed_out = False
        local = min(world, run.ranks_per_node or world)
        gpu = settings.gpu
        options = {
            "output": str(layout.root.resolve()),
            "tool_version": __version__,
            "world": world,
            "rank": rank,
            "ranks_per_node": local,
            "device": gpu and {"name": gpu.name, "memory_bytes": gpu.total_bytes, "capability": _capability(gpu)},
            "batch_from": None if settings.batch_from is None else str(settings.batch_from.resolve()),
            "changes": dict(run.changes),
            "limit_s": settings.timeout_s,
        }
        environment = {
            **os.environ,
            **(_accelerate_variables(program, world) if program.launcher == "accelerate" else {}),
            **(_launcher_variables(program.launcher, world, rank, local) if program.launcher or world > 1 else {}),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "STEPSCOPE_HOOK": json.dumps({"dry": options}),
            "PYTHONPATH": os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        log = layout.log(world, rank)
        with writing(log), log.open("wb") as output:
            self.child = subprocess.Popen(
                program.words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def has_ended(self) -> bool:
        """Whether the process has ended; one that takes too long is ended here."""
        self.seconds = time.monotonic() - self.began
        if self.child.poll() is None and self.seconds > self.timeout_s + LATE_S:
            self.timed_out = True
        if self.child.poll() is None and not self.timed_out:
            return False
        self.stop()  # what it started may still run
        return True

    def stop(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=GRACE_S)

    def outcome(self) -> DryRank | DryFailure:
        """Return what the rank recorded, or why it did not."""
        failure = read_if_there(self.layout.failure(self.world, self.rank), DryFailure)
        step = None if failure is not None else read_if_there(self.layout.rank(self.world, self.rank), DryRank)
        if failure is not None and failure.reason == "no-step":  # what it printed says why: a wrong option, say
            lines = last_lines(self.layout, self.world, self.rank)[-1:]
            return replace(failure, text="; it printed last: ".join([failure.text, *lines]))
        return failure or step or self._unsaid_failure()

    def _unsaid_failure(self) -> DryFailure:
        """Say why a process ended of which the hook says nothing."""
        code, lines = self.child.returncode, last_lines(self.layout, self.world, self.rank)
        last = f": {lines[-1]}" if lines else ""
        if self.timed_out:
            reason, text = "timeout", f"no second step within {self.timeout_s:.0f} s{last}"
        elif code == 0:
            reason, text = "no-step", f"the script ended before it imported torch{last}"
        else:
            how = f"signal {-code} ended the script" if code < 0 else f"the script ended with exit code {code}"
            reason, text = "raised", f"{how}{last}"
        return DryFailure(world_size=self.world, rank=self.rank, reason=reason, text=text)


def _capability(gpu: Accelerator) -> tuple[int, int]:
    """Return the compute capability by which torch chooses kernels."""
    if gpu.key.startswith(("l4", "rtx-40", "rtx-6000-ada")):
        return (8, 9)
    return {"volta": (7, 0), "ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0)}.get(gpu.generation, (9, 0))


def last_lines(layout: DryLayout, world: int, rank: int) -> list[str]:
    """Return the last lines of what the script of a rank printed."""
    with suppress(DataError):
        text = read_bytes(layout.log(world, rank))[-(64 << 10) :].decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip() and not _LOGGED.match(line)][-LINES:]
    return []


def _launcher_variables(launcher: str | None, world: int, rank: int, local: int) -> dict[str, str]:
    """Return the variables by which a launcher tells a rank where it is."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": rank // local,
        "GROUP_WORLD_SIZE": -(-world // local),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    if launcher == "srun":
        numbers |= {
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": rank % local,
            "SLURM_NODEID": rank // local,
            "SLURM_NTASKS": world,
            "SLURM_NNODES": -(-world // local),
            "SLURM_NTASKS_PER_NODE": local,
        }
    if launcher == "mpirun":
        of_world, of_node = "OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_LOCAL_"
        numbers |= {
            f"{of_world}RANK": rank,
            f"{of_world}SIZE": world,
            f"{of_node}RANK": rank % local,
            f"{of_node}SIZE": local,
        }
    names = {
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "none",
        "SLURM_JOB_ID": "1",
        "SLURM_NODELIST": "localhost",
    }
    kept = {name: text for name, text in names.items() if launcher == "srun" or not name.startswith("SLURM")}
    return kept | {name: str(number) for name, number in numbers.items()}


def _accelerate_variables(program: RankProgram, world: int) -> dict[str, str]:
    """Return what `accelerate launch` tells its ranks. Raises MissingError where it does not answer."""
    python = program.words[0] if program.words[0].startswith(("python", "/")) else "python"
    command = [python, "-c", _ACCELERATE, str(world), *program.options]
    with suppress(OSError, subprocess.TimeoutExpired, ValueError):
        done = ask(command, environ=os.environ, timeout_s=120)
        if done.returncode == 0:
            return dict(json.loads(done.stdout.splitlines()[-1]))
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise MissingError("accelerate launch does not take these options", why=why, fix=f"try: {shlex.join(command)}")
    raise MissingError("accelerate launch does not answer", fix="check the installation of accelerate")
