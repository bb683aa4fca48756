"""Figures by step, as loggers write them (loss, rates, memory), into one training run."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch, StepChange, TrainingRun
from stepscope.store.importers._columns import Meaning, meanings_of, spellings
from stepscope.store.importers._epoch_order import MOST_EPOCHS
from stepscope.store.importers._training import NOT_READ, label, steady_median, step_change
from stepscope.store.stated_columns import plain

_BY_EPOCH = {
    "train_loss": "train_loss", "train_accuracy": "train_accuracy", "validation_loss": "validation_loss",
    "validation_accuracy": "validation_accuracy", "epoch_ns": "duration_ns",
}  # fmt: skip
_RATES = ("step_ns", "steps_per_s", "samples_per_s")
NO_RANKS = "it does not state the number of ranks"
_NO_UNIT = f"{{name}} {NOT_READ}; state what it is, for example --columns {{name}}={{like}}"
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
    """A run as its logger tells it. source, run_id, group, settings, notes: of the run."""

    source: str
    run_id: str
    group: str
    points: list[LoggedStep]
    known: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of every figure that was logged."""
        return tuple(dict.fromkeys(name for point in self.points for name in point.values))


def meaning_of(name: str) -> Meaning | None:
    """What a logged figure is, ``eval/loss`` or ``loss/eval`` as ``eval_loss``; None: not known, or its unit is not."""
    return next((each for spelt in spellings(name) for each in meanings_of(spelt) if each.scale is not None), None)


def _lacks_unit(name: str) -> str | None:
    """The note on a figure that would be a time, a rate or memory, if its name had a unit."""
    roles = (each.role for spelt in spellings(name) for each in meanings_of(spelt))
    role = next((role for role in roles if role in (*_RATES, "epoch_ns", "peak_memory")), None)
    return role and _NO_UNIT.format(name=name, like=_LIKE.get(role, "step_time_ms"))


def run_of(scalars: Scalars, columns: Mapping[str, str] = MappingProxyType({})) -> TrainingRun:
    """The run: last losses, medians of rates after the first (warm-up), epochs where they are numbered.

    columns: figure's name -> the name to read it under, ``-`` to leave it out, as the user states them.
    """
    wanted = {plain(name): target for name, target in columns.items()}
    meanings = {name: meaning_of(wanted.get(plain(name), name)) for name in scalars.names}
    series: dict[str, list[float]] = {}
    chosen: dict[str, str] = {}
    for name, meaning in meanings.items():
        if meaning is not None:
            chosen.setdefault(meaning.role, name)
    for role, name in chosen.items():
        scale = (meanings[name] or Meaning(role)).scale or 1.0
        values = [point.values[name] * scale for point in scalars.points if name in point.values]
        series[role] = [value for value in values if math.isfinite(value) and (role not in _RATES or value > 0)]
    known, notes = dict(scalars.known), list(scalars.notes)
    unread = [name for name, meaning in meanings.items() if meaning is None and plain(name) not in wanted]
    notes += [note for name in unread if (note := _lacks_unit(name))]
    percent = {role for role, values in series.items() if role.endswith("accuracy") and values and max(values) > 1}
    world_size, rate, unit, of_one = known.get("world_size"), _steady(series.get("samples_per_s", [])), None, None
    if rate is not None:
        meaning = meanings[chosen["samples_per_s"]] or Meaning("samples_per_s")
        unit = meaning.item
        if meaning.per_rank:
            rate, of_one = (None, rate) if world_size is None else (rate.times(world_size), None)
            notes.append("the logged rate is per rank: the throughput is that times the number of ranks")
    step = _steady(series.get("step_ns", [])) or _steady([1e9 / each for each in series.get("steps_per_s", [])])
    if step is None and "step_ns" not in known:
        step = _by_wall_clock(scalars.points, chosen.get("train_loss"))
        notes += [_WALL] if step is not None else []
    epochs = _epochs(scalars.points, chosen, meanings, percent)
    accuracy = series.get("validation_accuracy") or []
    losses = series.get("train_loss") or []
    logged = [point for point in scalars.points if chosen.get("train_loss") in point.values]
    if len(losses) < len(logged):
        notes.append(f"the training loss is not finite at {counted(len(logged) - len(losses), 'logged step')}")
    made: dict[str, Any] = {
        "status": "ok",
        "world_size": None,
        "step_ns": step,
        "samples_per_s": rate,
        "rank_samples_per_s": of_one,
        "unit": unit or "samples",
        "epochs": epochs,
        "train_loss": losses[-1] if losses else None,
        "test_accuracy": None if epochs or not accuracy else _fraction("validation_accuracy", accuracy[-1], percent),
        "peak_memory_bytes": round(max(series["peak_memory"])) if series.get("peak_memory") else None,
    }
    made |= {key: value for key, value in known.items() if value is not None}
    made["step_change"] = _changed(scalars.points, chosen, meanings)
    if made["world_size"] is None:
        made["missing"] = made.get("missing") or {"world_size": NO_RANKS}
    return TrainingRun(
        run_id=scalars.run_id,
        label=made.pop("label", label(made.get("strategy"), made["world_size"])),
        group=scalars.group,
        source=scalars.source,
        notes=tuple(dict.fromkeys(notes)),
        **made,
    )


