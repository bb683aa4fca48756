"""Predicted times of collectives: one row a size, the ways to do one call, and errors against measured tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.core.units import format_bandwidth, format_bytes_binary, format_duration
from stepscope.predict.collectives.validate import ALL, ErrorGroup, ValidationReport
from stepscope.predict.predicted import Predicted
from stepscope.report.tables._common import Column, Row, Table, Tone, Value, unknown

_WORRY = (0.3, 0.6)
"""Median relative error from which on a group is shown in yellow, and in red."""


def build_sizes(predictions: Mapping[int, Predicted], *, title: str) -> Table:
    """One row a size."""
    notes = dict.fromkeys(note for predicted in predictions.values() for note in predicted.notes)
    return Table(
        key="predicted_sizes",
        title=title,
        columns=(
            Column(key="size_bytes", title="size", unit="bytes", role="identity", lead=True),
            Column(key="time_ns", title="time", unit="ns"),
            Column(key="interval_ns", title="80 % interval", unit="ns"),
            Column(key="busbw_bytes_per_s", title="busbw", unit="bytes/s"),
            Column(key="algorithm", title="algorithm", align="left"),
            Column(key="protocol", title="protocol", align="left"),
            Column(key="next", title="next best", align="left", drop=1),
        ),
        rows=tuple(_size_row(size, predicted) for size, predicted in predictions.items()),
        notes=tuple(notes),
    )


def _size_row(size: int, predicted: Predicted) -> Row:
    busbw = predicted.busbw_bytes_per_s
    second = next((a for a in predicted.alternatives if a.offered), None)
    return Row(
        values=(
            Value(text=format_bytes_binary(size), raw=size),
            Value(text=format_duration(predicted.time_ns), raw=predicted.time_ns),
            _interval(predicted),
            unknown() if busbw is None else Value(text=format_bandwidth(busbw), raw=busbw),
            _text(predicted.algorithm),
            unknown() if predicted.protocol is None else _text(predicted.protocol),
            unknown()
            if second is None
            else _text(f"{second.algorithm}/{second.protocol} {format_duration(second.time_ns)}"),
        )
    )


def interval_text(predicted: Predicted) -> str:
    """``280 us to 420 us``."""
    return f"{format_duration(predicted.low_ns)} to {format_duration(predicted.high_ns)}"


def _interval(predicted: Predicted) -> Value:
    return Value(text=interval_text(predicted), raw=f"{predicted.low_ns:.0f} {predicted.high_ns:.0f}")


def build_alternatives(predicted: Predicted) -> Table:
    """The chosen way first, then the others, fastest first."""
    rows = [_way(predicted.algorithm, predicted.protocol or "", predicted.time_ns, predicted, "chosen", "good")]
    for other in predicted.alternatives:
        word = "offered" if other.offered else "for comparison"
        tone: Tone = "plain" if other.offered else "dim"
        rows.append(_way(other.algorithm, other.protocol, other.time_ns, predicted, word, tone))
    return Table(
        key="predicted_alternatives",
        title="",
        columns=(
            Column(key="algorithm", title="algorithm", align="left", role="identity", lead=True),
            Column(key="protocol", title="protocol", align="left", role="identity", lead=True),
            Column(key="time_ns", title="time", unit="ns"),
            Column(key="ratio", title="x chosen"),
            Column(key="status", title="", align="left"),
        ),
        rows=tuple(rows),
    )


def _way(name: str, protocol: str, time_ns: float, chosen: Predicted, word: str, tone: Tone) -> Row:
    ratio = time_ns / chosen.time_ns if chosen.time_ns else 1.0
    return Row(
        values=(
            _text(name, tone),
            _text(protocol, tone),
            Value(text=format_duration(time_ns), raw=time_ns, tone=tone),
            Value(text=f"{ratio:.2f}", raw=ratio, tone=tone),
            _text(word, tone),
        )
    )


def build_validation(report: ValidationReport, *, title: str) -> Table:
    """All rows together by size class, then every source."""
    groups: Sequence[ErrorGroup] = (*report.overall, *report.groups)
    coverage = report.sources_coverage
    return Table(
        key="predicted_validation",
        title=title,
        columns=(
            Column(key="source", title="source", align="left", role="identity", lead=True),
            Column(key="op", title="collective", align="left", role="identity", lead=True),
            Column(key="size_class", title="size", align="left", role="identity"),
            Column(key="rows", title="rows"),
            Column(key="median_error", title="median error"),
            Column(key="p90_error", title="90 % error"),
            Column(key="bias", title="bias"),
            Column(key="coverage", title="in 80 % interval"),
        ),
        rows=tuple(_group(group) for group in groups),
        footnotes=(
            "error: |predicted - measured| / measured time; bias: median of the signed error, below 0: predicted too fast",
            *((f"80 % interval: {coverage:.0%} with every source weighing the same",) if coverage is not None else ()),
        ),
        notes=tuple(f"not compared: {text}" for text in report.skipped),
    )


def _group(group: ErrorGroup) -> Row:
    warn, bad = _WORRY
    error = group.median_error
    tone: Tone = "bad" if error >= bad else "warn" if error >= warn else "plain"
    every = group.source == ALL
    return Row(
        values=(
            _text("all sources" if every else group.source),
            _text("all" if group.op == ALL else group.op),
            _text(group.size_class),
            Value(text=str(group.rows), raw=group.rows),
            Value(text=f"{error:.1%}", raw=error, tone=tone),
            Value(text=f"{group.p90_error:.1%}", raw=group.p90_error),
            Value(text=f"{group.bias:+.1%}", raw=group.bias),
            Value(text=f"{group.coverage:.0%}", raw=group.coverage),
        )
    )


def _text(text: str, tone: Tone = "plain") -> Value:
    return Value(text=text, raw=text, tone=tone)
