"""Facts that a user states because the files leave them open, matched to runs by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TypeVar

from stepscope.core.errors import UsageError
from stepscope.core.words import counted, did_you_mean, listed
from stepscope.records.imported import Stated
from stepscope.records.training import TrainingRun

T = TypeVar("T")

_LISTED = 12
_FIX = "write NAME=RANKS, several with commas: --world-size exp021=4,exp044=4"


def parse_world_sizes(text: str) -> dict[str, int]:
    """Read ranks by name from ``exp021=4,exp044=4``; ``8`` by itself is of the empty name, which every run has.

    Raises UsageError: no NAME=RANKS, no rank at all, a name twice.
    """
    sizes: dict[str, int] = {}
    bare = text.strip().isascii() and text.strip().isdecimal()
    if bare:
        text = f"={text.strip()}"
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.strip().rpartition("="))
        if not (name or bare):
            reason = f"{part.strip()!r} is not NAME=RANKS" if part.strip() else "nothing between two commas"
            raise UsageError(f"--world-size {text!r}: {reason if text.strip() else 'it is empty'}", fix=_FIX)
        if not (number.isascii() and number.isdigit()) or int(number) < 1:
            raise UsageError(
                f"--world-size {part.strip()}: {number!r} is not a number of ranks",
                why="a job runs on a whole number of ranks, 1 or more",
                fix=_FIX,
            )
        _put_value(sizes, name, int(number), option="--world-size")
    return sizes


def _put_value(values: dict[str, T], name: str, value: T, *, option: str) -> None:
    """Put a value to a name. Raises UsageError where it has another one."""
    if values.setdefault(name, value) != value:
        raise UsageError(f"{option} gives {name} twice: {values[name]} and {value}", fix="leave one of them out")


def stated_of_source(stated: Stated, name: str, names: Sequence[str]) -> Stated:
    """Return what the user states of one of several sources' runs: ``x/run/log=8`` is of ``log`` in ``x/run`` alone.

    names: of all sources, as :func:`stepscope.core.places.telling_names` gives them and runs of one name are told apart.
    The name of the source itself, with a slash after it, is of its only run where it is no run's own name.
    """
    others = [other for other in names if other != name]
    own_sizes = {
        f"{own}/" if own == name else own.removeprefix(f"{name}/"): ranks
        for own, ranks in stated.world_size.items()
        if not any(own == other or own.startswith(f"{other}/") for other in others)
    }
    return replace(stated, world_size=own_sizes)


def parse_columns(text: str) -> dict[str, str]:
    """Read ``gpus=world_size,tok_s=tokens_per_s`` as meaning by column. Raises UsageError: no NAME=MEANING, a name twice."""
    fix = "write COLUMN=MEANING, several with commas: --columns gpus=world_size,tok_s=tokens_per_s; COLUMN=- leaves it out"
    meanings: dict[str, str] = {}
    for part in text.split(","):
        name, _, meaning = (piece.strip() for piece in part.strip().rpartition("="))
        if not (name and meaning):
            raise UsageError(f"--columns {text!r}: {part.strip()!r} is not COLUMN=MEANING", fix=fix)
        _put_value(meanings, name, meaning, option="--columns")
    return meanings


def stated_world_sizes(
    names: Mapping[str, Sequence[str]], stated: Stated, files: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Return the ranks of those runs of one source that the user named.

    names: run_id -> what else the run is called; files: run_id -> the file that it is from. A stated name is a run's id,
    another name of it, a part that no other run has in any of its names, or its file's name. Names that fit none may
    belong to another source: ``require_known`` finds those that fit nothing. Raises UsageError for a part that several runs
    have, and for a run with two different numbers.
    """
    sizes: dict[str, int] = {}
    for name, ranks in stated.world_size.items():
        fitting = _fitting_runs(name, names, files)
        if len(fitting) > 1:
            typed = f"{name}={ranks}" if name else f"{ranks}"
            raise UsageError(
                f"--world-size {typed} fits {len(fitting)} runs: {listed(fitting, at_most=_LISTED)}",
                why="a part of a name is enough if no other run has it"
                if name
                else "which of them it is of is not said",
                fix=f"name each run: --world-size {','.join(f'{run}={ranks}' for run in fitting[:_LISTED])}",
            )
        for run_id in fitting:
            _put_value(sizes, run_id, ranks, option="--world-size")
    return sizes


def with_stated(runs: Sequence[TrainingRun], stated: Stated) -> tuple[TrainingRun, ...]:
    """Give ``runs`` of one source the ranks and kind of scaling that the user states; those facts are missing no more.

    Raises UsageError as ``stated_world_sizes``, and for ranks that contradict what a run's file says.
    """
    sizes = stated_world_sizes({run.run_id: _run_names(run) for run in runs}, stated, _files_by_run(runs))
    return tuple(_run_with_stated(run, sizes.get(run.run_id), stated) for run in runs)


