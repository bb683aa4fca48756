"""What ``stepscope slurm`` does: decide the worlds of a job, write its scripts, have Slurm look at them, hand them over."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope.cli import bench_plan, bench_run, comm_run
from stepscope.cli.app import options_of
from stepscope.cli.command import Options, choice, given, spelled
from stepscope.cli.commands.bench import Bench
from stepscope.cli.commands.comm import Comm
from stepscope.cli.commands.profile import Profile
from stepscope.cli.commands.run import Run
from stepscope.cli.console import log, say, typed
from stepscope.core.errors import MissingError, UsageError
from stepscope.core.words import counted, grouped, in_words, unknown
from stepscope.launch import slurm_client
from stepscope.launch.hooked_job import HOOK
from stepscope.launch.slurm import (
    BatchJob,
    Container,
    Resources,
    TaskWorld,
    array_text,
    limit_s,
    measuring_text,
    report_text,
    watched_text,
)
from stepscope.launch.training_command import program_of_ranks
from stepscope.matrix.load import load_matrix
from stepscope.matrix.matrix_file import COMM
from stepscope.matrix.run_folder import default_run_dir, name_of_command
from stepscope.store.writer import make_dir, write_bytes

if TYPE_CHECKING:
    from stepscope.cli.commands.slurm import Slurm

CLI = ("-m", "stepscope.cli")
REQUEUES = 20
"""How often a job is put back in the queue that keeps what it has measured."""
WATCHED = ("run", "profile")
LAYOUTS = {name: name for name in ("one-job", "array")}
_ELSEWHERE = {
    "bench": ("list_", "show", "plan", "output", "emulate_network", "json"),
    "comm": ("plan", "output", "emulate_network", "json", "format_", "env"),
    "run": ("output",),
    "profile": ("output", "attach"),
}
"""Options of a command that the job's script decides, or that start nothing."""


def run(options: Slurm) -> int:
    """Write the scripts, and submit them where asked; the exit code. Raises StepscopeError."""
    kind, words = _kind(options.command)
    layout = choice("--layout", options.layout, LAYOUTS)
    _refuse_without_use(options, kind, layout)
    name, worlds, watcher = _WORLDS[kind](options, words)
    folder = (options.output or default_run_dir(f"slurm-{name}")).resolve()
    job = _job(options, name, folder, worlds, measures=kind not in WATCHED)
    texts = _texts(job, worlds, watcher, layout=layout, at_once=options.at_once)
    scripts = _write(folder, texts, force=options.force)
    return _hand_over(options, job, worlds, scripts)


