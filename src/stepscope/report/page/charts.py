"""Which charts the page shows, and what they show: evidence in, chart data out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isfinite

from stepscope.core.units import (
    format_bandwidth,
    format_bytes_binary,
    format_duration,
    format_percent,
    format_size,
)
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.records.samples import PHASES
from stepscope.records.training import Epoch, ScalingRow, TrainingRun
from stepscope.report.page.plot import SLOTS, Axis, Bar, BarChart, Chart, Line, Mark, Reference, Segment
from stepscope.report.page.tables import failure_text
from stepscope.report.page.words import sample_rate
from stepscope.results.comm_labels import device_label, op_label, ranks_label, sweep_names, sweeps
from stepscope.results.evidence import Evidence

MAX_BARS = 40
MAX_CHARTS = 12
"""Charts of one kind; tables have the rest."""

PHASE_NAMES = ("waiting for data", "forward", "backward", "exposed communication", "optimizer", "other")
PHASE_CLASSES = tuple(f"k-{phase}" for phase in PHASES)


def scaling_charts(evidence: Evidence) -> tuple[Chart, ...]:
    """Speed-up and efficiency over ranks, with the ideal line and what counts as good."""
    runs = {run.run_id: run for run in evidence.runs}
    series = _scaling_series(evidence.scaling, runs)
    worlds = {row.world_size for rows in series.values() for row in rows}
    if len(worlds) < 2:
        return ()
    low, high = min(worlds), max(worlds)
    wide = high >= 8 * low
    across = Axis(title="ranks", scale="log2" if wide else "linear", whole=True)
    charts = []
    for part, of in _parts(list(series.items())):
        charts += [
            Chart(
                key=f"speedup-{part}",
                title=f"Speed-up{of}",
                caption="Speed-up against each group's baseline; the faint line is ideal.",
                x=across,
                y=Axis(title="speed-up", scale="log2" if wide else "linear", zero=not wide),
                lines=_scaling_lines(part_of(series, part), runs, lambda row: row.speedup),
                references=(Reference(name="ideal", points=((low, 1.0), (high, high / low))),),
            ),
            Chart(
                key=f"efficiency-{part}",
                title=f"Efficiency{of}",
                caption="Efficiency against each group's baseline; faint lines: 0.8 is good, 0.9 excellent.",
                x=across,
                y=Axis(title="efficiency", unit="percent", zero=True),
                lines=_scaling_lines(part_of(series, part), runs, lambda row: row.efficiency),
                references=tuple(
                    Reference(name=name, points=((low, y), (high, y)))
                    for name, y in (("0.8", 0.8), ("0.9", 0.9), ("ideal", 1.0))
                ),
            ),
        ]
    return tuple(charts)


def part_of(series: dict[str, list[ScalingRow]], part: int) -> dict[str, list[ScalingRow]]:
    """The lines of the ``part``-th chart, counted from 0."""
    return dict(list(series.items())[part * SLOTS : (part + 1) * SLOTS])


def _parts(items: Sequence[object]) -> list[tuple[int, str]]:
    """(number, `` (2 of 3)``) for charts of at most :data:`SLOTS` lines each."""
    count = min(-(-len(items) // SLOTS), MAX_CHARTS)
    return [(n, f" ({n + 1} of {count})" if count > 1 else "") for n in range(count)]


def _scaling_series(rows: Iterable[ScalingRow], runs: dict[str, TrainingRun]) -> dict[str, list[ScalingRow]]:
    """Rows by group and strategy, each with its baseline in front."""
    rows = [row for row in rows if row.run_id in runs and isfinite(row.speedup) and row.speedup > 0]
    baselines = {row.run_id: row for row in rows if row.is_baseline}
    several = len({row.group for row in rows}) > 1
    series: dict[str, list[ScalingRow]] = {}
    for row in rows:
        if row.is_baseline:
            continue
        strategy = runs[row.run_id].strategy or ""
        name = ", ".join(part for part in (row.group if several or not strategy else "", strategy) if part)
        own = series.setdefault(name or row.group, [])
        if row.baseline_id in baselines and baselines[row.baseline_id] not in own:
            own.append(baselines[row.baseline_id])
        own.append(row)
    return {name: sorted(of, key=lambda r: r.world_size) for name, of in series.items()}


def _scaling_lines(
    series: dict[str, list[ScalingRow]], runs: dict[str, TrainingRun], value: Callable[[ScalingRow], float]
) -> tuple[Line, ...]:
    return tuple(
        Line(
            name=name,
            slot=slot,
            marks=tuple(
                Mark(
                    x=row.world_size,
                    y=value(row),
                    low=None if row.low is None else row.low * value(row) / row.speedup,
                    high=None if row.high is None else row.high * value(row) / row.speedup,
                    text=f"{runs[row.run_id].label}: {row.speedup:.2f}x, {format_percent(row.efficiency)}",
                )
                for row in rows
            ),
        )
        for slot, (name, rows) in enumerate(series.items())
    )


def line_charts(evidence: Evidence) -> tuple[Chart, ...]:
    """Curves over epochs, and collectives over size."""
    return (
        *_epoch_charts(evidence.runs, "loss", "Training loss", Axis(title="loss"), lambda e: e.train_loss),
        *_epoch_charts(
            evidence.runs, "accuracy", "Validation accuracy",
            Axis(title="accuracy", unit="percent"), lambda e: e.validation_accuracy,
        ),
        *_epoch_charts(
            evidence.runs, "epoch-time", "Time of an epoch", Axis(title="time (s)", zero=True),
            lambda e: None if e.duration_ns is None else e.duration_ns / 1e9,
        ),
        *_busbw_charts(evidence.comm),
    )  # fmt: skip


def _epoch_charts(
    runs: Sequence[TrainingRun],
    key: str,
    title: str,
    y: Axis,
    value: Callable[[Epoch], float | None],
) -> list[Chart]:
    """One chart a group (more where it has more runs than colours) of runs with two epochs or more."""
    groups: dict[str, list[Line]] = {}
    for run in runs:
        marks = [
            Mark(x=e.number, y=v, text=f"{run.label}, epoch {e.number}: {_said(v, y)}")
            for e in run.epochs
            if (v := value(e)) is not None and isfinite(v)
        ]
        if len(marks) > 1:
            groups.setdefault(run.group, []).append(Line(name=run.label, slot=0, marks=tuple(marks)))
    charts: list[Chart] = []
    for group, lines in groups.items():
        for part, of in _parts(lines):
            mine = lines[part * SLOTS : (part + 1) * SLOTS]
            charts.append(
                Chart(
                    key=f"{key}-{len(charts)}",
                    title=f"{title}: {group}{of}",
                    caption=_last_values(mine, title, y),
                    x=Axis(title="epoch", whole=True),
                    y=y,
                    lines=tuple(replace(line, slot=slot) for slot, line in enumerate(mine)),
                )
            )
    return charts[:MAX_CHARTS]


def _said(value: float, axis: Axis) -> str:
    if axis.unit == "percent":
        return f"{value * 100:.2f} %"
    return format_duration(value * 1e9) if axis.title.endswith("(s)") else f"{value:.4g}"


def _last_values(lines: Sequence[Line], title: str, y: Axis) -> str:
    ends = [line.marks[-1].y for line in lines]
    low, high = min(ends), max(ends)
    epochs = max(len(line.marks) for line in lines)
    span = _said(low, y) if low == high else f"{_said(low, y)} to {_said(high, y)}"
    return f"{title} of {counted(len(lines), 'run')} over {counted(epochs, 'epoch')}; at the end {span}."


def _busbw_charts(rows: Sequence[CommRow]) -> list[Chart]:
    """Bus bandwidth over message size, a chart an operation and device."""
    measured = [r for r in rows if r.kind == "collective" and r.busbw_bytes_per_s and r.size_bytes]
    measured = [r for r in measured if r.status == "ok" and r.correct is not False]
    groups: dict[tuple[str, str], list[list[CommRow]]] = {}
    for sweep in sweeps(measured).values():
        groups.setdefault((op_label(sweep[0]), device_label(sweep[0])), []).append(sweep)
    charts: list[Chart] = []
    for (op, device), found in groups.items():
        called = sweep_names([row for sweep in found for row in sweep], always_ranks=True)
        for part, of in _parts(found):
            mine = found[part * SLOTS : (part + 1) * SLOTS]
            charts.append(
                Chart(
                    key=f"busbw-{len(charts)}",
                    title=f"{op} on {device}{of}",
                    caption=_best_busbw(op, mine),
                    x=Axis(title="message size", scale="log2", unit="bytes"),
                    y=Axis(title="busbw (GB/s)", scale="log10"),
                    lines=tuple(_busbw_line(sweep, called(sweep[0]), slot) for slot, sweep in enumerate(mine)),
                )
            )
    return charts[:MAX_CHARTS]


def _busbw_line(sweep: Sequence[CommRow], name: str, slot: int) -> Line:
    ordered = sorted(sweep, key=lambda row: row.size_bytes or 0)
    name = name or ranks_label(ordered[0])
    return Line(
        name=name,
        slot=slot,
        marks=tuple(
            Mark(
                x=float(row.size_bytes or 1),
                y=(row.busbw_bytes_per_s or 0.0) / 1e9,
                text=f"{name}, {format_size(row.size_bytes or 0)}: {format_bandwidth(row.busbw_bytes_per_s or 0)}",
            )
            for row in ordered
        ),
    )


def _best_busbw(op: str, found: Sequence[Sequence[CommRow]]) -> str:
    best = max((row for sweep in found for row in sweep), key=lambda row: row.busbw_bytes_per_s or 0.0)
    size = format_size(best.size_bytes or 0)
    return f"Best of {op}: {format_bandwidth(best.busbw_bytes_per_s or 0)} at {size}, {ranks_label(best)}."


def bar_charts(evidence: Evidence) -> tuple[BarChart, ...]:
    """Where a step's time goes, throughput and memory, a chart a group; failed runs are named."""
    groups: dict[str, list[TrainingRun]] = {}
    for run in evidence.runs:
        groups.setdefault(run.group, []).append(run)
    named = len(groups) > 1
    charts: list[BarChart] = []
    for make in (_phase_chart, _rate_chart, _memory_chart):
        made = [make(f"{n}", group if named else "", runs) for n, (group, runs) in enumerate(groups.items())]
        charts += [chart for chart in made if chart is not None][:MAX_CHARTS]
    return tuple(charts)


