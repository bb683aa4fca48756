"""The run folder of a measuring command: its place, made, resumed or refused; which earlier results stand."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import ExitCode, UsageError
from stepscope.core.words import counted
from stepscope.launch.join import become_rank_half, group_id, joined_world, world_environ
from stepscope.records.cell import Cell, CellStatus, RunRecord
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.nouns import Status
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there, read_run
from stepscope.store.writer import WriteError, write_record

MISSING_DATA = "data-missing"
"""Stands for a digest while the files cannot be read: such a cell never runs under this identity."""

RESULTS: frozenset[Status] = frozenset({"ok", "oom", "host_oom"})
"""What stays in the table after its cell has left the matrix: it was measured, or found not to fit."""


def prepare(
    layout: RunLayout,
    *,
    run: RunRecord,
    specs: tuple[Cell, ...],
    environment: EnvironmentRecord,
    force: bool,
    others: tuple[str, ...] = (),
) -> None:
    """Write run.json, environment.json and the cells' specs.

    others: cells of the matrix that are not asked for now: those that were stay among ``cells``. Cells of an earlier
    run in the folder that are not in this matrix stay in run.json as ``earlier_cells`` if they have a result. Raises
    UsageError as :func:`refuse_unfit` does.
    """
    earlier = refuse_unfit(
        layout, kind=run.kind, name=run.name, cell_ids=(*run.cells, *others), environment=environment, force=force
    )
    commands: tuple[tuple[str, ...], ...] = ()
    if earlier is not None:
        kept = tuple(cell for cell in (*earlier.cells, *earlier.earlier_cells) if cell in others)
        run = replace(
            run,
            cells=(*run.cells, *kept),
            earlier_cells=_measured_cells(layout, earlier, other_than=(*run.cells, *others)),
        )
        commands = earlier.commands or (earlier.argv,)
    run = replace(run, commands=tuple(dict.fromkeys((*commands, run.argv))))
    write_record(layout.run, run)
    write_record(layout.environment, environment)
    for spec in specs:
        write_record(layout.cell(spec.cell_id).spec, spec)


def refuse_unfit(
    layout: RunLayout, *, kind: str, name: str, cell_ids: Sequence[str], environment: EnvironmentRecord, force: bool
) -> RunRecord | None:
    """Return the run that is in the folder already, or None for a new folder.

    UsageError when the folder holds something else; unless ``force`` also when another machine measured it, or when it
    belongs to another matrix: one of another name, or one that has none of its measured cells in common with this.
    """
    earlier = read_if_there(layout.run, RunRecord)
    if earlier is None:
        if layout.root.is_dir() and any(path.name != layout.lock.name for path in layout.root.iterdir()):
            raise UsageError(
                f"{layout.root} is not empty and is not a run folder",
                why="stepscope does not overwrite other files",
                fix="choose another folder with -o DIR",
            )
        return None
    if earlier.kind != kind:
        raise UsageError(f"{layout.root} holds a {earlier.kind} run", fix="choose another run folder with -o DIR")
    if not force:
        _refuse_other_matrix(layout, earlier, name, cell_ids)
        _refuse_other_machine(layout, environment)
    return earlier


def read_statuses(layout: RunLayout, cell_ids: Iterable[str]) -> dict[str, CellStatus]:
    """Return the statuses that an earlier run left, by cell id."""
    statuses = ((cell_id, read_if_there(layout.cell(cell_id).status, CellStatus)) for cell_id in cell_ids)
    return {cell_id: status for cell_id, status in statuses if status is not None}


def untraced(layout: RunLayout, statuses: Mapping[str, CellStatus]) -> frozenset[str]:
    """Return the cells that are ok and have no trace: with ``--profile`` they are measured again."""
    return frozenset(
        cell_id
        for cell_id, status in statuses.items()
        if status.status == "ok" and not any(layout.cell(cell_id).traces.glob("*"))
    )


def has_samples(layout: RunLayout, cell: Cell) -> bool:
    """Whether all ranks' records of an earlier run are still there; a worker group clears them when it starts."""
    files = layout.cell(cell.cell_id)
    return all(files.summary(rank).exists() for rank in range(cell.world_size))


