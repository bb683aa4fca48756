"""Predicted times of collectives: one row a size, the ways to do one call."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.units import format_duration
from stepscope.predict.collectives.costs import Predicted
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    bandwidth,
    binary_size,
    duration,
    said,
    tabled,
    whole,
)
from stepscope.report.view import View


def build_sizes(predictions: Mapping[int, Predicted], *, title: str) -> Table:
    """One row a size."""
    notes = dict.fromkeys(note for predicted in predictions.values() for note in predicted.notes)
    return tabled(
        "predicted_sizes",
        title,
        (
            Column("size_bytes", "size", lambda item: item[0], binary_size, role="identity", lead=True),
            Column("time_ns", "time", lambda item: item[1].time_ns, duration),
            Column("interval_ns", "80% interval", lambda item: _interval(item[1]), whole, unit="ns"),
            Column("busbw_bytes_per_s", "busbw", lambda item: item[1].busbw_bytes_per_s, bandwidth, unit="bytes/s"),
            Column("algorithm", "algorithm", lambda item: item[1].algorithm),
            Column("protocol", "protocol", lambda item: item[1].protocol),
            Column("next", "next best", lambda item: _next(item[1]), drop=1),
        ),
        predictions.items(),
        notes=tuple(notes),
    )


def _next(predicted: Predicted) -> str | None:
    second = next((a for a in predicted.alternatives if a.offered), None)
    return None if second is None else f"{second.algorithm}/{second.protocol} {format_duration(second.time_ns)}"


def interval_text(predicted: Predicted) -> str:
    """``280 us to 420 us``."""
    return f"{format_duration(predicted.low_ns)} to {format_duration(predicted.high_ns)}"


def _interval(predicted: Predicted) -> Value:
    return Value(text=interval_text(predicted), raw=f"{predicted.low_ns:.0f} {predicted.high_ns:.0f}")


def build_alternatives(predicted: Predicted) -> Table:
    """The chosen way first, then the others, fastest first."""
    ways: list[tuple[str, str, float, str, Tone]] = [
        (predicted.algorithm, predicted.protocol or "", predicted.time_ns, "chosen", "good")
    ]
    for other in predicted.alternatives:
        word = "offered" if other.offered else "for comparison"
        ways.append((other.algorithm, other.protocol, other.time_ns, word, "plain" if other.offered else "dim"))

    def ratio(time_ns: float) -> float:
        return time_ns / predicted.time_ns if predicted.time_ns else 1.0

    return tabled(
        "predicted_alternatives",
        "",
        (
            Column("algorithm", "algorithm", lambda way: said(way[0], tone=way[4]), role="identity", lead=True),
            Column("protocol", "protocol", lambda way: said(way[1], tone=way[4]), role="identity", lead=True),
            Column("time_ns", "time", lambda way: duration(way[2], tone=way[4]), duration),
            Column("ratio", "x chosen", lambda way: Format("{:.2f}".format)(ratio(way[2]), tone=way[4]), whole),
            Column("status", "", lambda way: said(way[3], tone=way[4])),
        ),
        ways,
    )


VIEW = View(key="predicted", title="Predicted collectives", needs=("predictions",), table=build_sizes)
