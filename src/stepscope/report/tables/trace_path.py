"""The critical path: what the time would have to be shortened on."""

from __future__ import annotations

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.trace_path import CriticalPath, CrossRankPath, PathContributor, PathParts
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.kernel_names import elided, short_names
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import duration, gaps, many_note, shared, standing_out, words

NAME = 44
TOP = 30

PARTS = {
    "compute": "compute kernels",
    "communication": "communication",
    "memory": "copies",
    "host_operator": "host, inside operators",
    "host_runtime": "host, runtime calls and waits",
    "host_other": "host, outside operators",
    "launch_latency": "launch latency",
    "device_gap": "gaps on the device",
}
"""Field of PathParts without ``_ns`` -> what it is."""

_ITSELF = {"host_other": "outside operators"}
"""What a part's contributor is called where it is the part itself."""

_TITLES = {
    "compute": "compute",
    "communication": "comm",
    "memory": "copies",
    "host_operator": "operators",
    "host_runtime": "runtime",
    "host_other": "Python",
    "launch_latency": "launch",
    "device_gap": "gaps",
}


def build(summary: TraceSummary) -> Table:
    """One rank: its parts, each with what took most of it. Several: one row each, after the path across them."""
    passes = [p for p in summary.ranks if p.path is not None]
    notes = gaps(
        summary,
        "path",
        lambda p: p.path is not None,
        otherwise="the path could not be followed in this trace",
    )
    if summary.path_unavailable is not None:
        notes = (*notes, f"no path across ranks: {summary.path_unavailable}")
    if len(passes) == 1 and (summary.path is None or len(summary.ranks) == 1):
        return _one(passes[0], notes)
    return _several(summary.path, passes, notes)


TABLE = TableKind(key="path", title="Critical path", needs=("trace",), build=build)


def _value(parts: PathParts, part: str) -> int:
    value: int = getattr(parts, f"{part}_ns")
    return value


def _one(each: RankPass, notes: tuple[str, ...]) -> Table:
    path = each.path
    assert path is not None
    total = path.parts.total_ns
    names = short_names((c.name for c in path.contributors if c.part in _KERNELS), limit=NAME)
    between = "host threads and device" if path.source == "device" else "threads"
    rows = []
    for part in sorted(PARTS, key=lambda p: -_value(path.parts, p)):
        ns = _value(path.parts, part)
        if not ns:
            continue
        inside = [c for c in path.contributors if c.part == part]
        rows.append(_part_row(part, None, ns, total, names))
        # A part that is one thing under its own name needs no second line.
        if any(c.name not in (part, _ITSELF.get(part)) for c in inside):
            rows += [_part_row(part, c, c.total_ns, total, names) for c in inside]
    return Table(
        key="path",
        title="Critical path",
        columns=(
            Column(key="part", title="part", align="left", role="identity", lead=True),
            Column(key="name", title="what", align="left", role="identity", lead=True),
            Column(key="duration", title="on the path", unit="ns"),
            Column(key="share", title="share"),
        ),
        rows=tuple(rows),
        footnotes=(
            f"rank {path.rank}: {format_duration(total)} long, {counted(path.switches, 'change')} between {between}; "
            "the parts sum to it, under each what takes most of it",
            "shortening what is not on the path changes nothing",
            *_inferred(path.inferred),
        ),
        notes=notes,
    )


_KERNELS = ("compute", "communication", "memory")


def _part_row(part: str, what: PathContributor | None, ns: int, total: int, names: dict[str, str]) -> Row:
    """A part, or with ``what`` one of its contributors."""
    if what is None:
        name = Value(text="all", raw="all")
    else:
        name = Value(text=names.get(what.name) or elided(what.name, NAME), raw=what.name)
    share = ns / total if total else 0.0
    return Row(
        values=(
            Value(text=PARTS[part] if what is None else "", raw=part),
            Value(text="", raw="all") if what is None else name,
            duration(ns),
            Value(text=f"{share:.1%}", raw=share, tone="plain" if what is None else "dim"),
        )
    )


def _inferred(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"{counted(count, 'edge')} between streams concluded from wait calls, not recorded",)


def _several(across: CrossRankPath | None, passes: list[RankPass], notes: tuple[str, ...]) -> Table:
    rows = []
    if across is not None:
        total = across.total_ns
        rows.append(_row("all", total, total, _summed(across)))
        own = [(s.rank, s.parts) for s in across.ranks if s.parts.total_ns]
        for rank, parts in sorted(own, key=lambda x: -x[1].total_ns):
            rows.append(_row(f"on {rank}", parts.total_ns, total, parts))
    for each in standing_out(passes, lambda p: p.path.parts.total_ns if p.path else 0):
        if each.path is not None:
            whole, rank = each.path.parts.total_ns, each.facts.rank
            rows.append(_row(str(rank), whole, whole, each.path.parts, _top(each.path), raw=rank))
    return Table(
        key="path",
        title="Critical path",
        columns=(
            Column(key="path", title="path", role="identity", lead=True),
            Column(key="total", title="length", unit="ns"),
            *(Column(key=part, title=_TITLES[part], unit="ns") for part in PARTS),
            Column(key="top", title="most of it", align="left", drop=1),
        ),
        rows=tuple(rows),
        footnotes=_footnotes(across, len(passes)) if rows else (),
        notes=notes,
    )


def _top(path: CriticalPath) -> Value:
    """What takes most of it under one name."""
    if not path.contributors:
        return unknown()
    top = path.contributors[0]
    name = short_names([top.name], limit=TOP)[top.name] if top.part in _KERNELS else elided(top.name, TOP)
    return Value(text=f"{name} {top.share:.0%}", raw=top.name)


def _footnotes(across: CrossRankPath | None, ranks: int) -> tuple[str, ...]:
    lines = []
    if across is not None:
        lines.append(
            f"all: across ranks, ending on rank {across.end_rank}, through "
            f"{counted(across.collectives, 'collective')} and {counted(across.hops, 'change')} of rank; its comm is "
            "transfer alone, waiting is what the late rank did instead; on N: its part on rank N"
        )
        if across.unmatched:
            lines.append(f"{counted(across.unmatched, 'collective')} on it without a match: whole duration counted")
    return (
        *lines,
        "numbers: each rank's own path; shares of the length; operators, runtime, Python: the host inside operators, "
        "inside runtime calls and waits, outside both",
        "--rank N lists what is on one rank's path",
        *many_note(ranks, "the longest paths"),
    )


def _summed(across: CrossRankPath) -> PathParts:
    sums = {f"{part}_ns": sum(_value(s.parts, part) for s in across.ranks) for part in PARTS}
    sums["communication_ns"] += across.transfer_ns
    return PathParts(**sums)


def _row(
    name: str,
    length_ns: int,
    whole_ns: int,
    parts: PathParts,
    top: Value | None = None,
    *,
    raw: str | int | None = None,
) -> Row:
    length = duration(length_ns) if length_ns == whole_ns else shared(length_ns, whole_ns)
    return Row(
        values=(
            words(name, raw=raw),
            length,
            *(_part(_value(parts, part), length_ns) for part in PARTS),
            unknown() if top is None else top,
        )
    )


def _part(ns: int, whole: int) -> Value:
    share = ns / whole if whole else 0.0
    tiny = 0 < share < 0.005
    return Value(text="<1%" if tiny else f"{share:.0%}", raw=ns, tone="dim" if share < 0.005 else "plain")
