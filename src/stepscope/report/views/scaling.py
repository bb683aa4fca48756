"""Speed-up and efficiency over ranks, strong and weak scaling apart, and the parts in which speed-up is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from stepscope.core.units import format_percent
from stepscope.core.words import counted, grouped, listed
from stepscope.records.comparison import ScalingBudget, ScalingPart
from stepscope.records.training import ScalingRow, TargetTime, TrainingRun
from stepscope.report import vega
from stepscope.report.names import file_part, lines
from stepscope.report.shared.curves import CURVES_HEIGHT, CurvePoint, RunCurve, curve_layers
from stepscope.report.shared.runs import (
    baselines_said,
    by_dataset,
    efficiency_value,
    facets,
    first_epochs,
    model_on,
    names,
    numbered_parts,
    scaled,
    speedup_value,
    titled,
)
from stepscope.report.shared.stacks import NAME_CHARS
from stepscope.report.table import (
    Column,
    Raw,
    Table,
    Value,
    duration,
    figure,
    group_column,
    identity_column,
    lead_column,
    percent,
    tabled,
    times,
    whole,
)
from stepscope.report.vega import Chart, Spec
from stepscope.report.views import View
from stepscope.results.scaling import EXCELLENT, GOOD
from stepscope.results.scaling_budget import PARTS, ranked

_RULES = {
    "strong": " Strong: the same global batch (or data) on more ranks.",
    "weak": " Weak: the same batch per rank on more ranks.",
    None: " Whether the global batch or each rank's batch was kept is unknown.",
}

LOG_FROM = 8
"""From this ratio of ranks on, both axes double at each step."""


def scaling_charts(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow]) -> Iterator[Chart]:
    """Yield one chart a data set, rule and baseline's ranks, a line for everything else with two numbers of ranks."""
    pairs = scaled(runs, scaling)
    baselines = {row.run_id: row for _, row in pairs if row.is_baseline}
    several = [(run, row) for run, row in pairs if not row.is_baseline]

    def about(pair: tuple[TrainingRun, ScalingRow]) -> tuple[str, str, str | None, int]:
        run, row = pair
        run_facets = facets(run)
        return run_facets["hardware"], run_facets["dataset"], row.scaling, row.baseline_world_size

    machines = len({facets(run)["hardware"] for run, _ in several}) > 1
    for (machine, dataset, rule, base), alike in grouped(several, about).items():
        series = list(grouped(alike, _series_key).values())
        called = names([one[0][0] for one in series], in_title=("hardware", "dataset", "ranks"))
        if len(series) == 1:  # nothing to tell it from
            called = (facets(series[0][0][0])["strategy"] or "measured",)
        curves = [RunCurve(name, _speedup_points(one, baselines)) for one, name in zip(series, called, strict=True)]
        curves = [curve for curve in curves if len(curve.points) > 1]
        models = {facets(run)["model"] for run, _ in alike}
        where = titled(
            model_on(models.pop() if len(models) == 1 else "", dataset) or "all runs", [run for run, _ in alike]
        )
        of = [where, machine if machines else "", f"{rule} scaling".removeprefix("None ")]
        for number, several_charts, part in numbered_parts(curves, vega.MAX_LINES) if curves else ():
            title = ", ".join(text for text in of if text) + several_charts
            name = [rule or "unknown", dataset, machine if machines else "", str(number) if number > 1 else ""]
            key = file_part("-".join(text for text in name if text))
            lasts = ((curve.name, curve.points[-1]) for curve in part[:5])
            ends = "; ".join(f"{of_}: {p.y:.2f}x on {_ranks_text(p)} ({_efficiency_text(p)})" for of_, p in lasts)
            whiskers = any(p.low is not None for curve in part for p in curve.points)
            caption = (
                f"Speed-up over {counted(base, 'rank')} on {title}. {ends}.{_RULES[rule]}"
                f" Dashed: as much faster as there are more ranks.{' Whiskers: 95% interval.' if whiskers else ''}"
            )
            yield Chart(key, title, caption, _speedups_spec(title, part, base))


