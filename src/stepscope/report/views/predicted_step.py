"""Predicted training steps: one row a number of GPUs, the parts of one step, its memory, and ways to make it fit."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_bytes, format_duration
from stepscope.predict.step.alternatives import KNEE, Remedy, base_of, efficiency
from stepscope.predict.step.calibration import MEMORY_LIMIT
from stepscope.predict.step.layout import layout_text
from stepscope.predict.step.step import StepPrediction
from stepscope.report.table import Column, Format, Table, Value, duration, number, percent, size, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._predicted import PART, interval

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
    """One row a number of GPUs."""
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
        (
            Column("gpus", "GPUs", lambda p: p.layout.gpus, whole, role="identity", lead=True),
            Column("layout", "layout", lambda p: layout_text(p.layout), drop=2),
            Column("step_ns", "step", lambda p: p.step_s * 1e9, duration),
            Column("tokens_per_s", "tokens/s", lambda p: p.tokens_per_s, number),
            Column("interval", "80% interval", interval, unit="1/s"),
            Column("tokens_per_s_per_gpu", "per GPU", lambda p: p.tokens_per_s_per_gpu, number),
            Column("efficiency", "efficiency", efficient, percent),
            Column("mfu", "MFU", lambda p: p.mfu["non-causal"], percent),
            Column("memory_bytes", "memory", memory, size),
            Column("worst", "largest cost", worst, drop=1),
        ),
        predictions,
        footnotes=(f"efficiency: against {base.layout.gpus} GPUs; MFU: 6 N + 12 L d s, N without the input embedding",),
    )


def build_budget(prediction: StepPrediction) -> Table:
    """One row a part of the step."""
    parts = [(name, value) for name, value in prediction.budget.parts.items() if value > _MOST * prediction.step_s]
    return tabled(
        "predicted_budget",
        "",
        (
            Column("part", "part of the step", lambda item: PART[item[0]], role="identity", lead=True),
            Column("time_ns", "time", lambda item: item[1] * 1e9, duration),
            Column("share", "share", lambda item: item[1] / prediction.step_s, percent),
        ),
        sorted(parts, key=lambda item: -item[1]),
    )


def build_memory(prediction: StepPrediction) -> Table:
    """One row a kind of memory of the fullest rank."""
    found = [(name, getattr(prediction.memory, name)) for name in _MEMORY]
    where = f", stage {prediction.memory_stage + 1} of {prediction.layout.pp}" if prediction.layout.pp > 1 else ""
    return tabled(
        "predicted_memory",
        f"Memory of one GPU{where}",
        (
            Column("kind", "kind", lambda item: _MEMORY.get(item[0], item[0]), role="identity", lead=True),
            Column("bytes", "size", lambda item: item[1], size),
            Column("share", "of the GPU", lambda item: item[1] / prediction.cluster.gpu.total_bytes, percent),
        ),
        [(name, value) for name, value in found if value > 0] + [("total", prediction.memory.total)],
    )


def build_remedies(remedies: Sequence[Remedy]) -> Table:
    """One row a way, cheapest first."""
    return tabled(
        "predicted_remedies",
        "What would make it fit, cheapest first",
        (
            Column("what", "change", lambda r: r.what, role="identity", lead=True),
            Column("memory_bytes", "memory", lambda r: r.prediction.memory.total, size),
            Column("slower", "step", lambda r: r.slower, Format("{:+.0%}".format)),
            Column("tokens_per_s_per_gpu", "tokens/s per GPU", lambda r: r.prediction.tokens_per_s_per_gpu, number),
        ),
        remedies,
        footnotes=("step: time of a token against the layout that does not fit",),
    )


def verdict(p: StepPrediction) -> str:
    """Whether it fits, speed and its interval, in a sentence."""
    low, high = format_duration(p.low_s * 1e9), format_duration(p.high_s * 1e9)
    what = f"{p.model.name} on {p.layout.gpus} x {p.cluster.gpu.name}"
    if p.tight:
        what += f" is tight, {_used(p)} per GPU (fits up to {MEMORY_LIMIT:.0%}); if it fits"
    elif not p.fits:
        what += f" does not fit, {_used(p)} per GPU; if it did"
    return (
        f"{what}: {p.tokens_per_s:,.0f} tokens/s, {p.tokens_per_s_per_gpu:,.0f} per GPU; "
        f"step {format_duration(p.step_s * 1e9)} (80%: {low} to {high})"
    )


def bound(p: StepPrediction) -> tuple[str, ...]:
    """Lines: computation and the largest part beside it; utilisation; memory where it fits."""
    parts = sorted(p.budget.parts, key=lambda name: -p.budget.parts[name])
    first, *others = ("compute", *(name for name in parts if name != "compute"))
    told = [f"{PART[name]} {p.budget.parts[name] / p.step_s:.0%}" for name in (first, *others[:2])]
    mfu = ", ".join(f"{value:.1%} {name}" for name, value in p.mfu.items())
    fits = (f"memory {_used(p)} per GPU: fits",) if p.fits else ()
    return (f"of the step: {'; '.join(told)}", f"MFU {mfu}; hardware {p.hfu:.1%}", *fits)


def _used(p: StepPrediction) -> str:
    return f"{format_bytes(p.memory.total)} of {format_bytes(p.cluster.gpu.total_bytes)}"


VIEW = View(key="predicted_step", title="Predicted steps", needs=("predictions",), table=build_scaling)
