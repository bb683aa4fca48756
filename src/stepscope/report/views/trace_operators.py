"""Host names in a trace: operators, modules of the model, annotations, each with the device work inside.

How busy the device was kept: MFU and HFU of each rank, launches and the queue before the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_budget import StepUtilisation, Utilisation
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import AnnotationRow, LaunchStatistics, ModuleRow, OperatorRow, OperatorTable
from stepscope.report.kernel_names import elided
from stepscope.report.shared.traces import (
    NOTHING,
    by_ranks,
    gaps,
    many_note,
    medians,
    middle,
    most,
    most_column,
    over_ranks,
    over_ranks_note,
    rank_column,
    standing_out,
    time_over_ranks,
    who,
)
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    binary_size,
    duration,
    flops,
    judged,
    lead_column,
    number,
    percent,
    tabled,
    unknown,
    wording,
)
from stepscope.report.views import View

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
    """Return the table: one row per operator (and shape, when grouped so), over all ranks, in the ranks' own order."""
    tables = [p.operators for p in summary.ranks if p.operators is not None and p.operators.rows]
    ranks = [t.rank for t in tables]
    rows = [r for t in tables for r in t.rows]
    merged = over_ranks(rows, lambda r: (r.name, r.shapes), _row_order(tables))
    device_ns = sum(t.device_ns for t in tables)
    host_ns = sum(t.host_ns for t in tables)
    with_shapes = any(r.shapes is not None for r in rows)

    def largest(rows: Sequence[OperatorRow]) -> Value:
        on_device = sum(r.device_self_ns for r in rows)
        return most({r.rank: r.device_self_ns if on_device else r.host_self_ns for r in rows}, ranks)

    shapes = lead_column("shapes", "shapes", lambda rows: _elided_name(rows[0].shapes, SHAPES))
    return tabled(
        "operators",
        "Operators",
        merged,
        lead_column("operator", "operator", lambda rows: _elided_name(rows[0].name, OPERATORS_NAME)),
        *((shapes,) if with_shapes else ()),
        Column("calls", "calls", medians("calls"), number),
        Column("device_self", "device self", lambda r: _operators_time(r, "device_self_ns", device_ns), duration),
        Column(
            "device_total",
            "device total",
            lambda rows: middle(rows, "device_total_ns") if device_ns else None,
            duration,
            drop=3,
        ),
        Column("host_self", "host self", lambda r: _operators_time(r, "host_self_ns", host_ns), duration),
        Column("host_total", "host total", medians("host_total_ns"), duration, drop=2),
        Column("flops", "FLOP/s", lambda rows: _flop_per_s(rows, on_device=bool(device_ns)), flops, drop=1),
        Column("largest_rank", "most", largest),
        footnotes=_operator_footnotes(tables) if tables else (),
        notes=(
            *gaps(
                summary,
                "operators",
                otherwise="no operators were recorded (activities without the CPU, or a device-only export)",
            ),
            *_device_work_notes(tables),
        ),
    )


def _elided_name(name: str | None, limit: int) -> Value | None:
    return None if name is None else wording(elided(name, limit), name)


def _row_order(tables: Sequence[OperatorTable]) -> Callable[[OperatorRow], float]:
    """Return the figure by which every rank's rows are sorted; the same for all where they are sorted by name."""
    for key in _SORT_KEYS:
        values = [[key(r) for r in t.rows] for t in tables]
        if any(v[0] > v[-1] for v in values) and all(v == sorted(v, reverse=True) for v in values):
            return key
    return lambda _: 0.0


def _operators_time(rows: Sequence[OperatorRow], field: str, whole: int) -> Value | None:
    return time_over_ranks(rows, field, whole) if whole else None


def _flop_per_s(rows: Sequence[OperatorRow], *, on_device: bool) -> float | None:
    """Return FLOP of all ranks / the time of all ranks: derived last, never averaged."""
    with_flop = [r for r in rows if r.flop]
    ns = sum(r.device_total_ns if on_device else r.host_total_ns for r in with_flop)
    return sum(r.flop or 0 for r in with_flop) / (ns / 1e9) if with_flop and ns else None


def _operator_footnotes(tables: Sequence[OperatorTable]) -> tuple[str, ...]:
    """Say what self, share and device time are."""
    ranks = [t.rank for t in tables]
    lines = ["self: without the operators inside, share of the time in all operators"]
    if any(t.device_ns for t in tables):
        lines = [
            "self: without the operators inside, share of all; device: of the work launched, overlapping streams "
            "each counted"
        ]
    if any(r.flop for t in tables for r in t.rows):
        source = {"recorded": "recorded by the profiler", "shapes": "of matrix products, from recorded shapes"}
        sources = sorted({source.get(t.flop_source, t.flop_source) for t in tables if t.flop_source})
        lines.append(f"FLOP/s: FLOP ({', '.join(sources)}) / total device time")
    return (*lines, *over_ranks_note(ranks))