def stated_ranks(title: str, path: str, stated: Stated, *, listed: bool) -> int | None:
    """Return the ranks that the user stated for a table of measured collectives, by its file's name or a part of its title.

    listed: the table itself lists its ranks, so that a number without a name is not about it.
    """
    fitting = {
        name: ranks
        for name, ranks in stated.world_size.items()
        if (name or not listed) and _names_table(name, title, path)
    }
    return fitting[max(fitting, key=len)] if fitting else None


def require_known(runs: Iterable[TrainingRun], stated: Stated, tables: Iterable[tuple[str, str]] = ()) -> None:
    """Raise UsageError for a stated name that no run has, or whose run is on another number of ranks by its files.

    tables: (title, file) of tables of measured collectives, which may have the name instead.
    """
    by_id = {run.run_id: run for run in runs}
    names = {run_id: _run_names(run) for run_id, run in by_id.items()}
    tables = tuple(tables)
    for name, ranks in stated.world_size.items():
        fitting = _fitting_runs(name, names, _files_by_run(by_id.values()))
        if not fitting:
            if any(_names_table(name, title, path) for title, path in tables):
                continue
            guess = did_you_mean(name, by_id)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise UsageError(
                f"--world-size {name}={ranks}: no run has {name!r} in its name{hint}",
                why=f"there are: {listed(list(by_id), at_most=_LISTED)}"
                if by_id
                else "there are no training runs at all",
                fix="give a run's id or a part of its name",
            )
        for run_id in fitting:
            require_agreement(by_id[run_id], ranks)


def require_agreement(run: TrainingRun, ranks: int) -> None:
    """Raise UsageError where a run's own files say another number of ranks than the user."""
    if run.world_size is not None and run.world_size != ranks:
        raise UsageError(
            f"--world-size {run.run_id}={ranks} contradicts the run's own files",
            why=f"they state that it ran on {run.world_size} ({run.source})",
            fix=f"leave {run.run_id} out, or correct the file",
        )


def _run_with_stated(run: TrainingRun, ranks: int | None, stated: Stated) -> TrainingRun:
    """Return the run with what the user states of it. Raises UsageError where the file says otherwise."""
    missing = dict(run.missing)
    if ranks is not None:
        require_agreement(run, ranks)
        missing.pop("world_size", None)
    if stated.scaling is not None:
        missing.pop("scaling", None)
    of_one = run.rank_samples_per_s
    of_all = None if ranks is None or of_one is None else of_one.times(ranks)
    label = run.label if ranks is None else run.label.replace("unknown ranks", counted(ranks, "rank"))
    return replace(
        run,
        label=label,
        world_size=run.world_size if ranks is None else ranks,
        samples_per_s=of_all or run.samples_per_s,
        rank_samples_per_s=of_one if of_all is None else None,
        scaling=stated.scaling or run.scaling,
        missing=missing,
    )


def _run_names(run: TrainingRun) -> tuple[str, ...]:
    experiment = run.settings.get("experiment")
    return (run.label, experiment) if isinstance(experiment, str) else (run.label,)


def _files_by_run(runs: Iterable[TrainingRun]) -> dict[str, str]:
    """Return the file that each run is from; some importers add the line."""
    return {run.run_id: re.sub(r":\d+$", "", run.source) for run in runs}


def _names_file(name: str, path: str) -> bool:
    """Return whether a name is that of the file, with or without folders before it and endings behind it."""
    parts, whole = PurePath(name).parts, PurePath(path)
    while parts and whole.name:
        if whole.parts[-len(parts) :] == parts:
            return True
        if not whole.suffix:
            break
        whole = whole.with_suffix("")
    return False


def _names_table(name: str, title: str, path: str) -> bool:
    """Return whether a stated name is of this table: a part of its title, its file's, or its whole source's."""
    return name.endswith("/") or name.casefold() in title.casefold() or _names_file(name, path)


def _fitting_runs(name: str, names: Mapping[str, Sequence[str]], files: Mapping[str, str] | None = None) -> list[str]:
    """Return ids of the runs that a stated name fits: the exact ones if there are any, else those that contain it, else
    those of the file with this name."""
    bare = name.removesuffix("/")
    if bare in names:
        return [bare]
    exact = [run_id for run_id, others in names.items() if bare in others]
    if exact:
        return exact
    if bare != name:
        return list(names)
    part = name.casefold()
    partly = [run_id for run_id, others in names.items() if any(part in text.casefold() for text in (run_id, *others))]
    return partly or [run_id for run_id, path in (files or {}).items() if _names_file(name, path)]
