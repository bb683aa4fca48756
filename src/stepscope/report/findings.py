"""Plain sentences under the table: only what the rows show, and only where their intervals allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.run import ResultRow
from stepscope.results.labels import (
    STATUS_LABELS,
    CellLabel,
    Defaults,
    cell_labels,
    strategy_defaults,
)

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


def findings(rows: Sequence[ResultRow], *, defaults: Defaults = strategy_defaults) -> tuple[str, ...]:
    """At most three sentences, plus one about failed cells: best and worst scaling, and strategies side by
    side.

    Two cells differ only where their 95 % intervals of the median step do not overlap (stricter than a test).
    """
    labels = dict(zip((r.cell_id for r in rows), cell_labels(rows, defaults=defaults), strict=True))
    said = [*_scaling(rows, labels), *_strategies(rows, labels)][:MAX_FINDINGS]
    return (*said, *_failures(rows))


def throughput_ratio(row: ResultRow, other: ResultRow) -> Bounds | None:
    """samples/s of ``row`` over those of ``other``; None where one of them has none."""
    if row.samples_per_s is None or other.samples_per_s is None:
        return None
    ratio = row.samples_per_s / other.samples_per_s
    mine, theirs = _relative(row), _relative(other)
    if mine is None or theirs is None:
        return Bounds(ratio, None, None)
    # a step at the high end of its interval is a throughput at the low end
    return Bounds(ratio, ratio / mine[1] * theirs[0], ratio / mine[0] * theirs[1])


def _relative(row: ResultRow) -> tuple[float, float] | None:
    if row.step_ns_median is None or row.step_ns_low is None or row.step_ns_high is None:
        return None
    return row.step_ns_low / row.step_ns_median, row.step_ns_high / row.step_ns_median


def _scaling(rows: Sequence[ResultRow], labels: Labels) -> list[str]:
    by_id = {row.cell_id: row for row in rows}
    scaled = [r for r in rows if r.speedup is not None and r.rating is not None and r.baseline_cell_id in by_id]
    if not scaled:
        return []
    best = max(scaled, key=lambda r: r.efficiency or 0.0)
    worst = min(scaled, key=lambda r: r.efficiency or 0.0)
    said = [_scaling_sentence(best, by_id[best.baseline_cell_id or ""], labels)]
    if worst is not best and worst.rating != best.rating:
        said.append(_scaling_sentence(worst, by_id[worst.baseline_cell_id or ""], labels))
    return said


def _scaling_sentence(row: ResultRow, base: ResultRow, labels: Labels) -> str:
    bounds = throughput_ratio(row, base)
    assert bounds is not None, "a row with a speed-up has a throughput, and so has its baseline"
    assert row.efficiency is not None, "a row with a rating has an efficiency"
    share = format_percent(row.efficiency)
    kind = f" ({row.scaling} scaling)" if row.scaling else ""
    head = f"{labels[row.cell_id].model}: {labels[row.cell_id].name}"
    base_name = labels[base.cell_id].name
    if bounds.low is None or bounds.high is None:
        return (
            f"{head} is {bounds.ratio:.2f}x {base_name}{kind}, {share} efficiency; too few samples"
            " to say how sure that is."
        )
    if not bounds.clear:
        return f"{head} shows no significant difference from {base_name}{kind}: {bounds.ratio:.2f}x, intervals overlap."
    rating = "negative scaling" if row.rating == "negative" else f"{share} efficiency, {row.rating}"
    return f"{head} is {bounds.ratio:.2f}x {base_name}{kind}: {rating}."


def _strategies(rows: Sequence[ResultRow], labels: Labels) -> list[str]:
    """The fastest against the slowest strategy of the largest set of cells that differ in nothing else."""
    alike: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        if row.samples_per_s is not None and row.world_size > 1:
            alike.setdefault(_same_but_strategy(row, labels[row.cell_id]), []).append(row)
    names = {cell_id: label.strategy for cell_id, label in labels.items()}
    groups = [group for group in alike.values() if len({names[r.cell_id] for r in group}) == len(group) > 1]
    if not groups:
        return []
    group = max(groups, key=lambda g: (len(g), g[0].world_size))
    fast = max(group, key=lambda r: r.samples_per_s or 0.0)
    slow = min(group, key=lambda r: r.samples_per_s or 0.0)
    bounds = throughput_ratio(fast, slow)
    where = labels[fast.cell_id].name.removeprefix(names[fast.cell_id]).strip()
    where = f"{labels[fast.cell_id].model} {where}"
    if bounds is None or bounds.low is None:
        return []
    if not bounds.clear:
        return [f"{where}: no significant difference between {_listed([names[r.cell_id] for r in group])}."]
    return [f"{where}: {names[fast.cell_id]} is {format_percent(bounds.ratio - 1)} faster than {names[slow.cell_id]}."]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= 4 else f"{len(names)} strategies"


def _same_but_strategy(row: ResultRow, label: CellLabel) -> tuple[object, ...]:
    return (
        label.model, label.settings, row.dataset, row.precision, row.accumulation, row.world_size,
        row.global_batch, row.device, row.backend,
    )  # fmt: skip


def _failures(rows: Sequence[ResultRow]) -> list[str]:
    failed = [row for row in rows if row.status != "ok"]
    if not failed:
        return []
    counts: dict[str, int] = {}
    for row in failed:
        label = STATUS_LABELS.get(row.status, row.status)
        counts[label] = counts.get(label, 0) + 1
    kinds = ", ".join(f"{label} {count}" for label, count in counts.items())
    return [f"{len(failed)} of {counted(len(rows), 'cell')} gave no result: {kinds}."]
