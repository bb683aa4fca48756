"""A bench step's time: phases, computation against communication, spread over steps and ranks, own time of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import COLOURS, SAMPLED, TITLES
from stepscope.records.samples import PHASE_NAMES, PHASES
from stepscope.records.training import PhaseTimes, TrainingRun
from stepscope.report.names import clean, file_part
from stepscope.report.shared.runs import by_dataset, failure, time_unit
from stepscope.report.shared.stacks import MAX_ROWS, StackRow, failed_text, stacks_chart
from stepscope.report.table import Column, Table, duration, group_column, lead_column, percent, tabled, wording
from stepscope.report.vega import COLUMN, Chart, Spec, chart, color, layer, name_axis, number_axis, sig
from stepscope.report.views import View
from stepscope.results.epochs import exposed_fraction
from stepscope.results.evidence import CellEvidence
from stepscope.results.slow_ranks import comparable_ranks, excess_fractions, typical_ns
from stepscope.stats.step_table import StepTable, cell_table, excess_ns

_PHASE_COLORS = tuple(color(COLOURS[SAMPLED[phase]]) for phase in PHASES)


def step_budget_charts(runs: Sequence[TrainingRun]) -> Iterator[Chart]:
    """Yield one chart a data set (and model, where there are many): medians of the slowest rank's phases in ns."""
    shown = [run for run in runs if run.phases is not None or run.status != "ok"]
    for part in by_dataset(shown, MAX_ROWS):
        sums = [sum(_phase_times_ns(run.phases)) for run in part.runs if run.phases is not None]
        if len(sums) < 2:
            continue
        scale, unit = time_unit(max(sums))
        rows = [_step_budget_row(run, name) for run, name in part.named]
        texts = []
        for row in [row for row in rows if row.failure is None][:5]:
            share, kind = max(
                (part_ns / (sum(row.parts) or 1.0), kind) for part_ns, kind in zip(row.parts, PHASE_NAMES, strict=True)
            )
            texts.append(f"{row.name}: {format_percent(share)} {kind}")
        caption = (
            f"Phases of a step on {part.title}, {counted(len(rows), 'run')}: medians over the steps of each phase on its"
            f" slowest rank, so that a bar need not be as long as the median step. Largest part: {'; '.join(texts)}."
            f"{failed_text(rows)}"
        )
        spec = stacks_chart(part.title, rows, f"time per step ({unit})", scale, PHASE_NAMES, _PHASE_COLORS)
        yield Chart(part.key, part.title, caption, spec)


def _phase_times_ns(phases: PhaseTimes) -> tuple[float, ...]:
    return tuple(getattr(phases, f"{key}_ns") for key in PHASES)


def _step_budget_row(run: TrainingRun, name: str) -> StackRow:
    if run.phases is None or run.status != "ok":
        return StackRow(name, failure=failure(run) or "not measured")
    parts = _phase_times_ns(run.phases)
    return StackRow(name, parts, format_duration(sum(parts)))


SHARES = {"computation and the rest": color("k-compute"), EXPOSED_COMM: color("k-exposed")}


def share_charts(runs: Sequence[TrainingRun]) -> Iterator[Chart]:
    """Yield charts of the shares of the median step on several ranks, or of the epoch where only that was timed.

    The interval of the exposed part lies around the end of the first.
    """
    several = [run for run in runs if run.world_size is not None and run.world_size > 1]
    shown = [run for run in several if run.status != "ok" or exposed_fraction(run) is not None]
    for part in by_dataset(shown, MAX_ROWS):
        rows = [_share_row(run, name) for run, name in part.named]
        done = sorted((row for row in rows if row.failure is None), key=lambda row: -row.parts[1])
        if len(done) < 2:
            continue
        caption = (
            f"Computation against {EXPOSED_COMM} in a step on {part.title},"
            f" {counted(len(rows), 'run')} on several ranks. Most communication shows in {done[0].name}:"
            f" {done[0].text} of the step; least in {done[-1].name}: {done[-1].text}."
        )
        if any(row.low is not None for row in done):
            caption += " Whiskers: 95% interval of the exposed part."
        colors = tuple(SHARES.values())
        spec = stacks_chart(part.title, rows, "share of the step (%)", 100.0, tuple(SHARES), colors, whole=1.0)
        yield Chart(part.key, part.title, caption + failed_text(rows), spec)


def _share_row(run: TrainingRun, name: str) -> StackRow:
    share = exposed_fraction(run)
    if run.status != "ok" or share is None:
        return StackRow(name, failure=failure(run))
    low, high = _computation_end_interval(run)
    return StackRow(name, (1.0 - share, share), format_percent(share, digits=0), low=low, high=high)


def _computation_end_interval(run: TrainingRun) -> tuple[float | None, float | None]:
    """Return where the computation ends by the interval of the exposed part; None without one."""
    exposed, step = run.exposed_comm_ns, run.step_ns
    if exposed is None or step is None or exposed.low is None or exposed.high is None:
        return None, None
    return max(0.0, 1.0 - exposed.high / step.value), max(0.0, 1.0 - exposed.low / step.value)


@record
class PhaseSpread:
    """One phase of one cell over its timed steps and ranks, ns. share: of the mean step.

    over_steps: standard deviation of the ranks' mean from step to step; over_ranks: of the ranks' means over all steps;
    None of a single step, or rank.
    """

    group: str
    label: str
    phase: str
    mean: float
    longest: float
    share: float | None
    over_steps: float | None
    over_ranks: float | None


def spreads(cells: Iterable[CellEvidence]) -> tuple[PhaseSpread, ...]:
    """Return, of every cell with timed steps on all ranks, its phases, then the step."""
    return tuple(row for cell in cells for row in _cell_spreads(cell))