def _measured_cells(layout: RunLayout, run: RunRecord, *, other_than: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the cells of ``run`` that have a result."""
    cell_ids = [cell_id for cell_id in (*run.cells, *run.earlier_cells) if cell_id not in other_than]
    statuses = read_statuses(layout, cell_ids)
    return tuple(i for i in cell_ids if i in statuses and statuses[i].status in RESULTS)


def _refuse_other_matrix(layout: RunLayout, earlier: RunRecord, name: str, cell_ids: Sequence[str]) -> None:
    """Refuse another matrix in one run folder: a table of two would set cells side by side that nobody meant to compare."""
    fix = "choose another run folder with -o DIR, or add --force to keep both in this one"
    if earlier.name != name:
        raise UsageError(f"{layout.root} belongs to the matrix {earlier.name!r}, not to {name!r}", fix=fix)
    measured = _measured_cells(layout, earlier)
    if measured and not set(measured) & set(cell_ids):
        raise UsageError(
            f"{layout.root} belongs to another version of the matrix {name!r}",
            why=f"none of its {counted(len(measured), 'measured cell')} is in this one",
            fix=fix,
        )


def _refuse_other_machine(layout: RunLayout, now: EnvironmentRecord) -> None:
    """Refuse another kind of machine in one run folder: results of two would be compared as if they were of one."""
    before = read_if_there(layout.environment, EnvironmentRecord)
    if before is None:
        return
    changed = [
        f"{what}: {old} then, {new} now"
        for what, old, new in zip(
            ("CPU", "GPUs", "torch", "hosts"), _machine_key(before), _machine_key(now), strict=True
        )
        if old != new
    ]
    if changed:
        raise UsageError(
            f"{layout.root} was measured on another machine",
            why="; ".join(changed),
            fix="choose another run folder with -o DIR, or add --force to mix them",
        )


def _machine_key(environment: EnvironmentRecord) -> tuple[str, str, str, str]:
    torch = environment.torch
    gpus = "unknown" if torch is None else ", ".join(torch.device_names) or "none"
    version = "unknown" if torch is None else torch.version
    hosts = ", ".join(environment.extra.get("hosts", {})) or "one"
    return f"{environment.cpu_model}, {environment.usable_cores} cores", gpus, version, hosts


RUNS = Path("stepscope-runs")
NAME_CHARS = 40
LAUNCHER_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.launcher", "torchrun")
"""Modules that start other programs."""


@record
class RunPlace:
    """The place of a run. group: id of the worker group when the ranks exist already, None when this command starts them.

    cores_factor: hosts of such a world.
    """

    layout: RunLayout
    group: str | None
    cores_factor: int


def default_run_dir(name: str) -> Path:
    """Return ``stepscope-runs/NAME-YYYYMMDD-HHMMSS`` in the current folder."""
    return RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def name_of_command(command: Sequence[str]) -> str:
    """Return what a training command is called: its script or module without folders, else its program."""
    scripts = [word for word in command if word.endswith(".py")]
    modules = [word for before, word in pairwise(command) if before == "-m" and not word.startswith(LAUNCHER_MODULES)]
    word = Path(scripts[0]).stem if scripts else modules[0].rpartition(".")[2] if modules else Path(command[0]).name
    return re.sub(r"[^\w.-]+", "-", word)[:NAME_CHARS].strip("-.") or "job"


def take_place(output: Path | None, *, name: str, env_source: str, env: tuple[str, ...]) -> RunPlace:
    """Return the run folder of this command. Inside a started world, ranks other than 0 turn into the rank half: no return.

    env_source, env: option that sets environment variables, and those it sets: they come too late for ranks that exist.
    """
    joined = joined_world(os.environ)
    if joined is not None and output is None:
        raise UsageError(
            "no run folder is given, and a launcher started this world",
            why="every rank needs the same run folder",
            fix="add -o DIR on a file system that all hosts share, or start the command outside srun and torchrun",
        )
    layout = RunLayout(output or default_run_dir(name))
    if joined is None:
        return RunPlace(layout=layout, group=None, cores_factor=1)
    group = group_id(os.environ)
    if joined[0] != 0:
        become_rank_half(layout.group(group), joined[0])
    if env:
        raise UsageError(
            f"{env_source} ({', '.join(sorted(env))}) cannot be set: the ranks exist already",
            fix=f"export these variables in your launcher and leave {env_source} out",
        )
    return RunPlace(layout=layout, group=group, cores_factor=_host_count(joined[1]))


def _host_count(world_size: int) -> int:
    local = world_environ(os.environ).get("LOCAL_WORLD_SIZE", "")
    return max(1, world_size // int(local)) if local.isdigit() and int(local) >= 1 else 1


def stopped_by_the_disk(layout: RunLayout, error: WriteError) -> WriteError:
    """Return the same error with what becomes of the run; as it is where no run has begun yet."""
    run = read_run(layout.root) if layout.run.exists() else None
    if run is None:
        return error
    statuses = read_statuses(layout, run.cells)
    finished = sum(status.status == "ok" for status in statuses.values())
    return WriteError(
        error.what,
        why=error.why,
        fix=f"free some space and run the same command with `-o {layout.root}`: {finished} of {len(run.cells)} cells "
        "are finished and saved there, only the rest will run",
    )


def exit_code(statuses: Iterable[Status]) -> int:
    """Return the exit code. 0: everything that can run here has a result. 4: some failed. 5: none succeeded. 3: none can run
    here."""
    outcomes = set(statuses)
    failed = bool(outcomes - {"ok", "unsupported", "skipped"})
    if "ok" in outcomes:
        return ExitCode.SOME_CELLS_FAILED if failed else ExitCode.OK
    return ExitCode.ALL_CELLS_FAILED if failed else ExitCode.ENVIRONMENT
