"""A/B: figures of every side against the first, and what differs in how they were made."""

from __future__ import annotations

from stepscope.core.units import format_bytes, format_count, format_duration
from stepscope.records.comparison import ComparedFigure, Comparison
from stepscope.records.training import Measured
from stepscope.report.tables._common import Column, Row, Table, Tone, Value, unknown

METRIC_NAMES = {
    "samples_per_s": "samples/s",
    "step_ns": "step",
    "epoch_ns": "epoch",
    "exposed_comm_ns": "exposed communication",
    "peak_memory_bytes": "peak memory",
    "train_loss": "training loss",
    "test_accuracy": "test accuracy",
    "comm_time_ns": "time",
    "trace_step_ns": "step",
    "trace_exposed_comm_ns": "exposed communication",
    "trace_idle_ns": "idle",
}

_TONES: dict[str, Tone] = {"better": "good", "worse": "bad"}


def build(comparison: Comparison) -> Table:
    """One row a figure; blocks by what is compared. Changes are shown against the first side."""
    many = len(comparison.sides) > 2
    first, second = comparison.sides[0], comparison.sides[1]
    columns = (
        Column(key="what", title="", align="left", role="group"),
        *([Column(key="side", title="run", align="left", role="identity", lead=True)] if many else []),
        Column(key="metric", title="figure", align="left", role="identity", lead=True),
        Column(key="first", title=first),
        Column(key="second", title="value" if many else second),
        Column(key="change", title="change"),
        Column(key="interval", title="95 % interval", drop=3),
        Column(key="p_value", title="p", drop=2),
        Column(key="verdict", title="verdict", align="left"),
    )
    kinds = dict.fromkeys(f.replicate for f in comparison.figures if f.p_value is not None)
    footnotes = []
    if kinds:
        footnotes.append(f"p: Mann-Whitney U, two-sided; replicates: {', '.join(k for k in kinds if k)}")
    reasons = dict.fromkeys(f.untested for f in comparison.figures if f.untested and f.replicate)
    footnotes += [f"not tested: {reason}" for reason in reasons if reason]
    return Table(
        key="comparison",
        title=f"{second} against {first}" if not many else f"every run against {first}",
        columns=columns,
        rows=tuple(_row(figure, many=many) for figure in comparison.figures),
        footnotes=tuple(footnotes),
        notes=comparison.notes,
    )


def build_differences(comparison: Comparison) -> Table:
    """What is not the same in how the sides were made."""
    return Table(
        key="differences",
        title="What differs before any figure",
        columns=(
            Column(key="where", title="", align="left", role="group"),
            Column(key="key", title="", align="left", role="identity", lead=True),
            *(Column(key=f"side_{i}", title=name, align="left") for i, name in enumerate(comparison.sides)),
        ),
        rows=tuple(
            Row(
                values=(
                    Value(text=each.where, raw=each.where),
                    Value(text=each.key, raw=each.key),
                    *(
                        unknown() if v is None else Value(text=_short(v), raw=v)
                        for v in each.values
                    ),
                )
            )
            for each in comparison.differences
        ),
    )  # fmt: skip


def _short(text: str, *, most: int = 60) -> str:
    """The first line, cut where it is long: a link matrix is a page of text."""
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= most and line == text else f"{line[: most - 3]}..."


def _row(figure: ComparedFigure, *, many: bool) -> Row:
    tone: Tone = _TONES.get(figure.verdict, "plain")
    interval = unknown()
    if figure.low is not None and figure.high is not None:
        text = f"{signed_percent(figure.low - 1)} to {signed_percent(figure.high - 1)}"
        interval = Value(text=text, raw=text)
    return Row(
        values=(
            Value(text=figure.what, raw=figure.what),
            *([Value(text=figure.side, raw=figure.side)] if many else []),
            Value(text=METRIC_NAMES.get(figure.metric, figure.metric), raw=figure.metric),
            _figure(figure.metric, figure.first),
            _figure(figure.metric, figure.second),
            Value(text=signed_percent(figure.change), raw=figure.change, tone=tone),
            interval,
            unknown() if figure.p_value is None else Value(text=f"{figure.p_value:.2g}", raw=figure.p_value),
            Value(text=figure.verdict, raw=figure.verdict, tone=tone if figure.verdict in _TONES else "dim"),
        )
    )


def _figure(metric: str, measured: Measured) -> Value:
    value = measured.value
    if metric.endswith("_ns"):
        text = format_duration(value)
    elif metric.endswith("_bytes"):
        text = format_bytes(value)
    elif metric == "samples_per_s":
        text = format_count(value)
    else:
        text = f"{value:.4g}"
    return Value(text=text, raw=value)


def signed_percent(change: float) -> str:
    """``+3.1 %``; whole numbers from 100 % on."""
    return f"{change * 100:+.0f} %" if abs(change) >= 1 else f"{change * 100:+.1f} %"