def _phase_chart(number: str, group: str, runs: Sequence[TrainingRun]) -> BarChart | None:
    bars = []
    for run in runs:
        if run.phases is None:
            continue
        times = [getattr(run.phases, f"{phase}_ns") for phase in PHASES]
        total = sum(times)
        bars.append(
            Bar(
                label=run.label,
                text=_step_text(run, total),
                segments=tuple(
                    Segment(
                        slot=slot,
                        value=ns,
                        text=f"{PHASE_NAMES[slot]}: {format_duration(ns)}, {format_percent(ns / total)}",
                    )
                    for slot, ns in enumerate(times)
                    if ns > 0 and total > 0
                ),
            )
        )
    if not bars:
        return None
    return BarChart(
        key=f"phases-{number}",
        title=_titled("Time of a step", group),
        caption="Median of each phase over steps, slowest rank; the phases need not sum to the median step.",
        parts=PHASE_NAMES,
        classes=PHASE_CLASSES,
        bars=tuple(bars[:MAX_BARS]),
        left_out=max(0, len(bars) - MAX_BARS),
    )


def _step_text(run: TrainingRun, total: float) -> str:
    step = run.step_ns.value if run.step_ns is not None else total
    exposed = run.phases.exposed_comm_ns if run.phases is not None else 0.0
    return f"{format_duration(step)}, {format_percent(exposed / total) if total else '0 %'} exposed"


