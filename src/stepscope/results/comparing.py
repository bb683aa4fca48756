"""A/B: the same cells of two or more runs, with intervals and a test over replicates (METRICS: Comparing two runs)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.core.errors import Unavailable
from stepscope.records.comparison import ComparedFigure, Comparison, ComparisonVerdict, Replicates
from stepscope.records.trace_budget import Parts
from stepscope.records.training import Measured, TrainingRun
from stepscope.results.differences import differences
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence
from stepscope.results.figures import epoch_time, steady_times, train_loss
from stepscope.stats.bootstrap import block_length, percentile_interval
from stepscope.stats.compare import MIN_REPLICATES, mann_whitney
from stepscope.stats.measured import common_steps, slowest

SIGNIFICANT = 0.05
MOST_BLOCKS = 20
"""Blocks of steps that one round is cut into at most: more say nothing new, and each gets shorter than its dependence."""

_SEED = 20_261_121
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: a run, or all rounds of it (then a replicate is a round)."""

    name: str
    rounds: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of a training run that can be compared."""

    key: str
    higher_is_better: bool
    of: Callable[[TrainingRun, int], Measured | None]


def _plain(value: float | None) -> Measured | None:
    return None if value is None else Measured(value=float(value))


METRICS = (
    Metric(key="samples_per_s", higher_is_better=True, of=lambda r, _: r.samples_per_s),
    Metric(key="step_ns", higher_is_better=False, of=lambda r, _: r.step_ns),
    Metric(
        key="epoch_ns", higher_is_better=False, of=lambda r, drop: None if r.epoch_estimated else epoch_time(r, drop)
    ),
    Metric(key="exposed_comm_ns", higher_is_better=False, of=lambda r, _: r.exposed_comm_ns),
    Metric(key="peak_memory_bytes", higher_is_better=False, of=lambda r, _: _plain(r.peak_memory_bytes)),
    Metric(key="train_loss", higher_is_better=False, of=lambda r, _: _plain(train_loss(r))),
    Metric(key="test_accuracy", higher_is_better=True, of=lambda r, _: _plain(r.test_accuracy)),
)
"""In the order they are shown; times are medians of the slowest rank."""

TESTED = ("samples_per_s", "step_ns", "epoch_ns")
COMM_METRIC = "comm_time_ns"
TRACE_METRICS = ("trace_step_ns", "trace_exposed_comm_ns", "trace_idle_ns")
"""Of a traced step: its length, exposed communication and idle time, of the slowest rank."""

METRIC_KEYS = (*(metric.key for metric in METRICS), COMM_METRIC, *TRACE_METRICS)


def compare(sides: Sequence[Side], *, drop_epochs: int = 1) -> Comparison:
    """Every later side against the first: what differs in settings and machine, then the figures of what both ran.

    Runs match by cell id (same cell), else by group and label; where each side has one run only, those two.
    """
    first = _runs(sides[0])
    figures: list[ComparedFigure] = []
    unmatched: list[str] = []
    pairs_seen: list[tuple[TrainingRun, TrainingRun]] = []
    for side in sides[1:]:
        pairs, alone = _matched(first, _runs(side))
        pairs_seen += pairs
        unmatched += [f"{sides[0].name} only: {_name(run)}" for run in alone[0]]
        unmatched += [f"{side.name} only: {_name(run)}" for run in alone[1]]
        for before, after in pairs:
            figures += _figures(before, after, sides[0], side, drop_epochs)
        figures += _comm_figures(sides[0], side)
        figures += _trace_figures(sides[0], side)
    tested = sum(figure.p_value is not None for figure in figures)
    notes = []
    if tested >= 1 / SIGNIFICANT:
        notes.append(f"{tested} tests at 5%: about {tested * SIGNIFICANT:.0f} will differ by chance alone")
    return Comparison(
        sides=tuple(side.name for side in sides),
        differences=differences([side.rounds[0] for side in sides], pairs_seen),
        figures=tuple(figures),
        unmatched=tuple(dict.fromkeys(unmatched)),
        notes=tuple(notes),
    )


def _runs(side: Side) -> tuple[TrainingRun, ...]:
    return tuple(run for run in side.rounds[0].runs if run.status == "ok")


Pairs = list[tuple[TrainingRun, TrainingRun]]


def _matched(
    first: Sequence[TrainingRun], second: Sequence[TrainingRun]
) -> tuple[Pairs, tuple[list[TrainingRun], list[TrainingRun]]]:
    """Pairs in the order of ``first``, and the runs of either side that have no partner."""
    if len(first) == len(second) == 1:
        return [(first[0], second[0])], ([], [])
    pairs: Pairs = []
    free = list(second)
    for key in (lambda r: r.run_id, lambda r: (r.group, r.label), _what_it_trains):
        paired = {id(run) for pair in pairs for run in pair}
        for run in first:
            if id(run) in paired:
                continue
            alike = [other for other in free if key(other) == key(run)]
            twins = [other for other in first if key(other) == key(run)]
            if len(alike) == 1 and len(twins) == 1:
                pairs.append((run, alike[0]))
                free.remove(alike[0])
    order = {id(run): at for at, run in enumerate(first)}
    pairs.sort(key=lambda pair: order[id(pair[0])])
    taken = {id(run) for pair in pairs for run in pair}
    return pairs, ([run for run in first if id(run) not in taken], free)


def _what_it_trains(run: TrainingRun) -> tuple[object, ...]:
    return run.model, run.dataset, run.strategy, run.precision, run.world_size, run.accumulation


def _name(run: TrainingRun) -> str:
    return f"{run.group}, {run.label}"


def _figures(
    before: TrainingRun, after: TrainingRun, first: Side, second: Side, drop_epochs: int
) -> Iterable[ComparedFigure]:
    for metric in METRICS:
        a, b = (metric.of(run, drop_epochs) for run in (before, after))
        if a is None or b is None or a.value == 0:
            continue
        mine = theirs = None
        if metric.key in TESTED:
            mine = _replicates(first, before, metric, drop_epochs)
            theirs = _replicates(second, after, metric, drop_epochs)
        yield figure(
            what=_name(before) if _name(before) == _name(after) else f"{_name(before)} → {_name(after)}",
            metric=metric.key,
            side=second.name,
            higher_is_better=metric.higher_is_better,
            first=a,
            second=b,
            replicates=None if mine is None or theirs is None else (mine, theirs),
            paired=len(first.rounds) == len(second.rounds) > 1,
        )


def figure(
    *,
    what: str,
    metric: str,
    side: str,
    higher_is_better: bool,
    first: Measured,
    second: Measured,
    replicates: tuple[Replicates, Replicates] | None,
    paired: bool = False,
) -> ComparedFigure:
    """Ratio, interval, test and verdict of one figure. paired: replicates are rounds that took turns."""
    ratio, low, high = second.value / first.value, None, None
    p_value, untested = None, "no replicates: one figure on each side" if replicates is None else None
    if replicates is not None:
        a, b = (np.array(each.values) for each in replicates)
        test = mann_whitney(a, b)
        if isinstance(test, Unavailable):
            untested = test.reason
        else:
            p_value = test.p_value
            ratio = float(np.median(b) / np.median(a))
            low, high = _interval(a, b, paired=paired)
    elif None not in (first.low, first.high, second.low, second.high):
        low, high = (second.low or 0.0) / (first.high or 1.0), (second.high or 0.0) / (first.low or 1.0)
    return ComparedFigure(
        what=what,
        metric=metric,
        side=side,
        higher_is_better=higher_is_better,
        first=first,
        second=second,
        ratio=ratio,
        low=low,
        high=high,
        p_value=p_value,
        untested=untested,
        replicate=None if replicates is None else replicates[0].kind,
        verdict=_verdict(ratio, low, high, p_value, higher_is_better=higher_is_better),
    )


def _interval(
    a: np.ndarray[tuple[int], np.dtype[np.float64]],
    b: np.ndarray[tuple[int], np.dtype[np.float64]],
    *,
    paired: bool,
) -> tuple[float, float]:
    """95% percentile bootstrap interval of the ratio of medians; rounds that took turns are drawn together."""
    rng = np.random.default_rng(_SEED)
    if paired and a.size == b.size:
        drawn = rng.integers(0, a.size, size=(_RESAMPLES, a.size))
        ratios = np.median(b[drawn], axis=1) / np.median(a[drawn], axis=1)
    else:
        top = np.median(b[rng.integers(0, b.size, size=(_RESAMPLES, b.size))], axis=1)
        ratios = top / np.median(a[rng.integers(0, a.size, size=(_RESAMPLES, a.size))], axis=1)
    found = percentile_interval(ratios)
    return found.low, found.high


def _verdict(
    ratio: float, low: float | None, high: float | None, p_value: float | None, *, higher_is_better: bool
) -> ComparisonVerdict:
    """Different only where the test and the interval agree; without a test, where intervals do not overlap."""
    if low is None or high is None:
        return "not tested"
    apart = low > 1.0 or high < 1.0
    if not apart or (p_value is not None and p_value >= SIGNIFICANT):
        return "no significant difference"
    return "better" if (ratio > 1.0) == higher_is_better else "worse"


def _replicates(side: Side, run: TrainingRun, metric: Metric, drop_epochs: int) -> Replicates | None:
    if len(side.rounds) > 1:
        same = [r for evidence in side.rounds for r in evidence.runs if r.run_id == run.run_id]
        values = tuple(m.value for r in same if (m := metric.of(r, drop_epochs)) is not None)
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
    """Medians (ns) over rounds; of one round, over blocks of steps."""
    steps = slowest(common_steps(cell.result.samples, cell.result.spec.world_size).full, "step_ns")
    if not steps:
        return None
    if len(steps) >= MIN_REPLICATES:
        return Replicates(kind="round", values=tuple(float(np.median(values)) for values in steps.values()))
    return _blocks([value for values in steps.values() for value in values])


def _blocks(series: Sequence[float]) -> Replicates:
    """Medians over blocks of consecutive steps that are longer than steps depend on each other."""
    length = max(block_length(series), -(-len(series) // MOST_BLOCKS))
    blocks = [series[at : at + length] for at in range(0, len(series) - length + 1, length)]
    kind = "step" if length == 1 else f"block of {length} steps"
    return Replicates(kind=kind, values=tuple(float(np.median(block)) for block in blocks))


def _comm_figures(first: Side, second: Side) -> Iterable[ComparedFigure]:
    """Collectives of the same kind and size on both sides, by their median times."""
    mine, theirs = _comm_times(first.rounds[0]), _comm_times(second.rounds[0])
    for key, a in mine.items():
        if (b := theirs.get(key)) is not None and a.value > 0:
            yield figure(
                what=" ".join(str(part) for part in key if part not in (None, "")),
                metric=COMM_METRIC,
                side=second.name,
                higher_is_better=False,
                first=a,
                second=b,
                replicates=None,
            )


def _comm_times(evidence: Evidence) -> Mapping[tuple[object, ...], Measured]:
    from stepscope.core.units import format_size

    times: dict[tuple[object, ...], Measured] = {}
    for row in evidence.comm:
        time = row.time_ns_median or row.time_ns_mean
        if row.kind != "collective" or row.status != "ok" or not time or not row.size_bytes:
            continue
        place = "in place" if row.in_place else ""
        mode = "" if row.mode == "blocking" else row.mode
        key = (row.op, format_size(row.size_bytes), row.dtype, f"{row.world_size} ranks", place, mode)
        times.setdefault(key, Measured(value=time, low=row.time_ns_low, high=row.time_ns_high))
    return times


def _trace_figures(first: Side, second: Side) -> Iterable[ComparedFigure]:
    """Steps of the traced jobs that both sides have: by cell, by name, or the only one of each."""
    mine, theirs = first.rounds[0].traces, second.rounds[0].traces
    if len(mine) == len(theirs) == 1:
        pairs = [(mine[0], theirs[0])]
    else:
        pairs = [(a, b) for a in mine for b in theirs if (a.cell_id or a.name) == (b.cell_id or b.name)]
    for before, after in pairs:
        a, b = _steps_of(before), _steps_of(after)
        for metric in TRACE_METRICS:
            if not a or not b or not np.median(a[metric]):
                continue
            yield figure(
                what=f"traced: {before.name}" if before.name == after.name else f"traced: {before.name} → {after.name}",
                metric=metric,
                side=second.name,
                higher_is_better=False,
                first=Measured(value=float(np.median(a[metric])), n=len(a[metric])),
                second=Measured(value=float(np.median(b[metric])), n=len(b[metric])),
                replicates=(_blocks(a[metric]), _blocks(b[metric])),
            )


def _steps_of(trace: TraceEvidence) -> Mapping[str, list[float]]:
    """Per traced step the slowest rank's figures, ns; empty without steps that a rank recorded."""
    steps: dict[int, list[Parts]] = {}
    for rank in trace.summary.ranks:
        for step in rank.steps:
            steps.setdefault(step.step, []).append(step.parts)
    if not steps:
        return {}
    of = {
        "trace_step_ns": lambda p: p.window_ns,
        "trace_exposed_comm_ns": lambda p: p.exposed_comm_ns,
        "trace_idle_ns": lambda p: p.idle_ns,
    }
    return {key: [float(max(map(get, steps[n]))) for n in sorted(steps)] for key, get in of.items()}
