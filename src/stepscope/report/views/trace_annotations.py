"""User annotations (record_function, ProfilerStep) with the device work launched inside them."""

from __future__ import annotations

from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import AnnotationRow
from stepscope.report.kernel_names import elided
from stepscope.report.table import Column, Table, duration, number, said, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, middle, most, over_ranks, over_ranks_note

NAME = 44

NONE = "no user annotations: torch.profiler.record_function and profiler.step() write them"


def build(summary: TraceSummary) -> Table:
    """One row an annotation, over all ranks, most host time first."""
    passes = [p for p in summary.ranks if p.annotations]
    ranks = [p.facts.rank for p in passes]
    merged = over_ranks((r for p in passes for r in p.annotations), lambda r: r.name, lambda r: r.host_ns)
    on_device = any(r.device_events for rows in merged for r in rows)
    return tabled(
        "annotations",
        "Annotations",
        (
            Column("annotation", "annotation", lambda rows: said(_name(rows[0]), rows[0].name), role="identity", lead=True),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number),
            Column("host", "host", lambda rows: middle(rows, "host_ns"), duration),
            Column("device_busy", "device", lambda rows: middle(rows, "device_busy_ns") if on_device else None, duration),
            Column(
                "device_events", "events", lambda rows: middle(rows, "device_events") if on_device else None, number, drop=1
            ),
            Column(
                "device_span", "device span", lambda rows: middle(rows, "device_span_ns"), duration,
                short_title="span", drop=2,
            ),
            Column("largest_rank", "most", lambda rows: most({r.rank: r.host_ns for r in rows}, ranks)),
        ),
        merged,
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
        ),
        notes=gaps(summary, "annotations", otherwise=NONE),
    )  # fmt: skip


def _name(row: AnnotationRow) -> str:
    return elided(row.name.removesuffix("#") if row.name == "ProfilerStep#" else row.name, NAME)


VIEW = View(key="trace_annotations", title="Annotations", needs=("trace",), table=build)
