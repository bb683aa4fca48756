"""Speed-up over ranks, strong and weak scaling apart, with the line that nothing beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_percent
from stepscope.core.words import counted, grouped
from stepscope.records.training import ScalingRow, TargetTime, TrainingRun
from stepscope.report.names import file_part
from stepscope.report.table import Column, Raw, Table, Value, duration, figure, tabled, times, whole
from stepscope.report.vega import COLUMN, FAINT, MAX_LINES, Spec, doubling_axis, layer, number_axis, sig, whole_axis
from stepscope.report.vega import chart as chart_
from stepscope.report.view import Figures, View, distinct
from stepscope.report.views._curves import CURVES_HEIGHT, CurvePoint, RunCurve, RunCurves, curve_layers
from stepscope.report.views._runs import facets, model_on, names, numbered_parts, scaled, titled
from stepscope.report.views._training import baselines_said, efficiency_value, first_epochs, speedup_value

_RULES = {
    "strong": ("strong scaling", " Strong: the same global batch (or data) on more ranks."),
    "weak": ("weak scaling", " Weak: the same batch per rank on more ranks."),
    None: ("scaling", " Whether the global batch or each rank's batch was kept is unknown."),
}

LOG_FROM = 8
"""From this ratio of ranks on, both axes double at each step."""

IDEAL = "ideal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingChart(RunCurves):
    """Lines of speed-up (x of the baseline on ``base`` ranks). rule: strong, weak, or None where it is not known."""

    base: int
    rule: str | None


def prepare(runs: Sequence[TrainingRun], scaling: Sequence[ScalingRow]) -> tuple[ScalingChart, ...]:
    """One chart a data set, rule and baseline's ranks; a line for everything else, if it has two numbers of ranks."""
    found = scaled(runs, scaling)
    baselines = {row.run_id: row for _, row in found if row.is_baseline}
    charts: list[ScalingChart] = []
    several = [(run, row) for run, row in found if not row.is_baseline]

    def about(pair: tuple[TrainingRun, ScalingRow]) -> tuple[str, str, str | None, int]:
        run, row = pair
        told = facets(run)
        return told["hardware"], told["dataset"], row.scaling, row.baseline_world_size

    machines = len({facets(run)["hardware"] for run, _ in several}) > 1
    for (machine, dataset, rule, base), mine in grouped(several, about).items():
        series = list(grouped(mine, _series).values())
        called = names([one[0][0] for one in series], known=("hardware", "dataset", "ranks"))
        if len(series) == 1:  # nothing to tell it from
            called = (facets(series[0][0][0])["strategy"] or "measured",)
        curves = [RunCurve(name=name, points=_points(one, baselines)) for one, name in zip(series, called, strict=True)]
        curves = [curve for curve in curves if len(curve.points) > 1]
        models = {facets(run)["model"] for run, _ in mine}
        where = titled(
            model_on(models.pop() if len(models) == 1 else "", dataset) or "all runs", [run for run, _ in mine]
        )
        for number, several_charts, part in numbered_parts(curves, MAX_LINES) if curves else ():
            of = [where, machine if machines else "", _RULES[rule][0]]
            title = ", ".join(text for text in of if text) + several_charts
            name = [rule or "unknown", dataset, machine if machines else "", str(number) if number > 1 else ""]
            charts.append(
                ScalingChart(
                    key=file_part("-".join(text for text in name if text)),
                    title=title,
                    curves=tuple(part),
                    x_axis="ranks",
                    y_axis="speed-up (x)",
                    base=base,
                    rule=rule,
                )
            )
    return distinct(charts)


def _series(pair: tuple[TrainingRun, ScalingRow]) -> tuple[str, ...]:
    """What one line has in common: everything but ranks, and the batch that follows from them."""
    run, row = pair
    told = facets(run)
    return (*(told[f] for f in ("model", "strategy", "precision", "accumulation", "batch")), row.baseline_id)


def _points(
    series: Sequence[tuple[TrainingRun, ScalingRow]], baselines: dict[str, ScalingRow]
) -> tuple[CurvePoint, ...]:
    rows = [row for _, row in series]
    base = baselines.get(rows[0].baseline_id)
    if base is not None:
        rows.append(base)
    return tuple(
        CurvePoint(x=row.world_size, y=row.speedup, low=row.low, high=row.high, efficiency=row.efficiency)
        for row in sorted(rows, key=lambda row: row.world_size)
    )


def _efficiency(point: CurvePoint) -> str:
    """As the table has it."""
    return (
        "efficiency unknown" if point.efficiency is None else f"efficiency {format_percent(point.efficiency, digits=0)}"
    )


