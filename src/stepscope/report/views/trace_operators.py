"""Host names in a trace: operators, modules of the model, annotations, each with the device work inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import AnnotationRow, ModuleRow, OperatorRow, OperatorTable
from stepscope.report.kernel_names import elided
from stepscope.report.shared.traces import gaps, middle, most, over_ranks, over_ranks_note, time_over_ranks, who
from stepscope.report.table import Column, Table, Value, binary_size, duration, flops, number, percent, said, tabled
from stepscope.report.view import View

OPERATORS_NAME = 52
SHAPES = 30

_SORT_KEYS: tuple[Callable[[OperatorRow], float], ...] = (
    lambda r: r.device_self_ns,
    lambda r: r.host_self_ns,
    lambda r: r.device_total_ns,
    lambda r: r.host_total_ns,
    lambda r: r.calls,
    lambda r: -1 if r.flop is None else r.flop,
)


def operators_table(summary: TraceSummary) -> Table:
    """One row per operator (and shape, when grouped so), over all ranks, in the order the ranks were sorted by."""
    tables = [p.operators for p in summary.ranks if p.operators is not None and p.operators.rows]
    ranks = [t.rank for t in tables]
    rows = [r for t in tables for r in t.rows]
    merged = over_ranks(rows, lambda r: (r.name, r.shapes), _order(tables))
    device_ns = sum(t.device_ns for t in tables)
    host_ns = sum(t.host_ns for t in tables)
    with_shapes = any(r.shapes is not None for r in rows)

    def largest(rows: Sequence[OperatorRow]) -> Value:
        on_device = sum(r.device_self_ns for r in rows)
        return most({r.rank: r.device_self_ns if on_device else r.host_self_ns for r in rows}, ranks)

    shapes = Column("shapes", "shapes", lambda rows: _elided(rows[0].shapes, SHAPES), role="identity", lead=True)
    return tabled(
        "operators",
        "Operators",
        (
            Column("operator", "operator", lambda rows: _elided(rows[0].name, OPERATORS_NAME), role="identity", lead=True),
            *((shapes,) if with_shapes else ()),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number),
            Column("device_self", "device self", lambda r: _operators_time(r, "device_self_ns", device_ns), duration),
            Column(
                "device_total", "device total", lambda rows: middle(rows, "device_total_ns") if device_ns else None,
                duration, drop=3,
            ),
            Column("host_self", "host self", lambda r: _operators_time(r, "host_self_ns", host_ns), duration),
            Column("host_total", "host total", lambda rows: middle(rows, "host_total_ns"), duration, drop=2),
            Column("flops", "FLOP/s", lambda rows: _rate(rows, on_device=bool(device_ns)), flops, drop=1),
            Column("largest_rank", "most", largest),
        ),
        merged,
        footnotes=_footnotes(tables) if tables else (),
        notes=(
            *gaps(
                summary,
                "operators",
                lambda p: p.operators is not None and bool(p.operators.rows),
                otherwise="no operators were recorded (activities without the CPU, or a device-only export)",
            ),
            *_notes(tables),
        ),
    )  # fmt: skip


def _elided(name: str | None, limit: int) -> Value | None:
    return None if name is None else said(elided(name, limit), name)


def _order(tables: Sequence[OperatorTable]) -> Callable[[OperatorRow], float]:
    """The figure by which every rank's rows are sorted; the same for all where they are sorted by name."""
    for key in _SORT_KEYS:
        values = [[key(r) for r in t.rows] for t in tables]
        if any(v[0] > v[-1] for v in values) and all(v == sorted(v, reverse=True) for v in values):
            return key
    return lambda _: 0.0


def _operators_time(rows: Sequence[OperatorRow], field: str, whole: int) -> Value | None:
    return time_over_ranks(rows, field, whole) if whole else None


def _rate(rows: Sequence[OperatorRow], *, on_device: bool) -> float | None:
    """FLOP of all ranks / the time of all ranks: derived last, never averaged."""
    known = [r for r in rows if r.flop]
    ns = sum(r.device_total_ns if on_device else r.host_total_ns for r in known)
    return sum(r.flop or 0 for r in known) / (ns / 1e9) if known and ns else None