def _series_key(pair: tuple[TrainingRun, ScalingRow]) -> tuple[str, ...]:
    """Return what one line has in common: everything but ranks, and the batch that follows from them."""
    run, row = pair
    run_facets = facets(run)
    return (*(run_facets[f] for f in ("model", "strategy", "precision", "accumulation", "batch")), row.baseline_id)


def _speedup_points(
    series: Sequence[tuple[TrainingRun, ScalingRow]], baselines: dict[str, ScalingRow]
) -> tuple[CurvePoint, ...]:
    """Return the points of one line, with its baseline first."""
    rows = [row for _, row in series]
    base = baselines.get(rows[0].baseline_id)
    if base is not None:
        rows.append(base)
    return tuple(
        CurvePoint(row.world_size, row.speedup, row.low, row.high, row.efficiency)
        for row in sorted(rows, key=lambda row: row.world_size)
    )


def _efficiency_text(point: CurvePoint) -> str:
    """Write the efficiency as the table has it."""
    return (
        "efficiency unknown" if point.efficiency is None else f"efficiency {format_percent(point.efficiency, digits=0)}"
    )


def _ranks_text(point: CurvePoint) -> str:
    return counted(int(point.x), "rank")


def _speedups_spec(title: str, curves: Sequence[RunCurve], base: int) -> Spec:
    """Draw lines of speed-up with the one that nothing beats; over a wide range both axes double at each step.

    base: ranks of the baseline.
    """
    points = [p for curve in curves for p in curve.points]
    ranks = sorted({p.x for p in points})
    ideal = [{"x": x, "y": vega.sig(x / base)} for x in (ranks[0], ranks[-1])]
    top = max(ranks[-1] / base, *(p.high or p.y for p in points)) * 1.05
    axis = "speed-up (x)"
    if ranks[-1] / ranks[0] >= LOG_FROM:
        low = min(p.y for p in points)
        doublings = [2.0**n for n in range(-6, 12) if low / 2 < 2.0**n <= 2 * ranks[-1] / base]
        x = vega.doubling_axis("x", "ranks", ranks, (ranks[0] / 1.1, ranks[-1] * 1.1))
        y = vega.doubling_axis("y", axis, doublings, (min(low, ranks[0] / base) / 1.1, top))
    else:
        x = vega.whole_axis("x", "ranks", ranks)
        x["axis"]["values"] = ranks
        y = vega.number_axis("y", axis, low=0.0, top=top)

    def point_text(curve: RunCurve, point: CurvePoint) -> str:
        return f"{curve.name} on {_ranks_text(point)}: {point.y:.2f}x, {_efficiency_text(point)}"

    end = [{**ideal[1], "text": "ideal"}]
    beside = {"color": vega.FAINT, "align": "right", "dx": -8, "dy": -1, "baseline": "bottom"}
    return vega.chart(
        title,
        vega.layer("line", ideal, color=vega.FAINT, strokeDash=[5, 2], strokeWidth=0.9),
        vega.layer("text", end, text="text", **beside),
        *curve_layers(curves, "ranks", axis, of=point_text),
        width=vega.COLUMN,
        height=CURVES_HEIGHT,
        x=x,
        y=y,
    )


NEVER = "never"


