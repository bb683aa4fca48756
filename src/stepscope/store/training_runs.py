"""From figures of another tool to training runs: figures by step as loggers write them, agreement of figures, ids, and what
is kept as ranks are added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped
from stepscope.records.imported import Imported, LeftOut, Sign
from stepscope.records.nouns import Measured, Scaling
from stepscope.records.training import Epoch, StepChange, TrainingRun
from stepscope.stats.order import LEAST_POINTS, level_change, measured_median
from stepscope.store.columns import Meaning, meanings_of, plain, spellings
from stepscope.store.epoch_table import MOST_EPOCHS
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.log_lines import parts_read
from stepscope.store.stated import with_stated
from stepscope.store.text_signs import signs_beside

MS = 1e6
SECOND = 1e9
MIB = 2**20
GIB = 2**30


NO_REASON = "and does not state why"
"""How a note on a log ends that stops before its last step."""

_REASONS = ("exception", "oom", "host-oom", "child-code", "launched-code", "task-ended", "nccl-closed", "timeout")
"""Signs of why one does."""

Compared = Callable[[tuple[TrainingRun, ...]], tuple[TrainingRun, ...]]


def joined(
    format: str,  # noqa: A002 - as the record calls it
    source: Candidate,
    parts: Iterable[Imported],
    *,
    compared: Compared | None = None,
    left_out: Sequence[LeftOut] = (),
    signed: bool = False,
) -> Imported:
    """Make what an importer of runs hands over from what it read of each file or run: with unique ids, kinds of scaling, and
    what the user states filled in.

    compared: gives runs their kind of scaling; None: as their batches tell. signed: parts have the signs of their files.
    """
    parts = tuple(parts)
    unread = {file.path for file in left_out}
    signs = (
        tuple(sign for part in parts for sign in part.signs)
        if signed
        else signs_beside(file for file in source.files if str(file) not in unread)
    )
    runs = (compared or with_own_scaling)(with_unique_ids(run for part in parts for run in part.runs))
    hardware = sorted({name for name in (*(run.hardware for run in runs), *(part.hardware for part in parts)) if name})
    named = [part.columns for part in parts if part.columns is not None]
    return Imported(
        format=format,
        path=str(source.path),
        runs=with_stated(tuple(_with_reason(run, signs) for run in runs), source.stated),
        comm_rows=tuple(row for part in parts for row in part.comm_rows),
        signs=signs,
        hardware=", ".join(hardware) or None,
        notes=tuple(dict.fromkeys([*(note for part in parts for note in part.notes), *parts_read(source.files)])),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
        left_out=tuple(left_out),
        columns=tuple(dict.fromkeys(name for names in named for name in names)) if named else None,
    )


def _with_reason(run: TrainingRun, signs: Iterable[Sign]) -> TrainingRun:
    """Return a run without the note that its log does not state why it ends, where another line does."""
    if not any(sign.kind in _REASONS and run.source.startswith(sign.source) for sign in signs):
        return run
    return replace(run, notes=tuple(note for note in run.notes if not note.endswith(NO_REASON)))


def each_file(
    key: str,
    *,
    recognises: Callable[[Candidate], bool],
    read: Callable[[Path], Iterable[Imported]],
    reads: Container[str],
    compared: Compared | None = None,
    remarks: Callable[[Sequence[TrainingRun]], tuple[str, ...]] = lambda _: (),
    signed: bool = False,
    **form: Any,
) -> Importer:
    """Make an importer of files that are read one by one. read: what it makes of one. reads: suffixes of those of a folder.

    remarks: on all runs. The others as :class:`Importer` and :func:`joined` have them.
    """

    def read_files(source: Candidate) -> Imported:
        parts, left_out = read_each(source, recognises, lambda path: tuple(read(path)), suffixes=reads)
        imported = joined(key, source, chain.from_iterable(parts), compared=compared, left_out=left_out, signed=signed)
        return replace(imported, remarks=(*imported.remarks, *remarks(imported.runs)))

    return Importer(recognises=recognises, read_files=read_files, **form)


def label(strategy: str | None, world_size: int | None, *more: str) -> str:
    """Name a run as tables do beside its group: ``ddp on 2 ranks, 32 a rank``."""
    ranks = "unknown ranks" if world_size is None else counted(world_size, "rank")
    return ", ".join([f"{strategy} on {ranks}" if strategy else ranks, *more])


def measured(value: float | None, *, scale: float = 1.0, n: int | None = None) -> Measured | None:
    """Return ``value`` in base units without an interval; None stays None."""
    return None if value is None else Measured(value=value * scale, n=n)


def require_agreement(source: str, what: str, *, stated: float, derived: float, formula: str, tolerance: float) -> None:
    """Raise DataError where a figure contradicts others of the same file by more than ``tolerance`` (relative)."""
    if abs(stated - derived) > tolerance * max(abs(stated), abs(derived)):
        raise DataError(
            f"{source}: {what} contradicts the file's other figures",
            why=f"it states {stated:.6g}, but {formula} is {derived:.6g}",
            fix="the file was edited, mixed or written wrongly: measure again",
        )


def slug(*parts: object) -> str:
    """Make one word for an id: letters, digits, dot and hyphen."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(str(part) for part in parts)).strip("-").lower()


