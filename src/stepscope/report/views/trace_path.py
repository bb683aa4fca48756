"""What decides a step's length: the critical path, and the ranks that the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_collectives import JobCollectives
from stepscope.records.trace_path import (
    CriticalPath,
    CrossRankPath,
    PathContributor,
    PathParts,
    Straggler,
    StragglerReport,
)
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.kernel_names import elided, short_names
from stepscope.report.shared.traces import gaps, many_note, rank_column, shared, standing_out
from stepscope.report.table import Column, Table, Value, duration, lead_column, percent, tabled, whole, wording
from stepscope.report.views import View

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


def path_table(summary: TraceSummary) -> Table:
    """Return the table.

    One rank: its parts, each with what took most of it. Several: a row each, after the path across them.
    """
    passes = [p for p in summary.ranks if p.path is not None]
    notes = gaps(summary, "path", otherwise="the path could not be followed in this trace")
    if summary.path_unavailable is not None:
        notes = (*notes, f"no path across ranks: {summary.path_unavailable}")
    if len(passes) == 1 and (summary.path is None or len(summary.ranks) == 1):
        return _one_path_table(passes[0], notes)
    return _paths_table(summary.path, passes, notes)


def _part_ns(parts: PathParts, part: str) -> int:
    value: int = getattr(parts, f"{part}_ns")
    return value


def _one_path_table(rank_pass: RankPass, notes: tuple[str, ...]) -> Table:
    """Return the table of one rank's path: its parts, and what takes most of it."""
    path = rank_pass.path
    assert path is not None
    total = path.parts.total_ns
    names = short_names((c.name for c in path.contributors if c.part in _KERNELS), limit=NAME)
    between = "host threads and device" if path.source == "device" else "threads"
    items: list[tuple[str, PathContributor | None, int]] = []
    for part in sorted(PARTS, key=lambda p: -_part_ns(path.parts, p)):
        ns = _part_ns(path.parts, part)
        if not ns:
            continue
        inside = [c for c in path.contributors if c.part == part]
        items.append((part, None, ns))
        # A part that is one thing under its own name needs no second line.
        if any(c.name not in (part, _ITSELF.get(part)) for c in inside):
            items += [(part, c, c.total_ns) for c in inside]

    def share(item: tuple[str, PathContributor | None, int]) -> Value:
        fraction = item[2] / total if total else 0.0
        return Value(format_percent(fraction), fraction, tone="plain" if item[1] is None else "dim")

    def what(item: tuple[str, PathContributor | None, int]) -> Value:
        """Write the contributor of a row; the first row is the whole."""
        contributor = item[1]
        return (
            wording("", "all")
            if contributor is None
            else wording(names.get(contributor.name) or elided(contributor.name, NAME), contributor.name)
        )

    return tabled(
        "path",
        "Critical path",
        items,
        lead_column("part", "part", lambda i: wording(PARTS[i[0]] if i[1] is None else "", i[0])),
        lead_column("name", "what", what),
        Column("duration", "on the path", "2", duration),
        Column("share", "share", share, percent),
        footnotes=(
            f"rank {path.rank}: {format_duration(total)} long, {counted(path.switches, 'change')} between {between}; "
            "the parts sum to it, under each what takes most of it",
            "shortening what is not on the path changes nothing",
            *_inferred_note(path.inferred),
        ),
        notes=notes,
    )


_KERNELS = ("compute", "communication", "memory")


def _inferred_note(count: int) -> tuple[str, ...]:
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


def _paths_table(across: CrossRankPath | None, passes: list[RankPass], notes: tuple[str, ...]) -> Table:
    """Return the table of the paths of several ranks, with the one across ranks first."""
    items = []
    if across is not None:
        total = across.total_ns
        items.append(_Line("all", "all", _summed_parts(across), total, total))
        own = [(s.rank, s.parts) for s in across.ranks if s.parts.total_ns]
        for rank, parts in sorted(own, key=lambda x: -x[1].total_ns):
            items.append(_Line(f"on {rank}", f"on {rank}", parts, parts.total_ns, total))
    for rank_pass in standing_out(passes, lambda p: p.path.parts.total_ns if p.path else 0):
        if rank_pass.path is not None:
            whole_ns, rank = rank_pass.path.parts.total_ns, rank_pass.facts.rank
            items.append(
                _Line(str(rank), rank, rank_pass.path.parts, whole_ns, whole_ns, _top_contributor(rank_pass.path))
            )

    def length(line: _Line) -> Value:
        alone = line.length_ns == line.whole_ns
        return duration(line.length_ns) if alone else shared(line.length_ns, line.whole_ns)

    def part_of(part: str) -> Callable[[_Line], Value]:
        return lambda line: _part_value(_part_ns(line.parts, part), line.length_ns)

    return tabled(
        "path",
        "Critical path",
        items,
        lead_column("path", "path", lambda line: wording(line.name, line.raw), whole),
        Column("total", "length", length, duration),
        *(Column(part, _TITLES[part], part_of(part), duration) for part in PARTS),
        Column("top", "most of it", "top", drop=1),
        footnotes=_path_footnotes(across, len(passes)),
        notes=notes,
    )


def _top_contributor(path: CriticalPath) -> Value | None:
    """Return what takes most of it under one name."""
    if not path.contributors:
        return None
    top = path.contributors[0]
    name = short_names([top.name], limit=TOP)[top.name] if top.part in _KERNELS else elided(top.name, TOP)
    return Value(f"{name} {format_percent(top.share)}", top.name)