def _rate_chart(number: str, group: str, runs: Sequence[TrainingRun]) -> BarChart | None:
    rated = [run for run in runs if run.samples_per_s is not None or run.status != "ok"]
    if not any(run.samples_per_s for run in rated):
        return _epoch_bars(number, group, runs)
    bars = []
    for run in rated:
        rate = run.samples_per_s
        if rate is None:
            bars.append(Bar(label=run.label, segments=(), text="", failure=failure_text(run)))
            continue
        text = f"{sample_rate(rate.value)} {run.unit}/s"
        bars.append(
            Bar(
                label=run.label,
                segments=(Segment(slot=0, value=rate.value, text=text),),
                text=text,
                low=rate.low,
                high=rate.high,
            )
        )
    return BarChart(
        key=f"rate-{number}",
        title=_titled("Throughput", group),
        caption="Over all ranks, with 95 % intervals where there are samples; hatched: no result.",
        parts=("throughput",),
        classes=("s0",),
        bars=tuple(bars[:MAX_BARS]),
        left_out=max(0, len(bars) - MAX_BARS),
    )


def _epoch_bars(number: str, group: str, runs: Sequence[TrainingRun]) -> BarChart | None:
    """Epoch times of runs whose source tells no throughput."""
    bars = []
    for run in runs:
        epoch = run.epoch_ns
        if epoch is not None:
            text = format_duration(epoch.value) + (", estimated" if run.epoch_estimated else "")
            segment = Segment(slot=0, value=epoch.value, text=text)
            bars.append(Bar(label=run.label, segments=(segment,), text=text, low=epoch.low, high=epoch.high))
        elif run.status != "ok":
            bars.append(Bar(label=run.label, segments=(), text="", failure=failure_text(run)))
    if not any(bar.segments for bar in bars):
        return None
    return BarChart(
        key=f"epoch-{number}",
        title=_titled("Time of an epoch", group),
        caption="Shorter is faster; with 95 % intervals where there are enough epochs; hatched: no result.",
        parts=("epoch",),
        classes=("s0",),
        bars=tuple(bars[:MAX_BARS]),
        left_out=max(0, len(bars) - MAX_BARS),
    )