def _device_work_notes(tables: Sequence[OperatorTable]) -> list[str]:
    """Return notes on device work that belongs to no operator."""
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
    """Return the table: one row a module, medians over ranks, most time first."""
    passes = [p for p in summary.ranks if p.modules]
    merged = over_ranks((r for p in passes for r in p.modules), lambda r: r.module, _modules_time)
    whole = sum(_modules_time(r) for rows in merged for r in rows)
    left = len(merged) - MOST
    return tabled(
        "modules",
        "Modules",
        merged[:MOST],
        lead_column("module", "module", "0.module"),
        Column("calls", "calls", medians("calls"), number, drop=1),
        Column("forward", "forward", medians("forward_ns"), duration),
        Column("backward", "backward", medians("backward_ns"), duration),
        Column("share", "share", lambda rows: sum(_modules_time(r) for r in rows) / whole if whole else None, percent),
        Column("comm", "comm", medians("comm_ns"), duration),
        Column("kept", "kept", medians("kept_bytes"), binary_size),
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
    """Return the table: one row an annotation, over all ranks, most host time first."""
    passes = [p for p in summary.ranks if p.annotations]
    ranks = [p.facts.rank for p in passes]
    merged = over_ranks((r for p in passes for r in p.annotations), lambda r: r.name, lambda r: r.host_ns)
    on_device = any(r.device_events for rows in merged for r in rows)
    return tabled(
        "annotations",
        "Annotations",
        merged,
        lead_column("annotation", "annotation", lambda rows: wording(_annotation_name(rows[0]), rows[0].name)),
        Column("calls", "calls", medians("calls"), number),
        Column("host", "host", medians("host_ns"), duration),
        Column("device_busy", "device", lambda rows: middle(rows, "device_busy_ns") if on_device else None, duration),
        Column(
            "device_events", "events", lambda rows: middle(rows, "device_events") if on_device else None, number, drop=1
        ),
        Column("device_span", "device span", medians("device_span_ns"), duration, short="span", drop=2),
        most_column(ranks, lambda r: r.host_ns),
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
    )


def _annotation_name(row: AnnotationRow) -> str:
    return elided(row.name.removesuffix("#") if row.name == "ProfilerStep#" else row.name, ANNOTATIONS_NAME)


MANY_OPERATORS = 4


def utilisation_table(summary: TraceSummary) -> Table:
    """Return the table: one row per rank for its median step, then one per step and rank.

    Without MFU and HFU it has the rate that was reached, and why there are none.
    """
    utilisations = [p.utilisation for p in summary.ranks if p.utilisation is not None]
    shown = [u for u in utilisations if u.step_ns and (u.model_flop is not None or u.hardware_flop is not None)]
    kept = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    items: list[_Use] = [(u, "median", u) for u in standing_out(shown, lambda u: -(u.hfu or u.mfu or 0.0))]
    several = [u for u in shown if len(u.steps) > 1 and u.peak_flops_per_s is not None]
    for step in sorted({s.step for u in several for s in u.steps if s.step in kept[u.rank]}):
        items += [(u, step, s) for u in several for s in u.steps if s.step == step]
    return tabled(
        "utilisation",
        "Utilisation",
        items,
        rank_column(lambda use: use[0].rank),
        lead_column("step", "step", "1"),
        Column("duration", "step time", "2.step_ns", duration),
        Column("mfu", "MFU", lambda use: _mfu_value(use[2].mfu), percent),
        Column("hfu", "HFU", lambda use: _mfu_value(use[2].hfu), percent),
        Column("rate", "reached", _reached_flop_per_s, flops),
        Column("peak", "peak", "0.peak_flops_per_s", flops),
        Column("dtype", "type", "0.dtype"),
        Column("device", "device", "0.device_name", drop=1),
        footnotes=_utilisation_footnotes(shown),
        notes=_utilisation_notes(summary),
    )


_Use = tuple[Utilisation, str | int, Utilisation | StepUtilisation]
"""A rank, and its median step or one of its steps."""


def _reached_flop_per_s(use: _Use) -> float | None:
    of, _, step = use
    flop = of.model_flop if of.model_flop is not None else of.hardware_flop
    return flop / (step.step_ns / 1e9) / of.devices if flop is not None and step.step_ns else None


def _mfu_value(fraction: float | None) -> Value:
    if fraction is None:
        return unknown()
    tone: Tone = "bad" if fraction > 1 else "plain"
    return Value(format_percent(fraction, digits=1 if fraction >= 0.01 else 2), fraction, tone=tone)


def _utilisation_footnotes(shown: list[Utilisation]) -> tuple[str, ...]:
    """Say where FLOP and peaks are from."""
    sources = {
        "given": "FLOP as given",
        "recorded": "FLOP recorded by the profiler",
        "shapes": "FLOP of matrix products and convolutions from recorded shapes",
    }
    flop = sorted({sources.get(u.flop_source, u.flop_source) for u in shown if u.flop_source})
    covers = [u.flop_coverage for u in shown if u.flop_coverage is not None]
    if covers:
        flop.append(f"they cover {_share_range(covers)} of the time of matrix kernels")
    peaks = sorted({u.peak_source for u in shown if u.peak_source})
    return (
        *sorted({u.formula for u in shown if u.peak_flops_per_s is not None}),
        "; ".join([*flop, *(f"peak: {p}" for p in peaks)]),
        "MFU counts the model's FLOP once, HFU what ran, recomputation included; 2 FLOP a multiply-add",
        *many_note(len(shown), "those with the lowest utilisation"),
    )


def _share_range(shares: list[float]) -> str:
    least, most = format_percent(min(shares)), format_percent(max(shares))
    return least if least == most else f"{least} to {most}"


def _utilisation_notes(summary: TraceSummary) -> tuple[str, ...]:
    """Return every reason once, with the ranks it holds for."""
    ranks_by_text: dict[str, list[int]] = defaultdict(list)
    for rank in summary.ranks:
        u = rank.utilisation
        if u is None:
            ranks_by_text[rank.unread or NOTHING if rank.budget is None else "not computed"].append(rank.facts.rank)
            continue
        for text in (u.error, u.unavailable, _incomplete_flop_note(u)):
            if text:
                ranks_by_text[text].append(u.rank)
    return by_ranks(summary, ranks_by_text)


def _incomplete_flop_note(u: Utilisation) -> str | None:
    if not u.flop_incomplete or (u.model_flop is None and u.hardware_flop is None):
        return None
    names = ", ".join(u.flop_incomplete[:MANY_OPERATORS])
    more = len(u.flop_incomplete) - MANY_OPERATORS
    return f"FLOP not counted of {names}{f' and {more} more' if more > 0 else ''}: the figures are too low"


NO_DEVICE = "no device work in this trace: nothing was launched"


def launches_table(summary: TraceSummary) -> Table:
    """Return the table: one row a rank."""
    launches = [p.launches for p in summary.ranks if p.launches is not None and p.launches.unavailable is None]
    rows = standing_out(launches, lambda s: s.late_share or 0.0)

    def delay(field: str) -> Callable[[LaunchStatistics], float | None]:
        return lambda s: getattr(s.delay, field) if s.delay else None

    def share(value: Callable[[LaunchStatistics], float | None], warn: float, bad: float) -> Callable[[Any], Value]:
        return lambda s: percent(value(s), tone=judged(value(s), warn, bad))

    return tabled(
        "launches",
        "Launches",
        rows,
        rank_column(lambda s: s.rank),
        Column("launched", "launched", "launched", number),
        Column("per_s", "a second", "launches_per_s", number, unit="1/s", drop=3),
        Column("call", "call", "call.median_ns", duration),
        Column("delay", "delay", delay("median_ns"), duration),
        Column("delay_p90", "p90", delay("p90_ns"), duration, drop=2),
        Column("delay_max", "longest", delay("max_ns"), duration, drop=1),
        Column("late_share", "late", share(lambda s: s.late_share, 0.3, 0.6), percent),
        Column("short_count", "short", _short_value, number),
        Column("queue_mean", "queue", "queue.mean", Format("{:.3g}".format)),
        Column("queue_longest", "most", "queue.longest", number),
        Column(
            "queue_empty_share", "empty", share(lambda s: s.queue.empty_share if s.queue else None, 0.5, 0.8), percent
        ),
        footnotes=(
            "call: how long a launching call takes (median); delay: from that call to the start of the work "
            "(median, 90th percentile, longest)",
            "late: launched only when its stream had run dry; short: over sooner than its launching call took",
            "queue: launched and not yet started, mean and most; empty: share of the time with nothing queued",
            *many_note(len(rows), "those launching late most often"),
        ),
        notes=(
            *gaps(
                summary,
                "launches",
                lambda p: p.launches is not None and p.launches.unavailable is None,
                otherwise=next(
                    (p.launches.unavailable for p in summary.ranks if p.launches and p.launches.unavailable), NO_DEVICE
                ),
            ),
            *_launches_notes(launches),
        ),
    )


def _short_value(s: LaunchStatistics) -> Value:
    share = s.short_count / s.launched if s.launched else 0.0
    return Value(f"{s.short_count:,} {format_percent(share):>4}", s.short_count, tone=judged(share, 0.5, 0.8))


def _launches_notes(launches: list[LaunchStatistics]) -> list[str]:
    """Return notes on kernels without a launch."""
    notes = []
    if unlinked := sum(s.unlinked for s in launches):
        total = unlinked + sum(s.launched for s in launches)
        notes.append(
            f"{counted(unlinked, 'device event')} of {total:,} have no launch in the trace: "
            "launched before the capture, or not recorded"
        )
    if early := sum(s.early for s in launches):
        notes.append(f"{counted(early, 'event')} start before their launch: host and device clocks disagree")
    slow = [s for s in launches if s.delay and s.delay.median_ns >= 1e6 and s.queue and s.queue.empty_share < 0.01]
    if slow:
        least = min(s.delay.median_ns for s in slow if s.delay)
        notes.append(
            f"delays of {format_duration(least)} and more with a queue that is never empty are good: "
            "the host is that far ahead of the device"
        )
    return notes


VIEWS = (
    View("trace_operators", table=operators_table),
    View("trace_modules", table=modules_table),
    View("trace_annotations", table=annotations_table),
    View("trace_utilisation", table=utilisation_table),
    View("trace_launches", table=launches_table),
)