def _path_footnotes(across: CrossRankPath | None, ranks: int) -> tuple[str, ...]:
    """Say where the path across ranks ends, and what its parts are."""
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


def _summed_parts(across: CrossRankPath) -> PathParts:
    sums = {f"{part}_ns": sum(_part_ns(s.parts, part) for s in across.ranks) for part in PARTS}
    sums["communication_ns"] += across.transfer_ns
    return PathParts(**sums)


def _part_value(ns: int, whole: int) -> Value:
    share = ns / whole if whole else 0.0
    return Value(format_percent(share), ns, tone="dim" if share < 0.005 else "plain")


CAUSES = {
    "compute": "computation",
    "memory": "copies",
    "host_late": "host not launching",
    "sync": "host waiting for the device",
    "data": "data loading",
    "launch_latency": "launch latency",
    "kernel_gap": "gaps between kernels",
    "dependency": "waiting on streams",
    "unknown": "idle, cause unknown",
}
"""Kinds of own time in words."""


def stragglers_table(summary: TraceSummary) -> Table:
    """Return the table: one row a straggler; without one the report's own words stand below."""
    report = summary.stragglers
    stragglers = report.stragglers if report is not None else ()
    table = tabled(
        "stragglers",
        "Stragglers",
        stragglers,
        rank_column(lambda s: s.rank),
        Column("kind", "kind", "kind"),
        Column(
            "share_of_skew",
            "of skew",
            lambda s: percent(s.share_of_skew, tone="bad" if s.share_of_skew >= 0.5 else "warn"),
            percent,
        ),
        Column("times_last", "came last", lambda s: wording(f"{s.times_last} of {s.instances}", s.times_last), whole),
        Column("late", "behind peers", "late_ns", duration, short="behind"),
        Column("confidence", "certainty", _certainty_value),
        Column("cause", "why", lambda s: wording(_why_late_text(s), s.cause)),
        Column("saved", "worth up to", "saved_ns", duration, short="worth"),
        notes=_stragglers_notes(summary, report),
    )
    return replace(table, footnotes=_stragglers_footnotes(summary, stragglers))


def _certainty_value(s: Straggler) -> Value:
    """Write p, or the excess with its interval."""
    if s.p_value is not None:
        return Value(f"p = {s.p_value:.2g}", s.p_value)
    if s.excess_ns is None:
        return wording(s.confidence)
    text = f"+{format_duration(s.excess_ns)} a step"
    if s.excess_low_ns is not None:
        text += f", at least {format_duration(s.excess_low_ns)}"
    return Value(text, s.excess_ns)


def _why_late_text(s: Straggler) -> str:
    """Write the cause and the kind of time that most exceeds the peers': ``launch-bound: +1.42 ms host not launching``."""
    longer = [c for c in s.causes if c.excess_ns > 0]
    cause = "cause unknown" if s.cause == "unknown" else s.cause
    if not longer:
        return cause
    most = max(longer, key=lambda c: c.excess_ns)
    return (
        f"{cause}: {CAUSES.get(most.cause, most.cause)} {format_duration(most.rank_ns)}, "
        f"peers {format_duration(most.peers_ns)}"
    )


def _stragglers_footnotes(summary: TraceSummary, stragglers: tuple[Straggler, ...]) -> tuple[str, ...]:
    """Say what the columns are, and what the ranks' clocks rest on."""
    lines = []
    if stragglers:
        lines = [
            "came last, behind peers (in sum, against their median): in the collectives it delayed; worth: what matching "
            f"{'its peers' if stragglers[0].peers else 'the second-slowest rank'} would save in this capture",
            f"certainty: {'; '.join(f'rank {s.rank} {s.confidence}' for s in stragglers[:3])}",
        ]
    elif summary.stragglers is not None and summary.stragglers.instances:
        lines = [summary.stragglers.text]  # an answer, not a gap
    return (*lines, *_least_and_most_waiting(summary.collectives))


def _least_and_most_waiting(job: JobCollectives | None) -> tuple[str, ...]:
    """Say who waited least and most: the other side of who came last."""
    totals = [t for t in job.totals if t.instances] if job is not None else []
    if len(totals) < 2 or not any(t.alone_ns for t in totals):
        return ()
    least, most = min(totals, key=lambda t: t.alone_ns), max(totals, key=lambda t: t.alone_ns)
    median = statistics.median([t.alone_ns for t in totals])
    return (
        f"waiting in all collectives: rank {least.rank} least ({format_duration(least.alone_ns)}), "
        f"median {format_duration(median)}, rank {most.rank} most ({format_duration(most.alone_ns)})",
    )


def _stragglers_notes(summary: TraceSummary, report: StragglerReport | None) -> tuple[str, ...]:
    """Say why there is no straggler, or what the named ones rest on."""
    if report is None:
        return ("no straggler can be named: no communication was recorded",)
    notes = [
        f"rank {s.rank}: {format_percent(s.largest_share)} of its skew comes from one collective"
        for s in report.stragglers
        if s.largest_share >= 0.5 and s.times_last > 1
    ]
    if not report.stragglers and not report.instances:
        notes.append(report.text)
        job = summary.collectives
        if job is not None and job.instances and len(job.clocks.fits) == 1:
            notes.append("give the traces of all ranks: who is late shows only between ranks")
    return tuple(notes)


VIEWS = (
    View("trace_path", table=path_table),
    View("trace_stragglers", table=stragglers_table),
)