def scaling_table(
    scaling: Sequence[ScalingRow], runs: Sequence[TrainingRun] = (), *, drop_epochs: int = 1, raw: bool = False
) -> Table:
    """Return the table: one line a run and target accuracy; groups in order of first appearance.

    raw: for programs, with columns for what people read inside another one (interval, rating).
    """
    labels = {run.run_id: run.label for run in runs}
    ordered = [row for block in grouped(scaling, lambda row: row.group).values() for row in block]

    def of_target(get: Callable[[TargetTime], Raw | Value]) -> Callable[[Line], Raw | Value]:
        return lambda line: None if line[1] is None else get(line[1])

    def reached(get: Callable[[TargetTime], Raw | Value]) -> Callable[[Line], Raw | Value]:
        never = Value(NEVER, None, tone="bad")
        return of_target(lambda target: never if target.reached_epochs is None else get(target))

    columns = (
        group_column("group", "runs", "0.group"),
        lead_column("label", "run", lambda line: labels.get(line[0].run_id, line[0].run_id)),
        lead_column("world_size", "ranks", "0.world_size", whole),
        identity_column(
            "baseline_world_size", "baseline ranks", "0.baseline_world_size", whole,
            short="base", drop=2,
        ),
        identity_column("scaling", "scaling", "0.scaling"),
        identity_column("basis", "from", "0.basis", drop=1),
        Column("speedup", "speed-up", lambda line: speedup_value(line[0]), times),
        Column("speedup_low", "low", "0.low", times),
        Column("speedup_high", "high", "0.high", times),
        Column("efficiency", "efficiency", lambda line: efficiency_value(line[0]), whole),
        Column("rating", "rating", "0.rating"),
        Column("best_accuracy", "best accuracy", "0.best_accuracy", figure, short="best", drop=4),
        Column(
            "baseline_best_accuracy", "baseline's best", "0.baseline_best_accuracy", figure,
            short="base best", drop=3,
        ),
        Column("target_accuracy", "to accuracy", of_target(lambda target: target.accuracy), figure),
        Column("target_epochs", "epochs", reached(lambda target: target.reached_epochs), whole, drop=5),
        Column("target_ns", "time to it", reached(lambda target: target.time_ns), duration),
        Column("target_speedup", "speed-up to it", reached(_target_speedup), times),
    )  # fmt: skip
    return tabled(
        "scaling",
        "Scaling",
        ((row, target) for row in ordered for target in (row.targets or (None,))),
        *(column for column in columns if raw or column.key not in _RAW),
        footnotes=(*_scaling_footnotes(ordered, drop_epochs), *baselines_said(runs, ordered)),
    )


_RAW = ("speedup_low", "speedup_high", "rating")

Line = tuple[ScalingRow, TargetTime | None]


def _target_speedup(target: TargetTime) -> Value:
    return times(target.speedup, tone="bad" if target.speedup is not None and target.speedup < 1 else "plain")


def _scaling_footnotes(rows: Sequence[ScalingRow], drop_epochs: int) -> tuple[str, ...]:
    """Say what speed-up, efficiency and rating are."""
    if not rows:
        return ()
    notes = [
        "speed-up: throughput over the baseline's; efficiency: speed-up / (ranks / baseline ranks): excellent above 0.9,"
        " good above 0.8, fair above 0.5, negative for a speed-up below 1."
    ]
    if any("epoch" in row.basis for row in rows):
        dropped = first_epochs(drop_epochs) if drop_epochs else "no epoch"
        notes.append(f"means over epochs leave {dropped} out (--drop-epochs {drop_epochs}).")
    kinds = {row.scaling for row in rows if not row.is_baseline}
    if "strong" in kinds:
        notes.append("strong: the same global batch (or data set) on more ranks.")
    if "weak" in kinds:
        notes.append("weak: the same batch per rank on more ranks.")
    if any(row.targets for row in rows):
        notes.append(
            "time to an accuracy: all epochs up to and with the first that reaches it in validation, none left out; never:"
            " no epoch does. A run that is faster per epoch and never gets there has not scaled."
        )
    return tuple(notes)


MAX_ROWS = 20


def _at_best(row: ScalingRow) -> float:
    """Return the speed-up that nothing beats."""
    return row.world_size / row.baseline_world_size


def _reached_text(row: ScalingRow) -> str:
    return f"{row.speedup:.2f}x of {_at_best(row):g}x, efficiency {format_percent(row.efficiency, digits=1)}"


_Named = tuple[str, ScalingRow]


