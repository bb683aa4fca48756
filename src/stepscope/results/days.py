"""Runs of one kind on several days, as tables of results keep them: what each took, and when it changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.errors import Unavailable
from stepscope.records.training import TrainingRun
from stepscope.stats.change_point import LEAST_CHANGE, ChangePoint, change_point

if TYPE_CHECKING:
    from stepscope.results.evidence import Evidence

_WHEN = re.compile(r"(?:^|[._ ])(?:date|day|night|timestamp)$", re.IGNORECASE)
_A_DATE = re.compile(r"\d{4}-\d\d-\d\d.*|\d{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """Runs that differ in their day alone, oldest first, and the best place for a change of their time."""

    runs: tuple[TrainingRun, ...]
    days: tuple[str, ...]
    change: ChangePoint

    @property
    def since(self) -> int | None:
        """Index of the first run after a significant change of 5% or more."""
        large = abs(self.change.after / self.change.before - 1) >= LEAST_CHANGE
        return self.change.at if self.change.significant and large else None


def nights(runs: Iterable[TrainingRun]) -> tuple[Nights, ...]:
    """Every series of finished runs of one table that state their day; of too few runs nothing can be said."""
    alike: dict[object, list[tuple[str, float, TrainingRun]]] = {}
    for run in runs:
        day, time = day_of(run), _time(run)
        if run.status == "ok" and day is not None and time is not None:
            alike.setdefault((_file(run), _kind(run), run.step_ns is None), []).append((day, time, run))
    found = []
    for members in alike.values():
        ordered = sorted(members, key=lambda each: each[0])
        change = change_point([time for _, time, _ in ordered])
        if not isinstance(change, Unavailable):
            days, _, mine = zip(*ordered, strict=True)
            found.append(Nights(runs=mine, days=days, change=change))
    return tuple(found)


def repeated(evidence: Evidence) -> dict[str, object]:
    """run_id -> what the run repeats, equal for runs of one kind: the cell of `bench`, in every run folder; of a table what
    its rows have in common beside their day. Without runs that repeat nothing, and rows that the day does not tell apart.
    """
    found: dict[str, object] = {cell.run.run_id: ("cell", cell.cell_id) for cell in evidence.cells}
    rows = [(run, day) for run in evidence.runs if run.run_id not in found and (day := day_of(run)) is not None]
    times = Counter((_file(run), _kind(run), day) for run, day in rows)
    return found | {run.run_id: ("day", _kind(run)) for run, day in rows if times[_file(run), _kind(run), day] == 1}


def _file(run: TrainingRun) -> str:
    return re.sub(r":\d+$", "", run.source)


def _kind(run: TrainingRun) -> tuple[object, ...]:
    return (
        run.group, run.model, run.dataset, run.world_size, run.strategy, run.precision, run.micro_batch, run.global_batch,
        run.accumulation, run.hardware,
    )  # fmt: skip


def day_of(run: TrainingRun) -> str | None:
    """The day on which a row's run was made; None where it states none."""
    said = (str(value) for name, value in run.settings.items() if _WHEN.search(name))
    return next((text for text in said if _A_DATE.fullmatch(text)), None)


def _time(run: TrainingRun) -> float | None:
    if run.step_ns is not None:
        return run.step_ns.value
    if run.samples_per_s is not None and run.samples_per_s.value > 0:
        return 1e9 / run.samples_per_s.value
    return run.epoch_ns.value if run.epoch_ns is not None else None
