"""Plain sentences under the table: only what the rows show, and only where their intervals allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.labels import (
    STATUS_LABELS,
    CellLabel,
    Defaults,
    cell_labels,
    strategy_defaults,
)
from stepscope.results.scaling import speedups

Labels = Mapping[str, CellLabel]

MAX_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """A ratio of two throughputs and the widest range that the two intervals allow (None: an interval is
    missing).
    """

    ratio: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether the whole range lies on one side of 1."""
        return self.low is not None and self.high is not None and (self.low > 1.0 or self.high < 1.0)


def findings(rows: Sequence[TrainingRun], *, defaults: Defaults = strategy_defaults) -> tuple[str, ...]:
    """At most three sentences, plus one about failed cells: best and worst scaling, and strategies side by
    side.

    Two cells differ only where their 95 % intervals of the median step do not overlap (stricter than a test).
    """
    labels = dict(zip((r.run_id for r in rows), cell_labels(rows, defaults=defaults), strict=True))
    said = [*_scaling(rows, labels), *_strategies(rows, labels)][:MAX_FINDINGS]
    return (*said, *_failures(rows))


def throughput_ratio(run: TrainingRun, other: TrainingRun) -> Bounds | None:
    """samples/s of ``run`` over those of ``other``; None where one of them has none."""
    mine, theirs = run.samples_per_s, other.samples_per_s
    if mine is None or theirs is None:
        return None
    ratio = mine.value / theirs.value
    if None in (mine.low, mine.high, theirs.low, theirs.high):
        return Bounds(ratio, None, None)
    return Bounds(ratio, (mine.low or 0.0) / (theirs.high or 1.0), (mine.high or 0.0) / (theirs.low or 1.0))


def _scaling(runs: Sequence[TrainingRun], labels: Labels) -> list[str]:
    by_id = {run.run_id: run for run in runs}
    scaled = [row for row in speedups(runs).values() if row.rating is not None]
    if not scaled:
        return []
    best = max(scaled, key=lambda row: row.efficiency)
    worst = min(scaled, key=lambda row: row.efficiency)
    said = [_scaling_sentence(best, by_id, labels)]
    if worst is not best and worst.rating != best.rating:
        said.append(_scaling_sentence(worst, by_id, labels))
    return said


def _scaling_sentence(row: ScalingRow, by_id: Mapping[str, TrainingRun], labels: Labels) -> str:
    bounds = throughput_ratio(by_id[row.run_id], by_id[row.baseline_id]) or Bounds(row.speedup, row.low, row.high)
    share = format_percent(row.efficiency)
    kind = f" ({row.scaling} scaling)" if row.scaling else ""
    head = f"{labels[row.run_id].model}: {labels[row.run_id].name}"
    base_name = labels[row.baseline_id].name
    if bounds.low is None or bounds.high is None:
        return (
            f"{head} is {bounds.ratio:.2f}x {base_name}{kind}, {share} efficiency; too few samples"
            " to say how sure that is."
        )
    if not bounds.clear:
        return f"{head} shows no significant difference from {base_name}{kind}: {bounds.ratio:.2f}x, intervals overlap."
    rating = "negative scaling" if row.rating == "negative" else f"{share} efficiency, {row.rating}"
    return f"{head} is {bounds.ratio:.2f}x {base_name}{kind}: {rating}."


def _strategies(rows: Sequence[TrainingRun], labels: Labels) -> list[str]:
    """The fastest against the slowest strategy of the largest set of cells that differ in nothing else."""
    alike: dict[tuple[object, ...], list[TrainingRun]] = {}
    for row in rows:
        if row.samples_per_s is not None and (row.world_size or 1) > 1:
            alike.setdefault(_same_but_strategy(row, labels[row.run_id]), []).append(row)
    names = {run_id: label.strategy for run_id, label in labels.items()}
    groups = [group for group in alike.values() if len({names[r.run_id] for r in group}) == len(group) > 1]
    if not groups:
        return []
    group = max(groups, key=lambda g: (len(g), g[0].world_size or 0))
    fast = max(group, key=_rate)
    slow = min(group, key=_rate)
    bounds = throughput_ratio(fast, slow)
    where = labels[fast.run_id].name.removeprefix(names[fast.run_id]).strip()
    where = f"{labels[fast.run_id].model} {where}"
    if bounds is None or bounds.low is None:
        return []
    if not bounds.clear:
        return [f"{where}: no significant difference between {_listed([names[r.run_id] for r in group])}."]
    return [f"{where}: {names[fast.run_id]} is {format_percent(bounds.ratio - 1)} faster than {names[slow.run_id]}."]


def _rate(run: TrainingRun) -> float:
    return 0.0 if run.samples_per_s is None else run.samples_per_s.value


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= 4 else f"{len(names)} strategies"


def _same_but_strategy(row: TrainingRun, label: CellLabel) -> tuple[object, ...]:
    return (
        label.model, label.settings, row.dataset, row.precision, row.accumulation, row.world_size,
        row.global_batch, row.device, row.backend,
    )  # fmt: skip


def _failures(rows: Sequence[TrainingRun]) -> list[str]:
    failed = [row for row in rows if row.status != "ok"]
    if not failed:
        return []
    counts: dict[str, int] = {}
    for row in failed:
        label = STATUS_LABELS.get(row.status, row.status)
        counts[label] = counts.get(label, 0) + 1
    kinds = ", ".join(f"{label} {count}" for label, count in counts.items())
    return [f"{len(failed)} of {counted(len(rows), 'cell')} gave no result: {kinds}."]