def speedup_efficiency_charts(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow]) -> Iterator[Chart]:
    """Yield one chart a data set (and model, where there are many); baselines themselves are not shown."""
    by_run = {run.run_id: (run, row) for run, row in scaled(runs, scaling) if not row.is_baseline}
    for part in by_dataset((run for run, _ in by_run.values()), MAX_ROWS):
        named = [(_with_ranks(run, name), by_run[run.run_id][1]) for run, name in part.named]
        texts = [f"{name}: {_reached_text(row)}" + (f" ({row.rating})" if row.rating else "") for name, row in named]
        kinds = {row.scaling for _, row in named}
        how = "; ".join(text for kind, text in _KEPT.items() if kind in kinds)
        basis = ", ".join(dict.fromkeys(row.basis for _, row in named))
        whisker = " Whiskers: 95% interval." if any(row.low is not None for _, row in named) else ""
        caption = (
            f"Speed-up and efficiency on {part.title}, {counted(len(named), 'run')}:"
            f" {listed(texts, at_most=6, between='; ')}. From {basis}; {how}."
            f" Black ticks: as much faster as there are more ranks; dashed: efficiency 0.8"
            f" (above: good) and 0.9 (excellent). Orange: slower than the baseline.{whisker}"
        )
        yield Chart(part.key, part.title, caption, _speedup_efficiency(part.title, named))


_KEPT = {
    "strong": "strong scaling: the same global batch (or data)",
    "weak": "weak scaling: the same batch per rank",
    None: "whether the global batch or each rank's batch was kept is unknown",
}


def _with_ranks(run: TrainingRun, name: str) -> str:
    """Return the name with the ranks: a speed-up says nothing without them."""
    ranks = facets(run)["ranks"]
    return name if ranks in name else ", ".join(text for text in (name, ranks) if text)


def _speedup_efficiency(title: str, named: Sequence[_Named]) -> Spec:
    """Draw left the speed-up, a tick at what it can be at most; right the efficiency, lines at 0.8 and 0.9."""
    wide = max(len(name) for name, _ in named) > NAME_CHARS
    width, wrap, room, ticks = (vega.PAGE, 2 * NAME_CHARS, 1.2, 5) if wide else (vega.COLUMN, NAME_CHARS, 1.5, 3)
    names = vega.apart([lines(name, wrap) for name, _ in named])
    beside = vega.width_of(names) + 20
    rows = list(zip(names, *zip(*named, strict=True), strict=True))

    def panel(axis: str, get: Callable[[ScalingRow], float], write: Callable[[float], str], color: str, most: float,
              marks: Iterable[Spec], down: Spec) -> Spec:  # fmt: skip
        """Return the bars of one figure, with intervals and marks."""
        bars, ranged = [], []
        for name, called, row in rows:
            share = get(row) / row.speedup
            end = max(row.speedup, row.high or 0.0) * share
            at = {"run": name, "slower": row.speedup < 1, "said": f"{called}: {_reached_text(row)}"}
            bars.append({**at, "x": get(row), "end": end, "text": write(get(row))})
            if row.low is not None and row.high is not None:
                ranged.append({"run": name, "low": row.low * share, "high": row.high * share})
        hue = {"condition": {"test": "datum.slower", "value": vega.COLORS[1]}, "value": color}
        return {
            "width": max(60, round((width - beside - 24) / 2)),
            "height": max(36, sum(14 if "\n" not in name else 19 for name in names)),
            "encoding": {"x": vega.number_axis("x", axis, low=0.0, top=most, tickCount=ticks), "y": down},
            "layer": [
                vega.layer("bar", bars, color=hue),
                *vega.whiskers(ranged, across=True),
                *marks,
                *vega.words(vega.unsaid(bars), x={"field": "end", "type": "quantitative"}, align="left", dx=3),
            ],
        }

    ideal = [{"run": name, "x": float(_at_best(row))} for name, _, row in rows]
    best = vega.layer("tick", ideal, color=vega.INK, thickness=1.2, orient="vertical", size=12)
    levels = [{"x": GOOD, "text": f"{GOOD:g}"}, {"x": EXCELLENT, "text": f"{EXCELLENT:g}"}]
    above = {"y": -1, "text": "text", "color": vega.FAINT}
    good = (
        vega.layer("rule", levels, y=None, color=vega.FAINT, strokeDash=[4, 2], strokeWidth=0.9),
        vega.layer("text", levels[:1], **above, align="right", dx=-1, baseline="bottom"),
        vega.layer("text", levels[1:], **above, align="left", dx=1, baseline="bottom"),
    )
    most = max(max(_at_best(row), row.speedup, row.high or 0.0) for _, row in named) * room
    most_share = max(1.02, *(room * row.efficiency for _, row in named))
    down = vega.name_axis("run", names)
    speedup = panel("speed-up (x)", attrgetter("speedup"), "{:.2f}x".format, vega.COLORS[0], most, (best,), down)
    percent = partial(format_percent, digits=1)
    efficiency = panel(
        "efficiency", attrgetter("efficiency"), percent, vega.COLORS[2], most_share, good, {**down, "axis": None}
    )
    return {**vega.head(title, width), "spacing": 12, "hconcat": [speedup, efficiency]}


