"""What importers of training runs share: agreement of figures, ids, and which run is compared with which."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped
from stepscope.records.imported import Imported, LeftOut
from stepscope.records.nouns import Measured, Scaling
from stepscope.records.training import StepChange, TrainingRun
from stepscope.stats.order import LEAST_POINTS, Interval, level_change, median, median_interval
from stepscope.store.importer import Candidate
from stepscope.store.importers._log_lines import NO_END, RUN_THROUGH
from stepscope.store.importers._watchdog import timeouts_beside
from stepscope.store.stated import with_stated

MS = 1e6
SECOND = 1e9
MIB = 2**20
GIB = 2**30

NOT_READ = "is not read: its name has no unit"
"""In a run's note: of the whole file, too, because a figure that is missing shows nowhere."""
_OF_THE_FILE = (NOT_READ, NO_END, RUN_THROUGH)


def imported_runs(
    format: str,  # noqa: A002 - as the record calls it
    source: Candidate,
    runs: Iterable[TrainingRun],
    *,
    compared: Callable[[tuple[TrainingRun, ...]], tuple[TrainingRun, ...]] | None = None,
    notes: Sequence[str] = (),
    remarks: tuple[str, ...] = (),
    left_out: Sequence[LeftOut] = (),
    columns: Iterable[str] | None = None,
) -> Imported:
    """What an importer of runs hands over: ids made unique, what is compared found, and what the user states filled in.

    compared: gives runs their kind of scaling; None: as their batches tell.
    """
    known = (compared or with_own_scaling)(with_unique_ids(runs))
    unread = (note for run in known for note in run.notes if any(mark in note for mark in _OF_THE_FILE))
    hardware = sorted({run.hardware for run in known if run.hardware})
    return Imported(
        format=format,
        path=str(source.path),
        runs=with_stated(known, source.stated),
        watchdog=timeouts_beside(source, left_out),
        hardware=", ".join(hardware) or None,
        notes=tuple(dict.fromkeys((*notes, *unread))),
        remarks=remarks,
        left_out=tuple(left_out),
        columns=None if columns is None else tuple(dict.fromkeys(columns)),
    )


def label(strategy: str | None, world_size: int | None, *more: str) -> str:
    """``ddp on 2 ranks, 32 a rank``: how tables name a run beside its group."""
    ranks = "unknown ranks" if world_size is None else counted(world_size, "rank")
    return ", ".join([f"{strategy} on {ranks}" if strategy else ranks, *more])


def measured(value: float | None, *, scale: float = 1.0, n: int | None = None) -> Measured | None:
    """``value`` in base units without an interval; None stays None."""
    return None if value is None else Measured(value=value * scale, n=n)


def with_interval(value: float, interval: Interval | None, *, n: int) -> Measured:
    """``value`` with its 95% interval, where there is one."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Measured(value=value, low=low, high=high, n=n)


def require_agreement(source: str, what: str, *, stated: float, derived: float, formula: str, tolerance: float) -> None:
    """Raises DataError where a figure contradicts others of the same file by more than ``tolerance`` (relative)."""
    if abs(stated - derived) > tolerance * max(abs(stated), abs(derived)):
        raise DataError(
            f"{source}: {what} contradicts the file's other figures",
            why=f"it states {stated:.6g}, but {formula} is {derived:.6g}",
            fix="the file was edited, mixed or written wrongly: measure again",
        )


def slug(*parts: object) -> str:
    """One word for an id: letters, digits, dot and hyphen."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(str(part) for part in parts)).strip("-").lower()


def with_unique_ids(runs: Iterable[TrainingRun]) -> tuple[TrainingRun, ...]:
    """``runs`` with ``-2``, ``-3`` put behind a run_id that an earlier run has."""
    used: set[str] = set()
    found = []
    for run in runs:
        run_id, number = run.run_id, 1
        while run_id in used:
            number += 1
            run_id = f"{run.run_id}-{number}"
        used.add(run_id)
        found.append(run if run_id == run.run_id else replace(run, run_id=run_id))
    return tuple(found)


def with_own_scaling(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """``runs`` with what is kept as ranks are added, where their batches tell: see :func:`scaling_by_batches`.

    Against the finished runs of the same group on the fewest ranks; which of them is a run's baseline, results decide.
    """
    first = first_runs(runs)
    found = []
    for run in runs:
        kinds = {scaling_by_batches(run, base) for base in first.get(run.group, ()) if run.status == "ok"} - {None}
        found.append(replace(run, scaling=kinds.pop()) if run.scaling is None and len(kinds) == 1 else run)
    return tuple(found)


def first_runs(runs: Iterable[TrainingRun]) -> Mapping[str, Sequence[TrainingRun]]:
    """Group -> its finished runs on the fewest ranks."""
    done = grouped([run for run in runs if run.status == "ok" and run.world_size is not None], lambda run: run.group)
    fewest = {group: min(run.world_size or 0 for run in members) for group, members in done.items()}
    return {group: [run for run in members if run.world_size == fewest[group]] for group, members in done.items()}


def scaling_by_batches(run: TrainingRun, base: TrainingRun) -> Scaling | None:
    """``strong``: same global batch on more ranks; ``weak``: same batch a rank; None: the batches tell neither."""
    if run.world_size is None or base.world_size is None or run.world_size <= base.world_size:
        return None
    if run.global_batch is None or base.global_batch is None:
        return None
    if run.global_batch == base.global_batch:
        return "strong"
    grown = run.global_batch * base.world_size == base.global_batch * run.world_size
    return "weak" if grown and run.accumulation == base.accumulation else None


def step_change(steps: Sequence[int], times_ns: Sequence[float], *, timed: bool = True) -> StepChange | None:
    """Where the steps of a log change their level; the first is left out (warm-up). timed: else times are relative."""
    found = level_change(times_ns[1:]) if len(times_ns) > LEAST_POINTS else None
    if found is None:
        return None
    return StepChange(
        step=steps[1 + found.at],
        ratio=found.after / found.before,
        share=1 - (1 + found.at) / len(times_ns),
        before_ns=found.before if timed else None,
        after_ns=found.after if timed else None,
    )


def steady_median(values: Sequence[float]) -> Measured:
    """The median of logged figures, with its 95% interval where they are enough and independent enough."""
    return with_interval(median(values), median_interval(values), n=len(values))