def with_unique_ids(runs: Iterable[TrainingRun]) -> tuple[TrainingRun, ...]:
    """Put ``-2``, ``-3`` behind each run_id that an earlier run has."""
    used: set[str] = set()
    unique = []
    for run in runs:
        run_id, number = run.run_id, 1
        while run_id in used:
            number += 1
            run_id = f"{run.run_id}-{number}"
        used.add(run_id)
        unique.append(run if run_id == run.run_id else replace(run, run_id=run_id))
    return tuple(unique)


def with_own_scaling(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """Give ``runs`` their kind of scaling where their batches tell it: see :func:`scaling_by_batches`.

    They are compared with the finished runs of the same group on the fewest ranks; results decide on a run's baseline.
    """
    first = first_runs(runs)
    scaled = []
    for run in runs:
        kinds = {scaling_by_batches(run, base) for base in first.get(run.group, ()) if run.status == "ok"} - {None}
        scaled.append(replace(run, scaling=kinds.pop()) if run.scaling is None and len(kinds) == 1 else run)
    return tuple(scaled)


def first_runs(runs: Iterable[TrainingRun]) -> Mapping[str, Sequence[TrainingRun]]:
    """Return group -> its finished runs on the fewest ranks."""
    done = grouped([run for run in runs if run.status == "ok" and run.world_size is not None], lambda run: run.group)
    fewest = {group: min(run.world_size or 0 for run in members) for group, members in done.items()}
    return {group: [run for run in members if run.world_size == fewest[group]] for group, members in done.items()}


def scaling_by_batches(run: TrainingRun, base: TrainingRun) -> Scaling | None:
    """Return ``strong`` for the same global batch on more ranks, ``weak`` for the same batch a rank, None for neither."""
    if run.world_size is None or base.world_size is None or run.world_size <= base.world_size:
        return None
    if run.global_batch is None or base.global_batch is None:
        return None
    if run.global_batch == base.global_batch:
        return "strong"
    grown = run.global_batch * base.world_size == base.global_batch * run.world_size
    return "weak" if grown and run.accumulation == base.accumulation else None


def step_change(steps: Sequence[int], times_ns: Sequence[float], *, timed: bool = True) -> StepChange | None:
    """Find where a log's steps change their level; the first is left out (warm-up). timed: else times are relative."""
    change = level_change(times_ns[1:]) if len(times_ns) > LEAST_POINTS else None
    if change is None:
        return None
    return StepChange(
        step=steps[1 + change.at],
        ratio=change.after / change.before,
        share=1 - (1 + change.at) / len(times_ns),
        before_ns=change.before if timed else None,
        after_ns=change.after if timed else None,
    )


def steady_mean(values: Iterable[float | None]) -> Measured | None:
    """Return the mean of what is known after the first epoch (warm-up); of the first, where there is no other."""
    timed = [value for value in values if value is not None]
    steady = timed[1:] or timed
    return Measured(value=fmean(steady), n=len(steady)) if steady else None


_BY_EPOCH = {
    "train_loss": "train_loss", "train_accuracy": "train_accuracy", "validation_loss": "validation_loss",
    "validation_accuracy": "validation_accuracy", "epoch_ns": "duration_ns",
}  # fmt: skip
_RATES = ("step_ns", "steps_per_s", "samples_per_s")
NO_RANKS = "it does not state the number of ranks"
_NO_UNIT = "{name} is not read: its name has no unit; state what it is, for example --columns {name}={like}"
_STARTS_UP = 1.5
"""A first step of so many times the median is no usual one."""
_LIKE = {"samples_per_s": "tokens_per_s", "epoch_ns": "epoch_time_s", "peak_memory": "peak_memory_gb"}
_WALL = "step time is the median wall-clock time between logged steps, everything between two of them included"


@dataclass(slots=True)
class LoggedStep:
    """What was logged at one step. wall_s: when. values: figure's name, as logged -> value."""

    step: int
    wall_s: float | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Scalars:
    """A run as its logger tells it. source, run_id, group, settings, notes: of the run.

    unread: notes on what was not read of the file.
    """

    source: str
    run_id: str
    group: str
    points: list[LoggedStep]
    fields: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    unread: Sequence[str] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all figures that were logged."""
        alike = dict.fromkeys(tuple(point.values) for point in self.points)
        return tuple(dict.fromkeys(name for names in alike for name in names))


def meaning_of(name: str) -> Meaning | None:
    """Return the meaning of a logged figure (``eval/loss`` is ``eval_loss``); None: it or its unit is not known."""
    return next(
        (meaning for spelt in spellings(name) for meaning in meanings_of(spelt) if meaning.scale is not None), None
    )


def _lacks_unit(name: str) -> str | None:
    """Return the note on a figure that would be a time, a rate or memory, if its name had a unit; else None."""
    roles = (meaning.role for spelt in spellings(name) for meaning in meanings_of(spelt))
    role = next((role for role in roles if role in (*_RATES, "epoch_ns", "peak_memory")), None)
    return role and _NO_UNIT.format(name=name, like=_LIKE.get(role, "step_time_ms"))


def run_of(scalars: Scalars, columns: Mapping[str, str] | None = None) -> Imported:
    """Make the run, and note what was not read of it: last losses, medians of rates after the first (warm-up), epochs where
    they are numbered.

    columns: figure's name -> the name to read it under, ``-`` to leave it out, as the user states them; None: he cannot.
    """
    wanted = {plain(name): target for name, target in (columns or {}).items()}
    chosen: dict[str, tuple[str, Meaning]] = {}
    lacking: list[str] = []
    for name in scalars.names:
        meaning = meaning_of(wanted.get(plain(name), name))
        if meaning is not None:
            chosen.setdefault(meaning.role, (name, meaning))
        elif plain(name) not in wanted and (note := _lacks_unit(name)):
            lacking.append(note)
    series: dict[str, list[float]] = {}
    for role, (name, meaning) in chosen.items():
        values = [point.values[name] * (meaning.scale or 1.0) for point in scalars.points if name in point.values]
        series[role] = [value for value in values if math.isfinite(value) and (role not in _RATES or value > 0)]
    fields, notes = dict(scalars.fields), [*scalars.notes, *scalars.unread]
    notes += lacking
    percent = {role for role, values in series.items() if role.endswith("accuracy") and values and max(values) > 1}
    world_size, rate, unit, of_one = (
        fields.get("world_size"),
        _steady_median(series.get("samples_per_s", [])),
        None,
        None,
    )
    if rate is not None:
        meaning = chosen["samples_per_s"][1]
        unit = meaning.item
        if meaning.per_rank:
            rate, of_one = (None, rate) if world_size is None else (rate.times(world_size), None)
            notes.append("the logged rate is per rank: the throughput is that times the number of ranks")
    step = _steady_median(series.get("step_ns", [])) or _steady_median(
        [1e9 / rate_logged for rate_logged in series.get("steps_per_s", [])]
    )
    loss_name, _ = chosen.get("train_loss", (None, None))
    if step is None and "step_ns" not in fields:
        step = _by_wall_clock(scalars.points, loss_name)
        notes += [_WALL] if step is not None else []
    parts = _mean_parts_ns(series)
    epochs = _logged_epochs(scalars.points, chosen, percent)
    accuracy = series.get("validation_accuracy") or []
    losses = series.get("train_loss") or []
    if not_finite := sum(loss_name in point.values for point in scalars.points) - len(losses):
        notes.append(f"the training loss is not finite at {counted(not_finite, 'logged step')}")
    made: dict[str, Any] = {
        "status": "ok",
        "world_size": None,
        "step_ns": step,
        "parts_ns": parts,
        "samples_per_s": rate,
        "rank_samples_per_s": of_one,
        "unit": unit or "samples",
        "epochs": epochs,
        "train_loss": losses[-1] if losses else None,
        "test_accuracy": None if epochs or not accuracy else _as_fraction("validation_accuracy", accuracy[-1], percent),
        "peak_memory_bytes": round(max(series["peak_memory"])) if series.get("peak_memory") else None,
    }
    made |= {key: value for key, value in fields.items() if value is not None}
    made["step_change"] = _step_change(scalars.points, chosen)
    if made["world_size"] is None:
        made["missing"] = made.get("missing") or {"world_size": NO_RANKS}
    run = TrainingRun(
        run_id=scalars.run_id,
        label=made.pop("label", label(made.get("strategy"), made["world_size"])),
        group=scalars.group,
        source=scalars.source,
        notes=tuple(dict.fromkeys(notes)),
        **made,
    )
    return Imported(
        format="",
        path=scalars.source,
        runs=(run,),
        notes=(*scalars.unread, *lacking),
        columns=None if columns is None else scalars.names,
    )


def _mean_parts_ns(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return mean ns of the parts of a step that are logged, without a first one that starts up; what they leave of logged
    steps is computation where only the loader is timed, else other."""
    steps = series.get("step_ns") or []
    start = int(len(steps) > 1 and steps[0] > _STARTS_UP * median(steps))
    parts = {
        role.removeprefix("part_"): fmean(values[start:] or values)
        for role, values in series.items()
        if role.startswith("part_") and values
    }
    if parts and steps and (rest := fmean(steps[start:]) - sum(parts.values())) > 0:
        parts["computation" if parts.keys() == {"data"} else "other"] = rest
    return parts


def _step_change(points: Sequence[LoggedStep], chosen: Mapping[str, tuple[str, Meaning]]) -> StepChange | None:
    """Find where steps change their level, in the figure that says most of their time: their time itself, or a rate."""
    for role, (name, meaning) in ((role, chosen[role]) for role in _RATES if role in chosen):
        logged = [(p.step, p.values[name] * (meaning.scale or 1.0)) for p in points if name in p.values]
        logged = [(step, value) for step, value in logged if math.isfinite(value) and value > 0]
        if logged:
            times = [value if role == "step_ns" else 1e9 / value for _, value in logged]
            return step_change([step for step, _ in logged], times, timed=role != "samples_per_s")
    return None


def _steady_median(values: Sequence[float]) -> Measured | None:
    """Return the median after the first (warm-up), with its interval where they are enough and independent enough."""
    kept = values[1:] or values
    return measured_median(kept) if kept else None


def _by_wall_clock(points: Iterable[LoggedStep], name: str | None) -> Measured | None:
    """Return the median time of a step between two points at which the training loss was logged."""
    timed = [point for point in points if point.wall_s is not None and (name is None or name in point.values)]
    times_ns = [
        (b.wall_s - a.wall_s) / (b.step - a.step) * 1e9
        for a, b in pairwise(timed)
        if a.wall_s is not None and b.wall_s is not None and b.step > a.step and b.wall_s > a.wall_s
    ]
    return _steady_median(times_ns)


def _logged_epochs(
    points: Sequence[LoggedStep], chosen: Mapping[str, tuple[str, Meaning]], percent: Container[str]
) -> tuple[Epoch, ...]:
    """Return what was last logged in each epoch. Epochs may be whole numbers, or how much of the data was seen (0.5)."""
    if "epoch" not in chosen:
        return ()
    name, _ = chosen["epoch"]
    whole = all(point.values[name].is_integer() for point in points if name in point.values)
    by_number: dict[int, dict[str, Any]] = {}
    number: int | None = None
    for point in points:
        if name in point.values and 0 <= point.values[name] < MOST_EPOCHS:
            number = round(point.values[name]) if whole else math.ceil(point.values[name] - 1e-6)
        if number is None:
            continue
        values = by_number.setdefault(number, {})
        for role, target in _BY_EPOCH.items():
            figure, meaning = chosen.get(role, ("", Meaning(role)))
            value = point.values.get(figure, math.nan) * (meaning.scale or 1.0)
            if math.isfinite(value):
                values[target] = _as_fraction(role, value, percent)
    none = {"duration_ns": None, "train_loss": None}
    return tuple(Epoch(number=at, **(none | by_number[at])) for at in sorted(by_number) if by_number[at])


def _as_fraction(role: str, value: float, percent: Container[str]) -> float:
    """Return ``value``; an accuracy in per cent as a fraction."""
    return value / 100 if role in percent else value
