"""A measured job on other numbers of GPUs, as predicted: one row for each."""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.records.prediction import ScaledStep, ScalePrediction
from stepscope.report.table import Column, Table, Value, duration, figure, number, percent, tabled, times, with_share
from stepscope.report.view import View

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


def build(prediction: ScalePrediction) -> Table:
    """One row for each number of GPUs asked for, beside what was measured there."""
    measured = {point.ranks: point.step_ns for point in prediction.measured}
    samples = any(step.samples_per_s is not None for step in prediction.steps)

    def interval(step: ScaledStep) -> Value:
        text = f"{format_duration(step.low_ns)} to {format_duration(step.high_ns)}"
        return Value(text=text, raw=f"{step.low_ns:.0f} {step.high_ns:.0f}")

    def dominant(step: ScaledStep) -> str:
        share = getattr(step, f"{step.dominant}_ns") / step.step_ns
        return f"{DOMINANT[step.dominant]} {format_percent(share, digits=0)}"

    return tabled(
        "scaled_steps",
        "",
        (
            Column("gpus", f"{prediction.unit}s", lambda step: step.ranks, number, role="identity", lead=True),
            Column("step_ns", "step", lambda step: step.step_ns, duration),
            Column("interval_ns", "80% interval", interval, unit="ns"),
            *(
                [Column("measured_ns", "measured", lambda step: measured.get(step.ranks), duration)]
                if any(step.ranks in measured for step in prediction.steps)
                else []
            ),
            Column("throughput", "throughput", lambda step: step.throughput, times),
            *([Column("samples_per_s", "samples/s", lambda step: step.samples_per_s, figure)] if samples else []),
            Column("efficiency", "efficiency", lambda step: step.efficiency, percent),
            Column(
                "exposed_comm_ns", "exposed communication",
                lambda step: with_share(step.exposed_ns, step.exposed_ns / step.step_ns), short_title="exposed", unit="ns",
            ),
            Column("straggling_ns", "slowest rank", lambda step: step.straggling_ns, duration, drop=1),
            Column("dominant", "largest part", dominant, drop=2),
        ),
        prediction.steps,
    )  # fmt: skip


VIEW = View(key="scaled_steps", title="A measured job on more GPUs", needs=("prediction",), table=build)
