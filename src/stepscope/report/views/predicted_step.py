"""Predicted steps: speed, parts and memory of a layout, layouts that a search found, a measured job on more GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.dataclass import record
from stepscope.core.units import format_bytes, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.step.alternatives import KNEE, Remedy, base_of, efficiency, warnings_of
from stepscope.predict.step.calibration import MEMORY_LIMIT
from stepscope.predict.step.layout import layout_text
from stepscope.predict.step.plan import LayoutSearch, UsualLayout, slower_because
from stepscope.predict.step.step import StepPrediction
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.prediction import ScaledStep, ScalePrediction
from stepscope.report.names import file_part
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Value,
    duration,
    figure,
    lead_column,
    number,
    percent,
    size,
    tabled,
    times,
    whole,
    with_share,
    wording,
)
from stepscope.report.vega import (
    COLORS,
    COLUMN,
    FAINT,
    INK,
    UPRIGHT,
    Chart,
    chart,
    doubling_axis,
    layer,
    log_axis,
    sig,
    unsaid,
)
from stepscope.report.views import View

PART = {
    "compute": "computation",
    "launch": "launching kernels (host)",
    "tp": "tensor-parallel traffic",
    "cp": "context-parallel traffic",
    "ep": "expert-parallel traffic",
    "pp": "pipeline messages",
    "bubble": "pipeline bubble",
    "dp": "data-parallel traffic",
    "optimizer": "optimizer",
    "other": "fixed time, slowest GPU",
}


def interval(p: StepPrediction) -> Value:
    """Write the interval of tokens per second."""
    low, high = p.low_tokens_per_s, p.high_tokens_per_s
    return Value(f"{low:,.0f} to {high:,.0f}", f"{low:.0f} {high:.0f}")


_MEMORY = {
    "params": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered layers",
    "activations": "activations",
    "logits": "output and loss",
    "base": "context and libraries",
    "slack": "fragmentation",
}
_MOST = 0.0005
"""Least share of a step that is worth a line."""


def build_scaling(predictions: Sequence[StepPrediction]) -> Table:
    """Return the table: one row a number of GPUs."""
    base = base_of(predictions)

    def worst(p: StepPrediction) -> str:
        parts = {name: value for name, value in p.budget.parts.items() if name != "compute"}
        name = max(parts, key=lambda key: parts[key])
        return f"{PART[name]} {percent(parts[name] / p.step_s).text}"

    def efficient(p: StepPrediction) -> Value:
        share = efficiency(p, base)
        return percent(share, tone="plain" if share >= KNEE else "warn")

    def memory(p: StepPrediction) -> Value:
        return size(p.memory.total, tone="plain" if p.fits else "warn" if p.tight else "bad")

    return tabled(
        "predicted_steps",
        "",
        predictions,
        lead_column("gpus", "GPUs", "layout.gpus", whole),
        Column("layout", "layout", lambda p: layout_text(p.layout), drop=2),
        Column("step_ns", "step", lambda p: p.step_s * 1e9, duration),
        Column("tokens_per_s", "tokens/s", "tokens_per_s", number),
        Column("interval", "80% interval", interval, unit="1/s"),
        Column("tokens_per_s_per_gpu", "per GPU", "tokens_per_s_per_gpu", number),
        Column("efficiency", "efficiency", efficient, percent),
        Column("mfu", "MFU", lambda p: p.mfu["non-causal"], percent),
        Column("memory_bytes", "memory", memory, size),
        Column("worst", "largest cost", worst, drop=1),
        footnotes=(f"efficiency: against {base.layout.gpus} GPUs; MFU: 6 N + 12 L d s, N without the input embedding",),
    )


def build_budget(prediction: StepPrediction) -> Table:
    """Return the table: one row a part of the step."""
    parts = [(name, value) for name, value in prediction.budget.parts.items() if value > _MOST * prediction.step_s]
    return tabled(
        "predicted_budget",
        "",
        sorted(parts, key=lambda item: -item[1]),
        lead_column("part", "part of the step", lambda item: PART[item[0]]),
        Column("time_ns", "time", lambda item: item[1] * 1e9, duration),
        Column("share", "share", lambda item: item[1] / prediction.step_s, percent),
    )


def build_memory(prediction: StepPrediction) -> Table:
    """Return the table: one row a kind of memory of the fullest rank."""
    amounts = [(name, getattr(prediction.memory, name)) for name in _MEMORY]
    where = f", stage {prediction.memory_stage + 1} of {prediction.layout.pp}" if prediction.layout.pp > 1 else ""
    return tabled(
        "predicted_memory",
        f"Memory of one GPU{where}",
        [(name, value) for name, value in amounts if value > 0] + [("total", prediction.memory.total)],
        lead_column("kind", "kind", lambda item: _MEMORY.get(item[0], item[0])),
        Column("bytes", "size", "1", size),
        Column("share", "of the GPU", lambda item: item[1] / prediction.cluster.gpu.total_bytes, percent),
    )


def build_remedies(remedies: Sequence[Remedy]) -> Table:
    """Return the table: one row a way, cheapest first."""
    return tabled(
        "predicted_remedies",
        "What would make it fit, cheapest first",
        remedies,
        lead_column("what", "change", "what"),
        Column("memory_bytes", "memory", "prediction.memory.total", size),
        Column("slower", "step", "slower", Format("{:+.0%}".format)),
        Column("tokens_per_s_per_gpu", "tokens/s per GPU", "prediction.tokens_per_s_per_gpu", number),
        footnotes=("step: time of a token against the layout that does not fit",),
    )


def verdict(p: StepPrediction) -> str:
    """Say whether it fits, speed and its interval, in a sentence."""
    low, high = format_duration(p.low_s * 1e9), format_duration(p.high_s * 1e9)
    what = f"{p.model.name} on {p.layout.gpus} x {p.cluster.gpu.name}"
    if p.tight:
        what += f" is tight, {_used_memory_text(p)} per GPU (fits up to {MEMORY_LIMIT:.0%}); if it fits"
    elif not p.fits:
        what += f" does not fit, {_used_memory_text(p)} per GPU; if it did"
    return (
        f"{what}: {p.tokens_per_s:,.0f} tokens/s, {p.tokens_per_s_per_gpu:,.0f} per GPU; "
        f"step {format_duration(p.step_s * 1e9)} (80%: {low} to {high})"
    )


def bound(p: StepPrediction) -> tuple[str, ...]:
    """Write lines: computation and the largest part beside it; utilisation; memory where it fits."""
    parts = sorted(p.budget.parts, key=lambda name: -p.budget.parts[name])
    first, *others = ("compute", *(name for name in parts if name != "compute"))
    shares = [f"{PART[name]} {p.budget.parts[name] / p.step_s:.0%}" for name in (first, *others[:2])]
    mfu = ", ".join(f"{value:.1%} {name}" for name, value in p.mfu.items())
    fits = (f"memory {_used_memory_text(p)} per GPU: fits",) if p.fits else ()
    return (f"of the step: {'; '.join(shares)}", f"MFU {mfu}; hardware {p.hfu:.1%}", *fits)


def _used_memory_text(p: StepPrediction) -> str:
    return f"{format_bytes(p.memory.total)} of {format_bytes(p.cluster.gpu.total_bytes)}"


SHOWN = 5


def explain(p: StepPrediction) -> str:
    """Write the two largest parts of the step beside computation, and warnings by their cause."""
    parts = {name: value / p.step_s for name, value in p.budget.parts.items() if name != "compute"}
    top = sorted(parts, key=lambda name: -parts[name])[:2]
    text = "; ".join(f"{PART[name]} {format_percent(parts[name])}" for name in top if parts[name] > 0.005)
    warned = ", ".join(w.cause for w in warnings_of(p))
    return "; ".join(part for part in (text, warned and f"! {warned}") if part) or "computation alone"


def build_plan(plan: LayoutSearch) -> Table:
    """Return the table: one row a layout, fastest first."""
    best = plan.best[0]
    return tabled(
        "planned",
        "",
        list(enumerate(plan.best[:SHOWN], 1)),
        lead_column("rank", "", "0", whole),
        lead_column("layout", "layout", lambda item: layout_text(item[1].layout)),
        Column("tokens_per_s", "tokens/s", "1.tokens_per_s", number),
        Column("interval", "80% interval", lambda item: interval(item[1]), unit="1/s", drop=2),
        Column("per_gpu", "per GPU", "1.tokens_per_s_per_gpu", number),
        Column("mfu", "MFU", lambda item: item[1].mfu["non-causal"], percent),
        Column("memory_bytes", "memory", "1.memory.total", size),
        Column(
            "against",
            "against the first",
            lambda item: "" if item[1] is best else slower_because(item[1], best),
            drop=1,
        ),
        Column("pays", "beside computation", lambda item: explain(item[1]), drop=1),
    )


def build_alternatives(plan: LayoutSearch) -> Table:
    """Return the table: one row an obvious layout."""

    def form(item: UsualLayout) -> str | None:
        return None if item.prediction is None else layout_text(item.prediction.layout)

    return tabled(
        "planned_alternatives",
        "Why not",
        plan.alternatives,
        lead_column("name", "layout", "name"),
        Column("form", "at its best", form, drop=1),
        Column("why", "why it loses", lambda a: wording(a.why)),
    )


DOMINANT = {
    "compute": "compute",
    "copies": "copies",
    "input": "loading",
    "idle": "host",
    "straggling": "slowest rank",
    "exposed": "communication",
    "unexplained": "unexplained",
}
"""Parts of a step in words. host: the device waits for launches."""


SAME = 0.005
"""Relative difference of throughputs that two decimals do not show."""


def scale_sentence(prediction: ScalePrediction) -> str:
    """Say what the largest number of ranks brings, and up to which number it scales well."""
    last = prediction.steps[-1]
    changed = f" with {prediction.change}" if prediction.change else ""
    base = prediction.base_throughput
    so_changed = "" if abs(base - 1) < SAME else f" against the {base:.3g}x of {prediction.ranks} so changed"
    share = "" if last.efficiency is None else f", efficiency {format_percent(last.efficiency, digits=0)}{so_changed}"
    knee = (
        "none of the numbers keeps that"
        if prediction.knee is None
        else f"up to {prediction.knee} and beyond"
        if prediction.knee_open
        else f"up to {counted(prediction.knee, prediction.unit)}"
    )
    return (
        f"{prediction.name}{changed}: on {counted(last.ranks, prediction.unit)} {last.throughput:.3g}x the throughput of "
        f"{prediction.ranks} ({prediction.scaling} scaling{share}); at least {KNEE:.0%}: {knee}"
    )


def scaled_steps_table(prediction: ScalePrediction) -> Table:
    """Return the table: one row for each number of GPUs asked for, beside what was measured there."""
    measured = {point.ranks: point.step_ns for point in prediction.measured}
    samples = any(step.samples_per_s is not None for step in prediction.steps)

    def interval(step: ScaledStep) -> Value:
        text = f"{format_duration(step.low_ns)} to {format_duration(step.high_ns)}"
        return Value(text, f"{step.low_ns:.0f} {step.high_ns:.0f}")

    def dominant(step: ScaledStep) -> str:
        share = getattr(step, f"{step.dominant}_ns") / step.step_ns
        return f"{DOMINANT[step.dominant]} {format_percent(share, digits=0)}"

    return tabled(
        "scaled_steps",
        "",
        prediction.steps,
        lead_column("gpus", f"{prediction.unit}s", "ranks", number),
        Column("step_ns", "step", "step_ns", duration),
        Column("interval_ns", "80% interval", interval, unit="ns"),
        *(
            [Column("measured_ns", "measured", lambda step: measured.get(step.ranks), duration)]
            if any(step.ranks in measured for step in prediction.steps)
            else []
        ),
        Column("throughput", "throughput", "throughput", times),
        *([Column("samples_per_s", "samples/s", "samples_per_s", figure)] if samples else []),
        Column("efficiency", "efficiency", "efficiency", percent),
        Column(
            "exposed_comm_ns",
            EXPOSED_COMM,
            lambda step: with_share(step.exposed_ns, step.exposed_ns / step.step_ns),
            short="exposed",
            unit="ns",
        ),
        Column("straggling_ns", "slowest rank", "straggling_ns", duration, drop=1),
        Column("dominant", "largest part", dominant, drop=2),
    )


@record
class ScalePoint:
    """Work per second of the whole job on so many GPUs. low, high: 80% interval. measured: not predicted."""

    gpus: int
    value: float
    low: float | None = None
    high: float | None = None
    measured: bool = False


@record
class ScaleCurve:
    """Throughput over GPUs. unit: ``tokens/s``, ``samples/s``. knee: GPUs up to which the curve is good."""

    title: str
    unit: str
    points: tuple[ScalePoint, ...]
    knee: int | None = None


def predicted_scaling_charts(scale_curves: Sequence[ScaleCurve]) -> Iterator[Chart]:
    """Yield the curves of more than a point."""
    return (predicted_scaling_chart(curve) for curve in scale_curves if len(curve.points) > 1)


def predicted_scaling_chart(data: ScaleCurve) -> Chart:
    """Draw both axes logarithmic; dashed: as fast as the first point times the GPUs."""
    points = sorted(data.points, key=lambda p: p.gpus)
    rows = {
        measured: [
            {"x": p.gpus, "y": sig(p.value), "said": f"{p.gpus} GPUs: {p.value:,.4g} {data.unit}"}
            for p in points
            if p.measured is measured
        ]
        for measured in (False, True)
    }
    first, last = points[0], points[-1]
    gpus = sorted({p.gpus for p in points})
    ideal = [{"x": n, "y": sig(first.value * n / first.gpus)} for n in (gpus[0], gpus[-1])]
    values = [v for p in points for v in (p.value, p.low, p.high) if v is not None] + [row["y"] for row in ideal]
    band = [{"x": p.gpus, "y": p.low, "end": p.high} for p in points if not p.measured and p.low and p.high]
    layers = [layer("line", ideal, y="y", color=FAINT, strokeDash=[4, 2], strokeWidth=0.9)]
    if band:
        layers.append(layer("area", band, y="y", y2="end", color=COLORS[0], opacity=0.2))
    if data.knee is not None and gpus[0] <= data.knee <= gpus[-1]:
        layers.append(layer("rule", [{"x": data.knee}], **UPRIGHT, color=INK, strokeDash=[2, 2], strokeWidth=0.9))
    layers.append(layer("line", unsaid(rows[False]), y="y", color=COLORS[0], strokeWidth=1.2))
    for measured, color in ((False, COLORS[0]), (True, INK)):
        if rows[measured]:
            layers.append(layer("point", rows[measured], y="y", color=color, filled=True, size=22, opacity=1))
    spec = chart(
        data.title,
        *layers,
        width=COLUMN,
        height=150,
        x=doubling_axis("x", "GPUs", gpus, (gpus[0] / 1.15, gpus[-1] * 1.15)),
        y=log_axis("y", f"speed ({data.unit})", values),
    )
    share = last.value / first.value / (last.gpus / first.gpus)
    knee = "" if data.knee is None else f" Vertical line: the knee, {data.knee} GPUs."
    black = " Black points: measured." if rows[True] else ""
    caption = (
        f"Predicted speed ({data.unit}) over GPUs with its 80% interval; dashed: proportional to the GPUs. {last.gpus} GPUs "
        f"reach {share:.0%} of {first.gpus} GPUs' speed per GPU.{knee}{black}"
    )
    return Chart(file_part(data.title), data.title, caption, spec)


VIEWS = (
    View("predicted_step", table=build_scaling),
    View("planned", table=build_plan),
    View("scaled_steps", table=scaled_steps_table),
    View("predicted_scaling", "Predicted scaling", charts=predicted_scaling_charts),
)