def _cell_spreads(cell: CellEvidence) -> list[PhaseSpread]:
    """Return the spread over ranks of each phase, and of the whole step."""
    table = cell_table(cell.result)
    if table is None:
        return []
    whole = float(table.whole_ns.mean())
    phases = [
        _phase_spread(cell, TITLES[part], table.parts_ns[part], whole)
        for part in map(SAMPLED.__getitem__, PHASES)
        if part in table.parts_ns and table.parts_ns[part].any()
    ]
    return [*phases, _phase_spread(cell, "step", table.whole_ns, whole)]


def _phase_spread(cell: CellEvidence, phase: str, times: NDArray[np.float64], step: float) -> PhaseSpread:
    """Return the spread of one phase. times: [ranks, steps]."""
    by_step, by_rank = times.mean(axis=0), times.mean(axis=1)
    return PhaseSpread(
        group=cell.run.group,
        label=cell.run.label,
        phase=phase,
        mean=float(times.mean()),
        longest=float(times.max()),
        share=float(times.mean()) / step if step > 0 else None,
        over_steps=float(by_step.std(ddof=1)) if by_step.size > 1 else None,
        over_ranks=float(by_rank.std(ddof=1)) if by_rank.size > 1 else None,
    )


def phase_spread_table(cells: Sequence[CellEvidence]) -> Table:
    """Return the table: one row a phase of a cell."""
    return tabled(
        "phase_times",
        "Phases over steps and ranks",
        spreads(cells),
        group_column("group", "runs", "group"),
        group_column("label", "run", "label"),
        lead_column("phase", "phase", lambda row: wording(row.phase)),
        Column("mean", "mean", "mean", duration),
        Column("share", "of the step", "share", percent),
        Column("longest", "longest", "longest", duration),
        Column("over_steps", "sd over steps", "over_steps", duration),
        Column("over_ranks", "sd over ranks", "over_ranks", duration),
        footnotes=(
            "mean, longest: over all timed steps and ranks; sd (standard deviation, its square is the variance): of the"
            " ranks' mean from step to step, and of each rank's mean over the steps.",
        ),
    )


MIN_STEPS = 10
MAX_STEPS = 120
"""Columns of the map; more steps are drawn as medians of neighbours."""

MAX_CELLS = 4
"""Charts are drawn for the cells in which some rank stands out most."""


def stragglers_charts(cells: Sequence[CellEvidence]) -> Iterator[Chart]:
    """Yield the cells in which some rank stands out most, by own time: a step without its exposed communication."""
    ranked = []
    for cell in cells:
        table = comparable_ranks(cell.result) if cell.run.status == "ok" else None
        if table is not None and table.steps >= MIN_STEPS and typical_ns(table) > 0:
            ranked.append((max(excess_fractions(table)), cell, table))
    ranked.sort(key=lambda entry: -entry[0])
    for _, cell, table in ranked[:MAX_CELLS]:
        title = clean(f"{cell.run.model or cell.run.group}, {cell.run.label}", 80)
        width = -(-table.steps // MAX_STEPS)
        medians = excess_fractions(table)
        worst = max(range(len(medians)), key=lambda rank: medians[rank])
        where = f" on {clean(table.hosts[worst], 16)}" if len(table.hosts) == len(medians) else ""
        columns = f" Each column: median of {width} steps." if width > 1 else ""
        caption = (
            f"Own time of each rank (a step without its {EXPOSED_COMM}) minus the median of the other ranks' in the"
            f" same step, {title}, {counted(table.steps, 'step')}. Rank {worst}{where} takes"
            f" {format_percent(medians[worst], signed=True)} in the median, of {format_duration(typical_ns(table))}."
            f" Orange: longer, purple: shorter.{columns}"
        )
        yield Chart(file_part(cell.run.run_id), title, caption, _excess_spec(title, table, width))


def _excess_spec(title: str, table: StepTable, width: int) -> Spec:
    """Draw a row for each rank, a column for each stretch of steps; colours from shorter (purple) to longer (orange)."""
    starts = range(0, table.steps, width)
    excess = [[float(np.median(rank[at : at + width])) for at in starts] for rank in excess_ns(table)]
    scale, unit = time_unit(max(abs(value) for rank in excess for value in rank))
    sizes = sorted(abs(value) * scale for rank in excess for value in rank)
    reach = sig(sizes[min(len(sizes) - 1, int(0.98 * len(sizes)))] or 1.0)
    called = [f"{rank}  {format_percent(share, signed=True)}" for rank, share in enumerate(excess_fractions(table))]
    cells = [
        {"rank": name, "from": at, "to": min(table.steps, at + width), "value": value * scale}
        for name, values in zip(called, excess, strict=True)
        for at, value in zip(starts, values, strict=True)
    ]
    hue = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "purpleorange", "domain": [-reach, reach], "domainMid": 0, "clamp": True},
        "legend": {
            "title": f"longer than the others ({unit})",
            "orient": "bottom",
            "gradientLength": 140,
            "gradientThickness": 6,
            "tickCount": 4,
            "format": "+~r",
        },
    }
    every = max(1, -(-len(called) // 16))
    y = name_axis("rank", called, "rank, median excess (%)", values=called[::every])
    y["scale"] = {"domain": called, "padding": 0}
    return chart(
        title,
        layer("rect", cells, x="from", x2="to", color=hue),
        width=COLUMN,
        height=min(220, 17 * max(6, len(called))),
        x=number_axis("from", "step after warm-up", low=0.0, top=table.steps, grid=False),
        y=y,
    )


VIEWS = (
    View("step_budget", "Time budget of a step", charts=step_budget_charts),
    View("comm_share", "Computation against communication", charts=share_charts),
    View("phase_spread", table=phase_spread_table),
    View("stragglers", "Own time of ranks", charts=stragglers_charts),
)
