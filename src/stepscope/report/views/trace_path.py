"""The critical path: what the time would have to be shortened on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_path import CriticalPath, CrossRankPath, PathContributor, PathParts
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.kernel_names import elided, short_names
from stepscope.report.table import Column, Table, Value, duration, percent, said, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, many_note, shared, standing_out

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
    notes = gaps(summary, "path", otherwise="the path could not be followed in this trace")
    if summary.path_unavailable is not None:
        notes = (*notes, f"no path across ranks: {summary.path_unavailable}")
    if len(passes) == 1 and (summary.path is None or len(summary.ranks) == 1):
        return _one(passes[0], notes)
    return _several(summary.path, passes, notes)


def _value(parts: PathParts, part: str) -> int:
    value: int = getattr(parts, f"{part}_ns")
    return value


def _one(each: RankPass, notes: tuple[str, ...]) -> Table:
    path = each.path
    assert path is not None
    total = path.parts.total_ns
    names = short_names((c.name for c in path.contributors if c.part in _KERNELS), limit=NAME)
    between = "host threads and device" if path.source == "device" else "threads"
    items: list[tuple[str, PathContributor | None, int]] = []
    for part in sorted(PARTS, key=lambda p: -_value(path.parts, p)):
        ns = _value(path.parts, part)
        if not ns:
            continue
        inside = [c for c in path.contributors if c.part == part]
        items.append((part, None, ns))
        # A part that is one thing under its own name needs no second line.
        if any(c.name not in (part, _ITSELF.get(part)) for c in inside):
            items += [(part, c, c.total_ns) for c in inside]

    def share(item: tuple[str, PathContributor | None, int]) -> Value:
        fraction = item[2] / total if total else 0.0
        return Value(text=format_percent(fraction), raw=fraction, tone="plain" if item[1] is None else "dim")

    def what(item: tuple[str, PathContributor | None, int]) -> Value:
        found = item[1]
        return said("", "all") if found is None else said(names.get(found.name) or elided(found.name, NAME), found.name)

    return tabled(
        "path",
        "Critical path",
        (
            Column(
                "part", "part", lambda i: said(PARTS[i[0]] if i[1] is None else "", i[0]), role="identity", lead=True
            ),
            Column("name", "what", what, role="identity", lead=True),
            Column("duration", "on the path", lambda i: i[2], duration),
            Column("share", "share", share, percent),
        ),
        items,
        footnotes=(
            f"rank {path.rank}: {format_duration(total)} long, {counted(path.switches, 'change')} between {between}; "
            "the parts sum to it, under each what takes most of it",
            "shortening what is not on the path changes nothing",
            *_inferred(path.inferred),
        ),
        notes=notes,
    )


_KERNELS = ("compute", "communication", "memory")


def _inferred(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"{counted(count, 'edge')} between streams concluded from wait calls, not recorded",)


@dataclass(frozen=True, slots=True)
class _Line:
    """One row of the paths of several ranks. whole_ns: of the path that it is a part of."""

    name: str
    raw: str | int
    parts: PathParts
    length_ns: int
    whole_ns: int
    top: Value | None = None


def _several(across: CrossRankPath | None, passes: list[RankPass], notes: tuple[str, ...]) -> Table:
    items = []
    if across is not None:
        total = across.total_ns
        items.append(_Line("all", "all", _summed(across), total, total))
        own = [(s.rank, s.parts) for s in across.ranks if s.parts.total_ns]
        for rank, parts in sorted(own, key=lambda x: -x[1].total_ns):
            items.append(_Line(f"on {rank}", f"on {rank}", parts, parts.total_ns, total))
    for each in standing_out(passes, lambda p: p.path.parts.total_ns if p.path else 0):
        if each.path is not None:
            whole_ns, rank = each.path.parts.total_ns, each.facts.rank
            items.append(_Line(str(rank), rank, each.path.parts, whole_ns, whole_ns, _top(each.path)))

    def length(line: _Line) -> Value:
        alone = line.length_ns == line.whole_ns
        return duration(line.length_ns) if alone else shared(line.length_ns, line.whole_ns)

    def part_of(part: str) -> Callable[[_Line], Value]:
        return lambda line: _part(_value(line.parts, part), line.length_ns)

    return tabled(
        "path",
        "Critical path",
        (
            Column("path", "path", lambda line: said(line.name, line.raw), whole, role="identity", lead=True),
            Column("total", "length", length, duration),
            *(Column(part, _TITLES[part], part_of(part), duration) for part in PARTS),
            Column("top", "most of it", lambda line: line.top, drop=1),
        ),
        items,
        footnotes=_footnotes(across, len(passes)),
        notes=notes,
    )


def _top(path: CriticalPath) -> Value | None:
    """What takes most of it under one name."""
    if not path.contributors:
        return None
    top = path.contributors[0]
    name = short_names([top.name], limit=TOP)[top.name] if top.part in _KERNELS else elided(top.name, TOP)
    return Value(text=f"{name} {format_percent(top.share)}", raw=top.name)


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


def _part(ns: int, whole: int) -> Value:
    share = ns / whole if whole else 0.0
    return Value(text=format_percent(share), raw=ns, tone="dim" if share < 0.005 else "plain")


VIEW = View(key="trace_path", title="Critical path", needs=("trace",), table=build)