def _footnotes(tables: Sequence[OperatorTable]) -> tuple[str, ...]:
    ranks = [t.rank for t in tables]
    lines = ["self: without the operators inside, share of the time in all operators"]
    if any(t.device_ns for t in tables):
        lines = [
            "self: without the operators inside, share of all; device: of the work launched, overlapping streams "
            "each counted"
        ]
    if any(r.flop for t in tables for r in t.rows):
        source = {"recorded": "recorded by the profiler", "shapes": "of matrix products, from recorded shapes"}
        known = sorted({source.get(t.flop_source, t.flop_source) for t in tables if t.flop_source})
        lines.append(f"FLOP/s: FLOP ({', '.join(known)}) / total device time")
    return (*lines, *over_ranks_note(ranks))


def _notes(tables: Sequence[OperatorTable]) -> list[str]:
    notes = []
    for what, attribute in (
        ("has no launch in the trace and belongs to no operator", "unlinked_ns"),
        ("was launched outside any operator", "outside_ns"),
    ):
        ns = sum(getattr(t, attribute) for t in tables)
        device = sum(t.device_ns for t in tables)
        if device and ns >= 0.01 * device:
            some = [t.rank for t in tables if getattr(t, attribute)]
            where = f" on {who(some)}" if len(tables) > 1 else ""
            notes.append(f"{format_duration(ns)} ({format_percent(ns / device)}) of device work{where} {what}")
    left = max((t.left_out_rows for t in tables), default=0)
    if left:
        notes.append(f"{counted(left, 'more operator')} left out on a rank")
    return notes


MOST = 40


def modules_table(summary: TraceSummary) -> Table:
    """One row a module, medians over ranks, most time first."""
    passes = [p for p in summary.ranks if p.modules]
    merged = over_ranks((r for p in passes for r in p.modules), lambda r: r.module, _modules_time)
    whole = sum(_modules_time(r) for rows in merged for r in rows)
    left = len(merged) - MOST
    return tabled(
        "modules",
        "Modules",
        (
            Column("module", "module", lambda rows: rows[0].module, role="identity", lead=True),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number, drop=1),
            Column("forward", "forward", lambda rows: middle(rows, "forward_ns"), duration),
            Column("backward", "backward", lambda rows: middle(rows, "backward_ns"), duration),
            Column(
                "share", "share", lambda rows: sum(_modules_time(r) for r in rows) / whole if whole else None, percent
            ),
            Column("comm", "comm", lambda rows: middle(rows, "comm_ns"), duration),
            Column("kept", "kept", lambda rows: middle(rows, "kept_bytes"), binary_size),
        ),
        merged[:MOST],
        footnotes=(
            "each without the modules inside it; backward: what autograd ran for its operators; share: of both",
            "kept: bytes allocated less bytes released while it ran; below 0 it released what others had allocated",
            *((f"{left} more modules: --json lists them",) if left > 0 else ()),
            *over_ranks_note([p.facts.rank for p in passes]),
        )
        if merged
        else (),
        notes=gaps(
            summary,
            "modules",
            otherwise="no ranges of modules: `stepscope profile --modules` or with_stack=True record them",
        ),
    )


def _modules_time(row: ModuleRow) -> int:
    return row.forward_ns + row.backward_ns


ANNOTATIONS_NAME = 44

NONE = "no user annotations: torch.profiler.record_function and profiler.step() write them"


def annotations_table(summary: TraceSummary) -> Table:
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
    return elided(row.name.removesuffix("#") if row.name == "ProfilerStep#" else row.name, ANNOTATIONS_NAME)


VIEWS = (
    View("trace_operators", "Operators", needs=("trace",), table=operators_table),
    View("trace_modules", "Modules", needs=("trace",), table=modules_table),
    View("trace_annotations", "Annotations", needs=("trace",), table=annotations_table),
)
