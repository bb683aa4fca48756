"""A/B: the same cells, jobs or diaries of two or more sides, figure by figure: ratio, interval, test, verdict
(docs/reference/metrics.md, Comparisons).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.units import format_duration, format_percent, format_size
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.records.comparison import ComparedFigure, Comparison, ComparisonVerdict, Replicates, ScalingBudget
from stepscope.records.nouns import Estimate, Measured, Scaling
from stepscope.records.training import TrainingRun
from stepscope.results.diary import JobSteps, job_steps
from stepscope.results.differences import SweepPair, conditions_of, sweep_pairs
from stepscope.results.epochs import steady_times
from stepscope.results.evidence import CellEvidence, Evidence, NoScaling, TraceEvidence, in_line
from stepscope.results.figures import COMPARED, Figure, figures_of, run_facts
from stepscope.results.goodput import goodput_of
from stepscope.results.joining import as_given, derived
from stepscope.results.pairs import matched
from stepscope.stats.compare import (
    MIN_REPLICATES,
    MOST_BLOCKS,
    SIGNIFICANT,
    Change,
    Outcome,
    block_medians,
    change,
    step_blocks,
)
from stepscope.stats.step_table import Numbers, StepTable, cell_table, trace_table
from stepscope.store.diary import RankDiary
from stepscope.traces.diff import CAUTION

Of = Callable[..., Any]
"""np.median or np.mean."""

BETWEEN_RUNS = 0.009
"""Standard deviation of log(step) between runs of one command on one machine that was meant to have nothing else to do."""

OF_STEP = 0.01
"""What a part of the step may differ by between two such runs, as a share of the step: parts take time from each other."""

DELAY_FACTOR, USUAL_DELAY = 1.5, 0.01
"""Without processor for the share c of the time, a step takes 1 / (1 - c) times as long; beyond the usual share, that log
times the first is what the step may differ by between two runs. 13 runs beside other work (c 0.03 to 0.86, steps up to 9
times as long as alone) came out as different from each other in 6 of 36 pairs with half the log; the factor was chosen on
these runs."""

MOST_DOUBT = 0.3
"""Most that two runs of one command may differ by (of log): beyond it nothing could be told, and nothing is tested."""

BUSY = 0.03
"""Share of the time without processor from which on a note says so."""

MOST_LOOKED_AT = 2000
"""Values in which the dependence of steps is looked for: of more steps, blocks of them."""

STEP_METRIC, OUTSIDE_METRIC = "diary_step_ns", "diary_outside_ns"
"""Figures of all timed steps: the step of the slowest rank, without what is outside of it; what is."""
_BY_PART = {figure.value: key for key, figure in figures_of("steps").items() if figure.compared}
PARTS = tuple(str(part) for part, key in _BY_PART.items() if key not in (STEP_METRIC, OUTSIDE_METRIC))
"""Parts of a step that are figures."""


def timed_steps(diaries: Sequence[RankDiary]) -> JobSteps | Unavailable:
    """Return the timed steps of a job as :func:`stepscope.results.diary.job_steps` chooses them."""
    steps = job_steps(diaries)
    return Unavailable("no step diary") if steps is None else timed_steps_of(steps)


def timed_steps_of(steps: JobSteps) -> JobSteps | Unavailable:
    """Return the steps of one job where they were not profiled."""
    timed = np.logical_and.reduce([diary.timed[steps.numbers - 1 - steps.first] for diary in steps.diaries])
    return steps if timed.all() else Unavailable(f"none of {counted(steps.all_steps, 'step')} is timed on every rank")


def part_means(table: StepTable) -> dict[str, Numbers]:
    """Return by key the mean of the ranks, ns [steps], of each part that most steps have."""
    return {
        key: np.nan_to_num(values).mean(axis=0)
        for key, values in table.parts_ns.items()
        if key in PARTS and np.isfinite(values).mean() > 0.5
    }


def between_runs(*sides: StepTable) -> float:
    """Standard deviation of log(ratio) of two runs of one command under these conditions."""
    contended = min(0.99, max(side.delay_share for side in sides))
    return math.hypot(math.sqrt(2) * BETWEEN_RUNS, DELAY_FACTOR * max(0.0, -math.log1p(-contended) - USUAL_DELAY))


def step_change(before: StepTable, after: StepTable, ranks: tuple[int, int]) -> tuple[Change, str] | None:
    """Compare a rank's step after with that before, and say what a replicate is; None for ranks without a diary.

    ranks: that of before, and that of after.
    """
    if ranks[0] not in before.rank_numbers or ranks[1] not in after.rank_numbers:
        return None
    a, b = (
        _diary_blocks(table.whole_ns[table.rank_numbers.index(rank)], np.median)
        for table, rank in zip((before, after), ranks, strict=True)
    )
    difference = change(a.values, b.values, between=between_runs(before, after))
    return None if difference is None else (difference, a.kind)


def diary_figures(before: StepTable, after: StepTable, *, side: str) -> Iterable[ComparedFigure]:
    """Compare the step, then its parts: a part differs where it does so beyond 1% of the step, all of them tested at
    once."""
    between = between_runs(before, after)
    what = f"all steps: {before.steps:,} against {after.steps:,}"
    yield _diary_figure(what, STEP_METRIC, side, before.step_ns, after.step_ns, between=between, of=np.median)
    parts = [part_means(table) for table in (before, after) if before.clock == after.clock]
    shared = [part for part in PARTS if parts and part in parts[0] and part in parts[1]]
    for part in shared:
        a, b = (means[part] for means in parts)
        typical = max(float(a.mean()), float(b.mean()))
        if min(float(a.mean()), float(b.mean())) <= 0:
            continue
        share = typical / max(float(np.median(before.step_ns)), float(np.median(after.step_ns)))
        doubt = math.hypot(between, OF_STEP) / share
        yield _diary_figure(what, _BY_PART[part], side, a, b, between=doubt, of=np.mean, tests=len(shared))
    if before.outside_ns and after.outside_ns:
        first, second = (Measured(value=mean) for mean in (before.outside_ns, after.outside_ns))
        yield figure(
            what=what, metric=OUTSIDE_METRIC, side=side, first=first, second=second,
            replicates=None,
        )  # fmt: skip


def _diary_figure(
    what: str, metric: str, side: str, before: Numbers, after: Numbers, *, between: float, of: Of, tests: int = 1
) -> ComparedFigure:
    """Return the comparison of one figure of two diaries; it is tested where their steps are of the same kind."""
    first, second = (Measured(value=float(of(values)), n=values.size) for values in (before, after))
    testable = metric == STEP_METRIC or between <= MOST_DOUBT
    return figure(
        what=what, metric=metric, side=side, first=first, second=second,
        replicates=(_diary_blocks(before, of), _diary_blocks(after, of)) if testable else None, between=between, tests=tests,
    )  # fmt: skip


def _diary_blocks(series: Numbers, of: Of) -> Replicates:
    """Cut a series into medians or means of consecutive steps; few steps make blocks so short that a side still has the
    fewest replicates."""
    coarse = -(-series.size // MOST_LOOKED_AT)
    length = min(coarse * step_blocks(block_medians(series, coarse)), max(1, series.size // MIN_REPLICATES))
    return _series_parts(series, length, of)


def _series_parts(series: Numbers, length: int, of: Of) -> Replicates:
    """Apply ``of`` to every ``length`` consecutive steps; what is left at the end is dropped."""
    kept = series[: series.size // length * length].reshape(-1, length)
    kind = "step" if length == 1 else f"block of {length} steps"
    return Replicates(kind=kind, values=tuple(of(kept, axis=1).tolist()))


def figure(
    *,
    what: str,
    metric: str,
    side: str,
    first: Measured,
    second: Measured,
    replicates: tuple[Replicates, Replicates] | None,
    paired: bool = False,
    between: float | None = None,
    tests: int = 1,
    label: str | None = None,
    unit: str | None = None,
) -> ComparedFigure:
    """Return both figures and the second's ratio to the first. paired: replicates are rounds that took turns. between,
    tests: of :func:`stepscope.stats.compare.change`. label, unit: see the record.

    With replicates the figures are the medians over them, as the ratio is; without, the two as given.
    """
    higher_is_better = COMPARED[metric].better == "high"
    compared = (
        None
        if replicates is None
        else change(*(replicate.values for replicate in replicates), paired=paired, between=between, tests=tests)
    )
    if replicates is not None and compared is not None:
        first, second = (Measured(value=float(np.median(r.values)), n=len(r.values)) for r in replicates)
    else:
        compared = Change(ratio=second.over(first), untested="no replicates: one figure on each side")
    return ComparedFigure(
        what=what,
        metric=metric,
        side=side,
        higher_is_better=higher_is_better,
        first=first,
        second=second,
        ratio=compared.ratio.value,
        low=compared.ratio.low,
        high=compared.ratio.high,
        p_value=compared.p_value,
        untested=compared.untested,
        replicate=None if replicates is None else replicates[0].kind,
        verdict=_outcome_verdict(compared.outcome, higher_is_better=higher_is_better),
        label=label,
        unit=unit,
    )


def _outcome_verdict(outcome: Outcome, *, higher_is_better: bool) -> ComparisonVerdict:
    if outcome == "more" or outcome == "less":
        return "better" if (outcome == "more") == higher_is_better else "worse"
    return outcome


def lacking(compared: ComparedFigure) -> Literal["test", "interval"] | None:
    """Say which of the test and the interval keeps a figure from being different where the other one says that it is; else
    None."""
    if compared.verdict in ("better", "worse") or compared.p_value is None or compared.low is None:
        return None
    if Estimate(value=compared.ratio, low=compared.low, high=compared.high).leaves_out(1.0):
        return "test"
    return "interval" if compared.p_value < SIGNIFICANT else None


@record
class Side:
    """One side of a comparison: a run, or all rounds of it (then a replicate is a round). diaries: of a profiled job."""

    name: str
    rounds: tuple[Evidence, ...]
    diaries: tuple[RankDiary, ...] = ()


def compare(sides: Sequence[Side], *, drop_epochs: int = 1, scaling: Scaling | None = None) -> Comparison:
    """Compare every later side with the first: what differs in settings and machine, then the figures of what both ran.

    scaling: of traced jobs on different numbers of ranks, as the user states it. Runs match by cell id (same cell), else by
    group and label; where each side has one run only, those two.
    """
    first = _finished_runs(sides[0])
    figures: list[ComparedFigure] = []
    unmatched: list[str] = []
    partners: list[list[tuple[Any, Any]]] = []
    notes: list[str] = []
    for side in sides[1:]:
        runs, alone = matched(first, _finished_runs(side), *_SAME_RUN)
        sweeps, sweeps_alone = sweep_pairs(sides[0].rounds[0].comm, side.rounds[0].comm)
        traces, traces_alone = matched(sides[0].rounds[0].traces, side.rounds[0].traces, *_SAME_JOB)
        for at, name in enumerate((sides[0].name, side.name)):
            unmatched += [
                f"{name} only: {what}"
                for what in (
                    *map(in_line, alone[at]),
                    *sweeps_alone[at],
                    *(f"traced: {t.name}" for t in traces_alone[at]),
                )
            ]
        for before, after in runs:
            figures += _run_comparisons(before, after, sides[0], side, drop_epochs)
        for sweep in sweeps:
            figures += _comm_figures(sweep, side.name)
        figures += _dry_figures(sides[0], side)
        notes += _contention_notes(sides[0], side)
        of_diaries = _diary_figures(sides[0], side)
        figures += of_diaries
        for traced in traces if not of_diaries else ():  # a window of profiled steps says nothing beside all steps
            figures += _trace_figures(*traced, side.name)
        partners.append(
            [*runs, *traces, *((a, b) for s in sweeps for a, b in [(_first_row(s.first), _first_row(s.second))])]
        )
    tested = sum(figure.p_value is not None for figure in figures)
    if tested >= 1 / SIGNIFICANT:
        notes.append(f"{tested} tests at 5%: about {tested * SIGNIFICANT:.0f} will differ by chance alone")
    if any(figure.p_value is not None and figure.metric in figures_of("step") for figure in figures):
        notes.append(CAUTION)
    once = [side for side in sides if len(side.rounds) == 1]
    joined = as_given([side.rounds[0] for side in once], [side.name for side in once])
    together = derived(joined, drop_epochs=drop_epochs, stated=scaling)
    conditions = conditions_of([side.rounds[0] for side in sides], _on_all_sides(partners))
    return Comparison(
        sides=tuple(side.name for side in sides),
        differences=conditions.differ,
        same=conditions.same,
        unknown=conditions.unknown,
        figures=tuple(figures),
        unmatched=tuple(dict.fromkeys(unmatched)),
        notes=(*notes, *(note for note in together.remarks if isinstance(note, NoScaling))),
        scaling=_budgets_across_sides(together.scaling_budgets, once),
    )


def _budgets_across_sides(budgets: Iterable[ScalingBudget], sides: Sequence[Side]) -> tuple[ScalingBudget, ...]:
    """Keep the budgets of a run on one side and its baseline on another: what one side alone gains from ranks is no
    comparison."""
    names = [{run.run_id: side.name for run in side.rounds[0].runs} for side in sides]

    def side_of(run_id: str) -> str | None:
        plain = [name[run_id] for name in names if run_id in name]
        return plain[0] if len(plain) == 1 else next((s.name for s in sides if run_id.startswith(f"{s.name}/")), None)

    return tuple(budget for budget in budgets if len({side_of(run_id) for run_id in budget.run_ids}) != 1)


def _diary_figures(first: Side, second: Side) -> list[ComparedFigure]:
    """Compare all steps of both sides; empty where a side has no timed ones."""
    before, after = timed_steps(first.diaries), timed_steps(second.diaries)
    if isinstance(before, Unavailable) or isinstance(after, Unavailable):
        return []
    return [*diary_figures(before, after, side=second.name), *_goodput_figures(first, second)]


def _goodput_figures(first: Side, second: Side) -> Iterable[ComparedFigure]:
    """Compare the parts of the wall time that both sides have, one figure a part; each side is one job."""
    before, after = (
        goodput_of([job for evidence in side.rounds for job in evidence.profiled]) for side in (first, second)
    )
    if before is None or after is None:
        return
    what = f"wall time: {format_duration(before.wall_ns)} against {format_duration(after.wall_ns)}"
    for key, wall_figure in figures_of("wall").items():
        old, new = wall_figure.measured(before), wall_figure.measured(after)
        if old is not None and new is not None and old.value > 0 and new.value > 0:
            yield figure(what=what, metric=key, side=second.name, first=old, second=new, replicates=None)


def _dry_figures(first: Side, second: Side) -> Iterable[ComparedFigure]:
    """Compare what dry runs say of the numbers of GPUs that both have; each side is one script."""
    jobs = [side.rounds[0].dry for side in (first, second)]
    for before, after in zip(*jobs, strict=False):
        for world in before.worlds.keys() & after.worlds.keys():
            for key, dry_figure in figures_of("dry").items():
                old, new = (dry_figure.measured(job.steps[world]) for job in (before, after))
                if old is not None and new is not None and old.value > 0:
                    what = f"{_name_before_after(before.name, after.name)} on {counted(world, 'GPU')}"
                    unit = "tokens" if dry_figure.unit == "per s" else None
                    yield figure(
                        what=what, metric=key, side=second.name, first=old, second=new, replicates=None, unit=unit,
                    )  # fmt: skip


def _contention_notes(first: Side, second: Side) -> list[str]:
    """Note each side on which the machine had more to do, so that the interval is wider."""
    notes = []
    for side in (first, second):
        steps = timed_steps(side.diaries)
        if not isinstance(steps, Unavailable) and steps.delay_share > BUSY:
            share = format_percent(steps.delay_share, digits=0)
            notes.append(
                f"{side.name}: training threads had no processor for {share} of the time; the intervals hold that"
            )
    return notes


def _first_row(rows: Mapping[int, CommRow]) -> CommRow:
    return next(iter(rows.values()))


def _on_all_sides(partners: Sequence[Sequence[tuple[Any, Any]]]) -> list[tuple[Any, ...]]:
    """Return what has a partner on every later side, with all of its partners."""
    by_first = [{id(a): (a, b) for a, b in pairs} for pairs in partners]
    return [
        (pair[0], *(side_pairs[key][1] for side_pairs in by_first))
        for key, pair in by_first[0].items()
        if all(key in side_pairs for side_pairs in by_first)
    ]


def _finished_runs(side: Side) -> tuple[TrainingRun, ...]:
    return tuple(run for run in side.rounds[0].runs if run.status == "ok")


def _what_it_trains(run: TrainingRun) -> tuple[object, ...]:
    return run.model, run.dataset, run.strategy, run.precision, run.world_size, run.accumulation


_SAME_RUN = (lambda r: r.run_id, lambda r: (r.group, r.label), _what_it_trains, lambda _: None)
_SAME_JOB = (lambda t: t.cell_id or t.name, lambda _: None)
"""Keys that make two of two sides one pair; the last one holds where each side has no other."""


def _name_before_after(first: str, second: str) -> str:
    return first if first == second else f"{first} → {second}"


def _run_comparisons(
    before: TrainingRun, after: TrainingRun, first: Side, second: Side, drop_epochs: int
) -> Iterable[ComparedFigure]:
    """Yield the comparison of each figure that both runs have, in the same unit."""
    sides = tuple(run_facts(run, drop_epochs=drop_epochs) for run in (before, after))
    for metric in figures_of("run", "epoch").values():
        a, b = (metric.measured(facts) if metric.compared else None for facts in sides)
        throughput = metric.unit == "per s"
        if a is None or b is None or a.value == 0 or (throughput and before.unit != after.unit):
            continue
        first_sample = second_sample = None
        if metric.tested:
            first_sample = _figure_replicates(first, before, metric, drop_epochs)
            second_sample = _figure_replicates(second, after, metric, drop_epochs)
        yield figure(
            what=_name_before_after(in_line(before), in_line(after)),
            metric=metric.key,
            side=second.name,
            first=a,
            second=b,
            replicates=None if first_sample is None or second_sample is None else (first_sample, second_sample),
            paired=len(first.rounds) == len(second.rounds) > 1,
            label=before.label,
            unit=before.unit if throughput else None,
        )


def _figure_replicates(side: Side, run: TrainingRun, metric: Figure, drop_epochs: int) -> Replicates | None:
    """Return what repeats a figure: rounds where there are several, else blocks of steps, else epochs; None: nothing
    does."""
    if len(side.rounds) > 1:
        same = [r for evidence in side.rounds for r in evidence.runs if r.run_id == run.run_id]
        values = tuple(
            m.value for r in same if (m := metric.measured(run_facts(r, drop_epochs=drop_epochs))) is not None
        )
        return Replicates(kind="round", values=values) if values else None
    cell = next((c for c in side.rounds[0].cells if c.run.run_id == run.run_id), None)
    if cell is not None and metric.key in ("step_ns", "samples_per_s"):
        steps = step_replicates(cell)
        if steps is None or metric.key == "step_ns" or run.global_batch is None:
            return steps if metric.key == "step_ns" else None
        return replace(steps, values=tuple(run.global_batch / (v / 1e9) for v in steps.values))
    epochs = steady_times(run, drop_epochs)
    return Replicates(kind="epoch", values=epochs) if metric.key == "epoch_ns" and epochs else None


def step_replicates(cell: CellEvidence) -> Replicates | None:
    """Return medians (ns) over rounds, or over blocks of steps where there is one round."""
    table = cell_table(cell.result)
    if table is None:
        return None
    rounds = table.by_round(table.step_ns)
    if len(rounds) >= MIN_REPLICATES:
        return Replicates(kind="round", values=tuple(float(np.median(values)) for values in rounds.values()))
    return _block_medians(table.step_ns)


def _block_medians(series: Numbers, *, least: int = 1) -> Replicates:
    """Return medians over blocks of steps; up to ``least`` steps, every step is its own."""
    return _series_parts(series, step_blocks(series, least=least), np.median)


def _comm_figures(sweep: SweepPair, side: str) -> Iterable[ComparedFigure]:
    """Compare a sweep's median times, size by size."""
    time = figures_of("collective")["comm_time_ns"].measured
    for size, before in sweep.first.items():
        after = sweep.second.get(size)
        first, second = (None if row is None else time(row) for row in (before, after))
        if first is not None and second is not None:
            yield figure(
                what=f"{sweep.name}, {format_size(size)}",
                metric="comm_time_ns",
                side=side,
                first=first,
                second=second,
                replicates=None,
                label=sweep.name,
            )


def _trace_figures(before: TraceEvidence, after: TraceEvidence, side: str) -> Iterable[ComparedFigure]:
    """Compare the steps of a traced job, each that of its slowest rank."""
    a, b = (figures_by_step(trace_table(trace.summary.ranks)) for trace in (before, after))
    if not a or not b:
        return
    for metric in a:
        if not np.median(a[metric]):
            continue
        yield figure(
            what=f"traced: {_name_before_after(before.name, after.name)}",
            metric=metric,
            side=side,
            first=Measured(value=float(np.median(a[metric])), n=a[metric].size),
            second=Measured(value=float(np.median(b[metric])), n=b[metric].size),
            replicates=(_block_medians(a[metric], least=MOST_BLOCKS), _block_medians(b[metric], least=MOST_BLOCKS)),
        )


def figures_by_step(table: StepTable | None) -> Mapping[str, Numbers]:
    """Return the figures of every step by key, ns [steps], of the rank with most; empty without a table."""
    if table is None:
        return {}
    most = {"whole": table.step_ns} | {key: np.fmax.reduce(values) for key, values in table.parts_ns.items()}
    return {key: most[str(step_figure.value)] for key, step_figure in figures_of("step").items()}