def scaling_budget_table(budgets: Sequence[ScalingBudget]) -> Table:
    """Return the table: one row a part, the largest loss first, and the whole below.

    There is a block for every pair and reading that has parts.
    """
    budgets = [budget for budget in budgets if budget.readings[0].parts]
    first = budgets[0] if len(budgets) == 1 else None
    return tabled(
        "scaling_budget",
        "Where the speed-up is lost",
        [line for budget in budgets for line in _budget_lines(budget)],
        group_column("pair", "", "0"),
        lead_column("part", "part", "1"),
        Column(
            "base_ns",
            f"{first.base_world_size} rank{'s' * (first.base_world_size > 1)}" if first else "baseline",
            "2.base_ns",
            duration,
        ),
        Column("ideal_ns", "ideal", "2.ideal_ns", duration, drop=1),
        Column("run_ns", counted(first.world_size, "rank") if first else "run", "2.run_ns", duration),
        Column("lost_ns", "lost", "2.lost_ns", duration),
        Column("share", "of the loss", "2.share", percent),
        footnotes=_scaling_budget_footnotes(budgets),
    )


def _budget_lines(budget: ScalingBudget) -> Iterable[tuple[str, str, ScalingPart]]:
    """Yield (heading, kind, part) for each part of each reading."""
    for reading in budget.readings:
        kind = f", {reading.scaling}" if reading.scaling else ""
        head = f"{budget.run} against {budget.base}{kind}"
        for part in ranked(reading):
            yield head, PARTS[part.key], part
        total = ScalingPart(
            key=budget.unit,
            base_ns=budget.base_time.value,
            ideal_ns=reading.ideal_ns,
            run_ns=budget.time.value,
            lost_ns=reading.lost_ns,
            share=None if reading.lost_ns <= 0 else 1.0,
        )
        yield head, budget.unit, total


def _scaling_budget_footnotes(budgets: Sequence[ScalingBudget]) -> tuple[str, ...]:
    """Say what ideal and lost time are."""
    notes = [
        "ideal: the baseline's time divided by the ranks (strong scaling), or unchanged (weak); lost: above the ideal time."
    ]
    signed = [
        part
        for b in budgets
        for reading in b.readings
        if reading.lost_ns > 0
        for part in reading.parts
        if part.share is None
    ]
    if signed:
        notes.append(
            "of the loss: unknown of a part that gained (-), and of one that lost more than the whole, which others gained"
            " back; the lost times sum to the loss."
        )
    if any(budget.traced for budget in budgets):
        notes.append("traced jobs: means over ranks and steps; the last rank to finish a step decides its length.")
    return tuple(notes)


VIEWS = (
    View("scaling", "Scaling", table=scaling_table, charts=scaling_charts),
    View(
        "speedup_efficiency",
        "Speed-up and efficiency",
        charts=speedup_efficiency_charts,
        stem="KEY_speedup_efficiency",
    ),
    View("scaling_budget", table=scaling_budget_table),
)
