"""User annotations (record_function, ProfilerStep) with the device work launched inside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import AnnotationRow
from stepscope.report.kernel_names import elided
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import duration, gaps, median_over, most, number, over_ranks_note

NAME = 44


def build(summary: TraceSummary) -> Table:
    """One row an annotation, over all ranks, most host time first."""
    passes = [p for p in summary.ranks if p.annotations]
    ranks = [p.facts.rank for p in passes]
    found: dict[str, list[AnnotationRow]] = defaultdict(list)
    for row in (r for p in passes for r in p.annotations):
        found[row.name].append(row)
    merged = sorted(found.values(), key=lambda rows: -sum(r.host_ns for r in rows))
    on_device = any(r.device_events for rows in merged for r in rows)
    return Table(
        key="annotations",
        title="Annotations",
        columns=(
            Column(key="annotation", title="annotation", align="left", role="identity", lead=True),
            Column(key="calls", title="calls"),
            Column(key="host", title="host", unit="ns"),
            Column(key="device_busy", title="device", unit="ns"),
            Column(key="device_events", title="events", drop=1),
            Column(key="device_span", title="device span", short_title="span", unit="ns", drop=2),
            Column(key="largest_rank", title="most", align="left"),
        ),
        rows=tuple(_row(rows, ranks, on_device=on_device) for rows in merged),
        footnotes=(
            "host: an annotation inside one of the same name counts once; annotations overlap and do not add up",
            *(
                (
                    "device: busy with work launched inside, overlapping streams once, also after the host has left; "
                    "span: from the first to the last of it, where the profiler says so",
                )
                if on_device
                else ()
            ),
            *over_ranks_note(ranks),
        )
        if merged
        else (),
        notes=gaps(
            summary,
            "annotations",
            lambda p: bool(p.annotations),
            otherwise="no user annotations: torch.profiler.record_function and profiler.step() write them",
        ),
    )


TABLE = TableKind(key="annotations", title="Annotations", needs=("trace",), build=build)


def _row(rows: Sequence[AnnotationRow], ranks: Sequence[int], *, on_device: bool) -> Row:
    name = rows[0].name.removesuffix("#") if rows[0].name == "ProfilerStep#" else rows[0].name
    host = {r.rank: r.host_ns for r in rows}
    busy = {r.rank: r.device_busy_ns for r in rows}
    host_ns, busy_ns = median_over(host), median_over(busy)
    spans = {r.rank: r.device_span_ns for r in rows if r.device_span_ns is not None}
    return Row(
        values=(
            Value(text=elided(name, NAME), raw=rows[0].name),
            number(median_over({r.rank: r.calls for r in rows})),
            duration(host_ns),
            Value(text=format_duration(busy_ns), raw=busy_ns) if on_device else unknown(),
            number(median_over({r.rank: r.device_events for r in rows})) if on_device else unknown(),
            duration(median_over(spans)) if spans else unknown(),
            most(host, ranks),
        )
    )