def _kind(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return which command of stepscope the job runs, and the words after it."""
    words = list(command[1:] if command[0] == "stepscope" else command)
    if words and words[0] in _WORLDS:
        return words[0], words[1:]
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        return "bench", words
    if command[0] == "stepscope" or not words:
        raise UsageError(unknown("command for a job", words[0] if words else "", _WORLDS))
    return "run", ["--", *words]


def _refuse_without_use(options: Slurm, kind: str, layout: str) -> None:
    """Raises UsageError for options that this job has no use of."""
    if layout == "array" and kind != "bench":
        raise UsageError(f"--layout array is for the cells of a matrix, not for {kind}")
    if options.at_once is not None and layout != "array":
        raise UsageError("--at-once goes with --layout array")
    if options.container_image is not None and options.apptainer is not None:
        raise UsageError("--container-image and --apptainer both name the image", fix="give one of them")
    if options.mount and options.container_image is None and options.apptainer is None:
        raise UsageError("--mount goes with --container-image or --apptainer")
    for line in (*options.setup, *options.sbatch):
        if "\n" in line:
            raise UsageError(f"{line!r} has several lines", fix="give --setup or --sbatch once for each")
    if strange := [line for line in options.sbatch if not line.startswith("-")]:
        raise UsageError(f"--sbatch {strange[0]!r} is not an option of sbatch", fix="for example --sbatch=--qos=high")


def _own_options(kind: str, words: Sequence[str]) -> Options:
    """Return the options of the command that runs in the job. Raises UsageError for those that the script decides."""
    own = options_of(kind, words)
    if strange := [spelled(type(own), name) for name in given(own) if name in _ELSEWHERE[kind]]:
        raise UsageError(f"{kind} in a job does not go with {in_words(strange)}", fix=f"leave {in_words(strange)} out")
    return own


Decided = tuple[str, list[TaskWorld], tuple[str, ...]]
"""Name of the job, its worlds, and for a training command the words of stepscope that watch it."""


def _of_bench(options: Slurm, words: Sequence[str]) -> Decided:
    own = cast(Bench, _own_options("bench", words))
    if own.model is not None and own.ranks is None:
        raise UsageError("bench --model in a job needs --ranks", fix="for example --ranks 1,4,8")
    matrix = load_matrix(bench_run.source_of(own), overrides=bench_plan.overrides(own))
    if matrix.launch.env:
        names = in_words(sorted(matrix.launch.env))
        raise UsageError(
            f"launch.env sets {names}: too late for ranks that Slurm has started", fix="use --setup 'export NAME=VALUE'"
        )
    if matrix.comm is not None and not matrix.sections:
        raise UsageError(
            f"the matrix {matrix.name!r} trains and sweeps collectives, and one job does one of the two",
            fix="stepscope slurm ... -- bench MATRIX.yaml --set comm=null, and stepscope slurm ... -- comm",
        )
    chosen = own.sections or matrix.sections
    if strange := [name for name in chosen if name not in matrix.sections]:
        raise UsageError(unknown("section", strange[0], matrix.sections))
    training = [name for name in chosen if name != COMM]
    cells = Counter(
        cell.settings.world_size for cell in matrix.cells if not chosen or set(training) & set(cell.sections)
    )
    bare = _without(words, "--only")
    only = (f"--only={','.join(training)}",) if training else ()
    limit = _cell_limit(options, matrix.measure.timeout_ns)
    worlds = []
    for ranks, number in sorted(cells.items()):
        world = _world(options, ranks, (*CLI, "bench", *bare, *only, *limit))
        shares = [f"--share={part}/{number}" for part in range(1, number + 1)] if options.layout == "array" else []
        worlds += [replace(world, words=(*world.words, share)) for share in shares] or [world]
    if COMM in chosen:
        most = max(cells, default=(options.nodes or 1) * _per_node(options))
        worlds.append(_world(options, most, (*CLI, "bench", *bare, f"--only={COMM}", *limit)))
    return matrix.name, worlds, ()


def _cell_limit(options: Slurm, timeout_ns: int) -> tuple[str, ...]:
    """Return the option that makes a cell end before the job does. Raises UsageError where that leaves no time."""
    if options.time is None:
        return ()
    room_s = limit_s(options.time) - options.warn
    if room_s <= 0:
        raise UsageError(
            f"--time {options.time} leaves no time to measure: the job stops {options.warn} s before its limit",
            fix="ask for more time, or for a smaller --warn",
        )
    return (f"--set=measure.timeout_s={room_s}",) if timeout_ns > room_s * 1e9 else ()


def _of_comm(options: Slurm, words: Sequence[str]) -> Decided:
    own = cast(Comm, _own_options("comm", words))
    comm_run.comm_request(own)
    comm_run.comm_measure(own)
    sizes = comm_run.worlds(own) or ((options.nodes or 1) * _per_node(options),)
    asked = (
        *CLI,
        "comm",
        *_without(words, "--ranks"),
        f"--ranks={','.join(map(str, sizes))}",
    )  # one sweep in one folder
    return "comm", [_world(options, ranks, asked) for ranks in sorted(sizes)], ()


def _of_watched(kind: str, options: Slurm, words: Sequence[str]) -> Decided:
    own = cast(Run | Profile, _own_options(kind, words))
    command = tuple(own.command or ())
    if not command:
        raise UsageError(f"{kind} names no training command", fix=f"stepscope slurm ... -- {kind} -- torchrun train.py")
    program, ranks = program_of_ranks(command)
    per_node = options.ranks_per_node or options.gpus_per_node or ranks
    if per_node is not None and ranks is not None and per_node != ranks:
        raise UsageError(
            f"the command asks for {ranks} ranks on each node, and the job for {per_node}", fix="leave one of them out"
        )
    world = TaskWorld(nodes=options.nodes or 1, ranks=per_node or _per_node(options), words=program)
    before = tuple(words[: len(words) - len(command)])
    watcher = (kind, *(before[:-1] if before[-1:] == ("--",) else before))
    return name_of_command(command), [world], watcher


_WORLDS: dict[str, Callable[[Slurm, Sequence[str]], Decided]] = {
    "bench": _of_bench,
    "comm": _of_comm,
    "run": partial(_of_watched, "run"),
    "profile": partial(_of_watched, "profile"),
}


def _without(words: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the words without an option that takes a value."""
    kept: list[str] = []
    coming = iter(words)
    for word in coming:
        if word == name:
            next(coming, None)
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return tuple(kept)


def _per_node(options: Slurm) -> int:
    per_node = options.ranks_per_node or options.gpus_per_node
    if per_node is None:
        raise UsageError(
            "it is unknown how many ranks each node runs",
            fix="add --gpus-per-node N, or --ranks-per-node N without GPUs",
        )
    return per_node


def _world(options: Slurm, ranks: int, words: tuple[str, ...]) -> TaskWorld:
    """Return where ``ranks`` ranks run.

    Raises UsageError where they fill no whole number of nodes, or more than asked for.
    """
    per_node = _per_node(options)
    nodes = 1 if ranks <= per_node else ranks // per_node
    if ranks > per_node and ranks % per_node:
        raise UsageError(
            f"{ranks} ranks fill no whole number of nodes with {counted(per_node, 'rank')} each",
            fix="choose --ranks-per-node, or world sizes that fit: --set axes.world_size=[...]",
        )
    if options.nodes is not None and nodes > options.nodes:
        raise UsageError(
            f"{ranks} ranks need {counted(nodes, 'node')} of {counted(per_node, 'rank')}, and --nodes is {options.nodes}",
            fix=f"--nodes {nodes}, or leave it out",
        )
    return TaskWorld(nodes=nodes, ranks=min(ranks, per_node), words=words)


def _job(options: Slurm, name: str, folder: Path, worlds: Sequence[TaskWorld], *, measures: bool) -> BatchJob:
    container = None
    image = options.container_image or options.apptainer
    if image is not None:
        mounts = options.mount if measures else (*options.mount, str(HOOK))
        container = Container(runtime="apptainer" if options.apptainer else "pyxis", image=image, mounts=mounts)
    if options.time is not None:
        limit_s(options.time)
    return BatchJob(
        name=name,
        folder=str(folder),
        workdir=str(Path.cwd()),
        typed=shlex.join(typed()),
        resources=Resources(
            nodes=options.nodes or max(world.nodes for world in worlds),
            gpus_per_node=options.gpus_per_node,
            cpus_per_node=options.cpus_per_node,
            time=options.time,
            partition=options.partition,
            account=options.account,
            more=options.sbatch,
        ),
        python=sys.executable if container else options.python or sys.executable,
        rank_python=options.python or ("python3" if container else sys.executable),
        setup=options.setup,
        container=container,
        requeues=options.requeue if options.requeue is not None else REQUEUES if measures else 0,
        warn_s=options.warn,
    )


def _texts(
    job: BatchJob, worlds: Sequence[TaskWorld], watcher: tuple[str, ...], *, layout: str, at_once: int | None
) -> dict[str, str]:
    """Return name of a script -> its text, in the order in which they are submitted; the report last."""
    if watcher:
        texts = {f"{job.name}.sbatch": watched_text(job, worlds[0], watcher=watcher)}
        results = '"$(ls -1td "$FOLDER"/run* | head -n 1)"'
    elif layout == "array":
        texts = {}
        for nodes, those in grouped(worlds, lambda world: world.nodes).items():
            part = f"{job.name}-{nodes}-nodes"
            own = replace(job, name=part, resources=replace(job.resources, nodes=nodes))
            texts[f"{part}.sbatch"] = array_text(own, those, run=f"run-{nodes}-nodes", at_once=at_once)
        results = '"$FOLDER"/run-*'
    else:
        texts = {f"{job.name}.sbatch": measuring_text(job, worlds)}
        results = '"$FOLDER/run"'
    return texts | {"report.sbatch": report_text(job, results=results)}


def _write(folder: Path, texts: dict[str, str], *, force: bool) -> list[Path]:
    make_dir(folder / "logs")
    scripts = {folder / name: text.encode() for name, text in texts.items()}
    changed = [path.name for path, text in scripts.items() if path.exists() and _work(path.read_bytes()) != _work(text)]
    if changed and not force:
        raise UsageError(
            f"{folder} has another {in_words(changed)}",
            why="it is of another command, or you have changed it",
            fix="choose another folder with -o DIR, or add --force to replace it",
        )
    for path, text in scripts.items():
        write_bytes(path, text)
    return list(scripts)


def _work(text: bytes) -> list[bytes]:
    """Return what a script does: its lines without the one that says by which command it was written."""
    return [line for line in text.splitlines() if not line.startswith(b"# Written by")]


def _hand_over(options: Slurm, job: BatchJob, worlds: Sequence[TaskWorld], scripts: Sequence[Path]) -> int:
    """Say what was written; have Slurm look at it where it is there, and submit it where asked."""
    shown = [_near(path) for path in scripts]
    sizes = list(dict.fromkeys(world.nodes * world.ranks for world in worlds))
    say(f"wrote {in_words(shown)}: {counted(job.resources.nodes, 'node')}, {in_words(sizes)} ranks")
    *jobs, report = scripts
    by_hand = f"sbatch {' '.join(shown[:-1])}" if len(jobs) == 1 else f"sbatch each of {in_words(shown[:-1])}"
    by_hand += f", then sbatch --dependency=afterany:ID {shown[-1]} with the ID that it prints"
    if not slurm_client.has_sbatch():
        if not options.submit:
            say(f"submit it on a login node: {by_hand}")
            return 0
        raise MissingError(
            "sbatch is not here: nothing was submitted",
            why="the scripts are written",
            fix=f"on a login node: {by_hand}",
        )
    for script in jobs:
        if (why := slurm_client.refusal(script)) is not None:
            if options.submit:
                raise MissingError(f"Slurm refuses {_near(script)}: nothing was submitted", why=why)
            log(f"! Slurm would refuse {_near(script)}: {why}", "yellow")
    if not options.submit:
        say(f"submit it: {by_hand}; or add --submit")
        return 0
    ids = [slurm_client.submit(script) for script in jobs]
    last = slurm_client.submit(report, after=ids)
    say(f"submitted job {in_words(ids)}, and job {last} for the report after it")
    say(f"watch them: squeue -j {','.join([*ids, last])}; logs: {_near(Path(job.folder))}/logs")
    return 0


def _near(path: Path) -> str:
    """Return the path as one types it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