def _memory_chart(number: str, group: str, runs: Sequence[TrainingRun]) -> BarChart | None:
    known = [run for run in runs if run.peak_memory_bytes]
    if not known:
        return None
    kinds = tuple(dict.fromkeys(kind for run in known for kind in run.memory))[: SLOTS - 1]
    bars = []
    for run in known:
        peak = run.peak_memory_bytes or 0
        parts = [(kinds.index(k), n, k) for k, n in run.memory.items() if k in kinds and n > 0]
        rest = peak - sum(n for _, n, _ in parts)
        if rest > 0:
            parts.append((len(kinds), rest, "other" if parts else "peak"))
        bars.append(
            Bar(
                label=run.label,
                text=format_bytes_binary(peak),
                segments=tuple(
                    Segment(slot=slot, value=n, text=f"{kind}: {format_bytes_binary(n)}") for slot, n, kind in parts
                ),
            )
        )
    names = (*kinds, "other" if kinds else "peak")
    return BarChart(
        key=f"memory-{number}",
        title=_titled("Peak memory of a rank", group),
        caption="The rank with the largest peak.",
        parts=names,
        classes=tuple(f"s{slot}" for slot in range(len(names))),
        bars=tuple(bars[:MAX_BARS]),
        left_out=max(0, len(bars) - MAX_BARS),
    )


def _titled(what: str, group: str) -> str:
    return f"{what}: {group}" if group else what
