"""What held a device's memory at its recorded peak, by kind, and how that came to be over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import listed
from stepscope.records.imported import KINDS, UNKNOWN, MemorySnapshot
from stepscope.report.names import file_part
from stepscope.report.table import Column, Table, binary_size, percent, tabled
from stepscope.report.vega import COLORS, FAINT, PAGE, Spec, by_series, chart, layer, number_axis, sig
from stepscope.report.view import Figures, View

COLOR = dict(zip(KINDS, (*COLORS[: len(KINDS) - 1], FAINT), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    snapshot: str
    kind: str
    peak: int | None
    share: float | None
    now: int


def build(memory: Sequence[MemorySnapshot]) -> Table:
    """One row a kind and device, and their sum."""
    return tabled(
        "memory_kinds",
        "Memory by kind",
        (
            Column("snapshot", "", lambda row: row.snapshot, role="group"),
            Column("kind", "kind", lambda row: row.kind, role="identity", lead=True),
            Column("peak_bytes", "at the peak", lambda row: row.peak, binary_size),
            Column("peak_share", "share", lambda row: row.share, percent),
            Column("snapshot_bytes", "at the snapshot", lambda row: row.now, binary_size),
        ),
        [row for each in memory for row in _rows(each)],
        footnotes=_footnotes(memory),
    )


def _rows(memory: MemorySnapshot) -> list[_Row]:
    peak, now = dict(memory.peak_kinds), dict(memory.kinds)
    kinds = [kind for kind in KINDS if kind in peak or kind in now]
    sums = [(kind, peak.get(kind, 0), now.get(kind, 0)) for kind in kinds]
    sums += [("all", memory.peak_requested_bytes or 0, memory.requested_bytes or 0)] if kinds else []
    return [
        _Row(
            snapshot=memory.name,
            kind=kind,
            peak=at_peak if peak else None,
            share=at_peak / memory.peak_requested_bytes if memory.peak_requested_bytes else None,
            now=at_end,
        )
        for kind, at_peak, at_end in sums
    ]


def _footnotes(memory: Sequence[MemorySnapshot]) -> tuple[str, ...]:
    lines = ["bytes that tensors asked for; buffers count as parameters, DDP's buckets as gradients"]
    if any(not each.named for each in memory):
        lines.append(
            "kinds follow from who asked for a block and what it outlived; snapshots of `stepscope profile --memory` state "
            "parameters, gradients and optimizer state"
        )
    if any(UNKNOWN in dict((*each.kinds, *each.peak_kinds)) for each in memory):
        lines.append("unknown: allocated before the history began, or kept by the script for longer than a step")
    return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """kinds: name and bytes at each of ``at``, which is in units of ``axis``."""

    key: str
    title: str
    memory: MemorySnapshot
    at: tuple[float, ...]
    axis: str


def prepare(memory: Sequence[MemorySnapshot]) -> tuple[OverTime, ...]:
    """One chart a device whose history has more than one moment."""
    charts = []
    for each in memory:
        over = each.over_time
        if over is None or len(over.events) < 3:
            continue
        at, axis = tuple(map(float, over.events)), "allocator's events"
        if over.times_ns is not None and over.times_ns[-1] > 0:
            scale, unit = (1e9, "s") if over.times_ns[-1] >= 10e9 else (1e6, "ms")
            at, axis = tuple(time / scale for time in over.times_ns), f"time ({unit})"
        stem = file_part(f"{Path(each.path).stem}-{each.device}")
        charts.append(OverTime(key=stem, title=each.name, memory=each, at=at, axis=axis))
    return tuple(charts)


def area_chart(data: OverTime) -> Spec:
    """Kinds on top of each other over time; each moment is the highest of its slice."""
    over = data.memory.over_time
    assert over is not None
    peak = data.memory.peak_requested_bytes or 1
    scale, unit = (2**30, "GiB") if peak >= 2**30 else (2**20, "MiB") if peak >= 2**20 else (2**10, "KiB")
    areas = []
    below = [0] * len(data.at)
    for kind, sizes in over.bytes_by_kind:
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        values = [
            {"x": sig(x), "from": sig(low / scale), "to": sig(high / scale), "series": kind}
            for x, low, high in zip(data.at, below, above, strict=True)
        ]
        values[0]["said"] = f"{kind}: at most {format_bytes_binary(max(sizes))}"
        areas.append(values)
        below = above
    kinds = [kind for kind, _ in over.bytes_by_kind]
    hue = by_series(kinds, [COLOR[kind] for kind in kinds], width=PAGE)
    span = {"y": {"field": "from", "type": "quantitative"}, "y2": {"field": "to"}, "color": hue}
    return chart(
        data.title,
        [layer("area", values, span, interpolate="step-after") for values in areas],
        width=PAGE,
        height=150,
        x=number_axis("x", data.axis, low=0.0, top=data.at[-1]),
        y=number_axis("from", f"memory of live tensors ({unit})", low=0.0),
    )


def caption(data: OverTime) -> str:
    memory = data.memory
    peak = memory.peak_requested_bytes or 0
    held = [f"{kind} {format_bytes_binary(size)} ({format_percent(size / peak)})" for kind, size in memory.peak_kinds]
    span = "" if memory.history_ns is None else f" over {format_duration(memory.history_ns)}"
    return (
        f"What live tensors asked for{span}, by kind, the highest moment of each slice. Peak {format_bytes_binary(peak)}: "
        f"{listed(held, at_most=6)}."
    )


VIEW = View(
    key="memory_kinds",
    title="Memory by kind",
    needs=("memory",),
    table=build,
    figures=Figures(needs=("memory",), prepare=prepare, chart=area_chart, caption=caption),
)