def chart(data: ScalingChart) -> Spec:
    """Lines of speed-up with the one that nothing beats; over a wide range both axes double at each step."""
    ranks = sorted({p.x for curve in data.curves for p in curve.points})
    ends = [p for curve in data.curves for p in curve.points]
    ideal = [{"x": x, "y": sig(x / data.base)} for x in (ranks[0], ranks[-1])]
    top = max(ranks[-1] / data.base, *(p.high or p.y for p in ends)) * 1.05
    if ranks[-1] / ranks[0] >= LOG_FROM:
        low = min(p.y for p in ends)
        doublings = [2.0**n for n in range(-6, 12) if low / 2 < 2.0**n <= 2 * ranks[-1] / data.base]
        x = doubling_axis("x", "ranks", ranks, (ranks[0] / 1.1, ranks[-1] * 1.1))
        y = doubling_axis("y", data.y_axis, doublings, (min(low, ranks[0] / data.base) / 1.1, top))
    else:
        x = whole_axis("x", "ranks", ranks)
        x["axis"]["values"] = ranks
        y = number_axis("y", data.y_axis, low=0.0, top=top)

    def said(curve: RunCurve, point: CurvePoint) -> str:
        return f"{curve.name} on {counted(int(point.x), 'rank')}: {point.y:.2f}x, {_efficiency(point)}"

    words = [{**ideal[1], "text": IDEAL}]
    layers = [
        layer("line", ideal, color=FAINT, strokeDash=[5, 2], strokeWidth=0.9),
        layer("text", words, {"text": {"field": "text"}}, color=FAINT, align="right", dx=-8, dy=-1, baseline="bottom"),
        *curve_layers(data, of=said),
    ]
    return chart_(data.title, layers, width=COLUMN, height=CURVES_HEIGHT, x=x, y=y)


def caption(data: ScalingChart) -> str:
    said = []
    for curve in data.curves[:5]:
        last = curve.points[-1]
        said.append(f"{curve.name}: {last.y:.2f}x on {counted(int(last.x), 'rank')} ({_efficiency(last)})")
    whisker = any(p.low is not None for curve in data.curves for p in curve.points)
    return (
        f"Speed-up over {counted(data.base, 'rank')} on {data.title}. {'; '.join(said)}.{_RULES[data.rule][1]}"
        f" Dashed: as much faster as there are more ranks.{' Whiskers: 95% interval.' if whisker else ''}"
    )


NEVER = "never"


def build(
    scaling: Sequence[ScalingRow], runs: Sequence[TrainingRun] = (), *, drop_epochs: int = 1, raw: bool = False
) -> Table:
    """One line a run and target accuracy; groups in order of first appearance.

    raw: for programs, with columns for what people read inside another one (interval, rating).
    """
    labels = {run.run_id: run.label for run in runs}
    ordered = [row for block in grouped(scaling, lambda row: row.group).values() for row in block]

    def of_target(get: Callable[[TargetTime], Raw | Value]) -> Callable[[Line], Raw | Value]:
        return lambda line: None if line[1] is None else get(line[1])

    def reached(get: Callable[[TargetTime], Raw | Value]) -> Callable[[Line], Raw | Value]:
        never = Value(text=NEVER, raw=None, tone="bad")
        return of_target(lambda target: never if target.reached_epochs is None else get(target))

    columns = (
        Column("group", "runs", lambda line: line[0].group, role="group"),
        Column("label", "run", lambda line: labels.get(line[0].run_id, line[0].run_id), role="identity", lead=True),
        Column("world_size", "ranks", lambda line: line[0].world_size, whole, role="identity", lead=True),
        Column(
            "baseline_world_size", "baseline ranks", lambda line: line[0].baseline_world_size, whole,
            short_title="base", role="identity", drop=2,
        ),
        Column("scaling", "scaling", lambda line: line[0].scaling, role="identity"),
        Column("basis", "from", lambda line: line[0].basis, role="identity", drop=1),
        Column("speedup", "speed-up", lambda line: speedup_value(line[0]), times),
        Column("speedup_low", "low", lambda line: line[0].low, times),
        Column("speedup_high", "high", lambda line: line[0].high, times),
        Column("efficiency", "efficiency", lambda line: efficiency_value(line[0]), whole),
        Column("rating", "rating", lambda line: line[0].rating),
        Column("best_accuracy", "best accuracy", lambda line: line[0].best_accuracy, figure, short_title="best", drop=4),
        Column(
            "baseline_best_accuracy", "baseline's best", lambda line: line[0].baseline_best_accuracy, figure,
            short_title="base best", drop=3,
        ),
        Column("target_accuracy", "to accuracy", of_target(lambda target: target.accuracy), figure),
        Column("target_epochs", "epochs", reached(lambda target: target.reached_epochs), whole, drop=5),
        Column("target_ns", "time to it", reached(lambda target: target.time_ns), duration),
        Column("target_speedup", "speed-up to it", reached(_target_speedup), times),
    )  # fmt: skip
    return tabled(
        "scaling",
        "Scaling",
        (column for column in columns if raw or column.key not in _RAW),
        ((row, target) for row in ordered for target in (row.targets or (None,))),
        footnotes=(*_footnotes(ordered, drop_epochs), *baselines_said(runs, ordered)),
    )


_RAW = ("speedup_low", "speedup_high", "rating")

Line = tuple[ScalingRow, TargetTime | None]


def _target_speedup(target: TargetTime) -> Value:
    return times(target.speedup, tone="bad" if target.speedup is not None and target.speedup < 1 else "plain")


def _footnotes(rows: Sequence[ScalingRow], drop_epochs: int) -> tuple[str, ...]:
    if not rows:
        return ()
    notes = [
        "speed-up: throughput over the baseline's; efficiency: speed-up / (ranks / baseline ranks): excellent above 0.9,"
        " good above 0.8, fair above 0.5, negative for a speed-up below 1.",
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


VIEW = View(
    key="scaling",
    title="Scaling",
    needs=("scaling", "runs"),
    table=build,
    figures=Figures(needs=("runs", "scaling"), prepare=prepare, chart=chart, caption=caption),
)