def _changed(
    points: Sequence[LoggedStep], chosen: Mapping[str, str], meanings: Mapping[str, Meaning | None]
) -> StepChange | None:
    """Where steps change their level, of what says most of their time: its figure, or a rate."""
    for role in _RATES:
        name = chosen.get(role)
        known = [(p.step, p.values[name]) for p in points if name in p.values] if name is not None else []
        known = [(step, value) for step, value in known if math.isfinite(value) and value > 0]
        if known and name is not None:
            scale = (meanings[name] or Meaning(role)).scale or 1.0
            times = [value * scale if role == "step_ns" else 1e9 / (value * scale) for _, value in known]
            return step_change([step for step, _ in known], times, timed=role != "samples_per_s")
    return None


def _steady(values: Sequence[float]) -> Measured | None:
    kept = values[1:] or values
    return steady_median(kept) if kept else None


def _by_wall_clock(points: Iterable[LoggedStep], name: str | None) -> Measured | None:
    """Median time of a step between two points at which the training loss was logged."""
    timed = [point for point in points if point.wall_s is not None and (name is None or name in point.values)]
    found = [
        (b.wall_s - a.wall_s) / (b.step - a.step) * 1e9
        for a, b in pairwise(timed)
        if a.wall_s is not None and b.wall_s is not None and b.step > a.step and b.wall_s > a.wall_s
    ]
    return _steady(found)


def _epochs(
    points: Sequence[LoggedStep],
    chosen: Mapping[str, str],
    meanings: Mapping[str, Meaning | None],
    percent: Container[str],
) -> tuple[Epoch, ...]:
    """What was last logged in each epoch. Epochs may be whole numbers, or how much of the data was seen (0.5)."""
    if "epoch" not in chosen:
        return ()
    name = chosen["epoch"]
    whole = all(point.values[name].is_integer() for point in points if name in point.values)
    found: dict[int, dict[str, Any]] = {}
    number: int | None = None
    for point in points:
        if name in point.values and 0 <= point.values[name] < MOST_EPOCHS:
            number = round(point.values[name]) if whole else math.ceil(point.values[name] - 1e-6)
        if number is None:
            continue
        values = found.setdefault(number, {})
        for role, target in _BY_EPOCH.items():
            value = point.values.get(chosen[role], math.nan) if role in chosen else math.nan
            if math.isfinite(value):
                value *= (meanings[chosen[role]] or Meaning(role)).scale or 1.0
                values[target] = _fraction(role, value, percent)
    made = [{"duration_ns": None, "train_loss": None, **values} for values in found.values() if values]
    numbers = [number for number, values in found.items() if values]
    return tuple(
        Epoch(number=number, **values) for number, values in sorted(zip(numbers, made, strict=True), key=_first)
    )


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _fraction(role: str, value: float, percent: Container[str]) -> float:
    """``value``, an accuracy in per cent as a fraction."""
    return value / 100 if role in percent else value
