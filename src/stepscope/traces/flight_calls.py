"""Which calls of different ranks are the same call, and the words for them.

One process group as all ranks' flight recorders together show it.

Who waits for whom: collectives that some rank never called, never got out of, or that nobody got out of.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepscope.core.dataclass import dataclass, record
from stepscope.core.words import counted, grouped, plural, ranges
from stepscope.records.nccl import Called, FlightDump, FlightEntry, FlightFinding, FlightGroup, Kind

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""No rank gets out of these before every rank is in; from the others a root or a leaf may leave early."""

# Whose elements must be as many on every rank. gather and scatter have theirs on one rank only on the other side; an
# all_gather may take pieces of different sizes, but hands out the same whole.
_BY_INPUT = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "gather")
_BY_OUTPUT = ("all_gather", "scatter")


@dataclass(frozen=True, slots=True)
class Signature:
    """What all ranks of a group must agree on in one call; None for what ranks may do differently."""

    op: str
    numel: int | None
    dtype: str | None


def signature(entry: FlightEntry) -> Signature:
    """Op, elements and dtype as they must be equal on every rank. Shapes may differ: only elements are sent."""
    if entry.op in _BY_INPUT or entry.is_p2p:
        return Signature(entry.op, _total_numel(entry.input_sizes), _dtypes_text(entry.input_dtypes))
    if entry.op in _BY_OUTPUT:
        return Signature(entry.op, _total_numel(entry.output_sizes), _dtypes_text(entry.output_dtypes))
    if entry.op == "all_to_all":
        return Signature(entry.op, None, _dtypes_text(entry.input_dtypes))
    return Signature(entry.op, None, None)


def call_text(entries: Sequence[FlightEntry]) -> str:
    """``all_reduce [100] float32``: the tensors passed in, or handed out where that is what all ranks share."""
    return " and ".join(_entry_text(e) for e in entries)


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0, 2``, ``ranks 0-7, 9``."""
    return f"{plural(len(ranks), 'rank')} {ranges(ranks, least=3)}"


def group_text(name: str, description: str | None) -> str:
    if description == "default_pg":
        return "the default group"
    return f"group {name}" if description is None else f'group {name} "{description}"'


def _entry_text(entry: FlightEntry) -> str:
    """Write a call with the shapes and type of what it moves: ``all_reduce [1024] float32``."""
    by_output = entry.op in _BY_OUTPUT
    sizes = entry.output_sizes if by_output else entry.input_sizes
    dtypes = entry.output_dtypes if by_output else entry.input_dtypes
    shapes = [f"[{', '.join(map(str, s))}]" for s in sizes]
    if len(shapes) > 3:
        shapes = [*shapes[:2], f"... {len(shapes)} tensors"]
    dtype = _dtypes_text(dtypes)
    return " ".join([entry.op, *shapes, *([dtype] if dtype else [])])


def _total_numel(sizes: Sequence[Sequence[int]]) -> int | None:
    return sum(math.prod(s) for s in sizes) if sizes else None


def _dtypes_text(dtypes: Sequence[str]) -> str | None:
    return "+".join(sorted(set(dtypes))) or None


DEFAULT = "default_pg"


@record
class GroupOnRank:
    """One rank's collectives in one group.

    calls: entries by sequence; coalesced ones share one. last_called: highest sequence this rank has reached, None where
    the dump does not tell. last_completed: up to where it has finished, None likewise. p2p: its unfinished
    point-to-point calls, in order.
    """

    rank: int
    calls: Mapping[int, Sequence[FlightEntry]]
    last_called: int | None
    last_completed: int | None
    p2p: Sequence[FlightEntry]

    def pending(self) -> list[int]:
        """Sequences of collectives called and not finished, in order."""
        if self.calls:
            return [s for s, calls in sorted(self.calls.items()) if any(c.state != "completed" for c in calls)]
        if self.last_called is None or self.last_completed is None:
            return []
        return list(range(self.last_completed + 1, self.last_called + 1))


@record
class GroupView:
    """One process group as all dumps together show it. members: global ranks, as far as any dump knows; lines: by rank, of
    those whose recorder could be read."""

    name: str
    description: str | None
    members: tuple[int, ...]
    lines: Mapping[int, GroupOnRank]

    @property
    def text(self) -> str:
        return group_text(self.name, self.description)

    @property
    def without_dump(self) -> tuple[int, ...]:
        return tuple(r for r in self.members if r not in self.lines)

    def calls_at(self, sequence: int) -> dict[int, Sequence[FlightEntry]]:
        """Return by rank the calls under ``sequence``, of ranks that kept it."""
        return {r: line.calls[sequence] for r, line in self.lines.items() if sequence in line.calls}

    def first_ns(self, sequence: int) -> int | None:
        """Return the wall clock of the first call under ``sequence``, ns; None where unknown."""
        times = [c.created_ns for calls in self.calls_at(sequence).values() for c in calls]
        return min((t for t in times if t is not None), default=None)

    def finding(self, kind: Kind, ranks: Sequence[int], sentence: str, *, sequence: int, **more: Any) -> FlightFinding:
        """Make a finding about this group at ``sequence``. more: its other fields."""
        return FlightFinding(
            kind=kind, ranks=tuple(ranks), sentence=sentence, group=self.name, group_description=self.description,
            sequence=sequence, **{"first_ns": self.first_ns(sequence), **more},
        )  # fmt: skip


def group_views(dumps: Sequence[FlightDump], *, world_size: int | None) -> tuple[GroupView, ...]:
    """Return every process group that any dump knows, by name; groups of one name with different members stay apart."""
    readable = [d for d in dumps if d.unavailable is None]
    descriptions = _members_by_name(readable, world_size)
    views = []
    for (name, members), description in descriptions.items():
        inside = [d for d in readable if d.rank in members]
        of_group = {d.rank: [e for e in d.entries if e.group == name] for d in inside}
        counted = not any(e.is_p2p for entries in of_group.values() for e in entries)
        lines = {d.rank: _group_on_rank(d, name, of_group[d.rank], use_counters=counted) for d in inside}
        views.append(GroupView(name=name, description=description, members=members, lines=lines))
    return tuple(views)


def _members_by_name(
    dumps: Sequence[FlightDump], world_size: int | None
) -> dict[tuple[str, tuple[int, ...]], str | None]:
    """Return (name, ranks) -> description of every group; ranks that no dump lists are guessed."""
    described: dict[str, str | None] = {}
    listed: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    seen: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for group in dump.groups:
            described[group.name] = described.get(group.name) or group.description
            seen[group.name].add(dump.rank)
            if group.ranks is not None:
                listed[group.name].add(group.ranks)
    descriptions: dict[tuple[str, tuple[int, ...]], str | None] = {}
    for name, description in described.items():
        for ranks in sorted(listed[name]) or [_guessed_members(description, seen[name], world_size)]:
            descriptions[name, ranks] = description
    return descriptions


def _guessed_members(description: str | None, seen: Iterable[int], world_size: int | None) -> tuple[int, ...]:
    """Guess members that no dump lists: everybody for the default group, else those that called something in it."""
    if description == DEFAULT and world_size is not None:
        return tuple(range(world_size))
    return tuple(sorted(seen))


def _group_on_rank(dump: FlightDump, name: str, entries: Sequence[FlightEntry], *, use_counters: bool) -> GroupOnRank:
    """Return what one rank called in a group: its calls by number, the last one called and completed, and its messages."""
    calls = grouped((entry for entry in entries if not entry.is_p2p), lambda entry: entry.sequence)
    counters = next((g for g in dump.groups if g.name == name), FlightGroup(name=name))
    enqueued = counters.last_enqueued if use_counters else None
    completed = counters.last_completed if use_counters else None
    highest = max(calls, default=None)
    reached = [s for s in (highest, enqueued) if s is not None]
    if not reached and dump.kept == "all":
        reached = [0]
    pending = [s for s, c in calls.items() if any(e.state != "completed" for e in c)]
    if completed is None and calls and dump.kept != "pending":
        completed = min(pending) - 1 if pending else highest
    return GroupOnRank(
        rank=dump.rank,
        calls=calls,
        last_called=max(reached, default=None),
        last_completed=completed,
        p2p=[e for e in entries if e.is_p2p and e.state != "completed"],
    )


def missing_calls(group: GroupView) -> list[FlightFinding]:
    """Report ranks that never called a collective in which others wait: one finding for each place where ranks stopped."""
    reached = {r: line.last_called for r, line in group.lines.items() if line.last_called is not None}
    top = max(reached.values(), default=0)
    stopped: dict[int, list[int]] = defaultdict(list)
    for rank, last in sorted(reached.items()):
        if last < top:
            stopped[last + 1].append(rank)
    findings = []
    for sequence, absent in sorted(stopped.items()):
        called = tuple(sorted(r for r, last in reached.items() if last >= sequence))
        waiting = tuple(r for r in called if group.lines[r].pending())
        inside = tuple(r for r in called if sequence in group.lines[r].pending())
        if not waiting:
            continue  # nobody is kept from anything: they are only behind, as the leaves of a broadcast are
        call = _call_at(group, sequence)
        where = (
            f"in which {_wait_text(inside)}"
            if inside
            else f"which {ranks_text(called)} called; {_wait_text(waiting)} in later ones"
        )
        findings.append(
            group.finding(
                "missing_call",
                absent,
                f"{ranks_text(absent)} never called collective {sequence} of {group.text}{_in_brackets(call)}, {where}",
                sequence=sequence,
                called=called,
                waiting=inside or waiting,
                expected=call,
            )
        )
    return findings


def stuck_inside(group: GroupView) -> list[FlightFinding]:
    """Report ranks still inside a collective that others have left, though nobody can leave it before all are in.

    Their device or network does not go on, or its clean-up thread does not run.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for rank, line in sorted(group.lines.items()):
        done = max((_last_completed(o) for r, o in group.lines.items() if r != rank), default=0)
        first = next((s for s in line.pending() if s <= done and _is_synchronising(line, s)), None)
        if first is not None:
            places[first].append(rank)
    findings = []
    for sequence, ranks in sorted(places.items()):
        out = tuple(r for r, line in sorted(group.lines.items()) if _last_completed(line) >= sequence)
        call = _call_at(group, sequence, ranks)
        ahead = max(_last_completed(group.lines[r]) for r in out) - sequence
        more = f" and {counted(ahead, 'later one')}" if ahead else ""
        verb = "is" if len(ranks) == 1 else "are"
        findings.append(
            group.finding(
                "stuck_inside",
                ranks,
                f"{ranks_text(ranks)} {verb} stuck inside collective {sequence} of {group.text}"
                f"{_in_brackets(call)}: {ranks_text(out)} finished it{more}",
                sequence=sequence,
                called=tuple(sorted((*ranks, *out))),
                waiting=tuple(ranks),
                expected=call,
            )
        )
    return findings


def unfinished(group: GroupView) -> FlightFinding | None:
    """The first collective that every rank with a dump is in and none is out of."""
    firsts = {min(line.pending(), default=None) for line in group.lines.values()}
    sequence = next(iter(firsts), None)
    if sequence is None or len(firsts) > 1 or len(group.members) < 2:
        return None
    absent = group.without_dump
    waiting = tuple(sorted(group.lines))
    call = _call_at(group, sequence)
    what = f"collective {sequence} of {group.text}{_in_brackets(call)}"
    if absent:
        text = f"{_wait_text(waiting)} in {what}; {ranks_text(absent)} left no dump, so it is unknown whether they called it"
    else:
        text = f"all {len(waiting)} ranks called {what} and none left it"
    kind: Kind = "incomplete_dump" if absent else "stuck_inside"
    return group.finding(
        kind, absent, text, sequence=sequence, called=waiting, waiting=waiting, expected=call, cause=False
    )


def point_to_point(group: GroupView) -> list[FlightFinding]:
    """Report sends without their recv and the reverse, and pairs that differ, among calls that have not finished.

    Point-to-point calls have no common number: the n-th unfinished of one pair of ranks belongs to the n-th of the
    other side.
    """
    calls = grouped(
        (entry for line in group.lines.values() for entry in line.p2p),
        lambda entry: (entry.op == "send", _message_pair(group, entry)),
    )
    findings = []
    for pair in sorted({pair for _, pair in calls if pair is not None}):
        source, destination = pair
        if source not in group.lines or destination not in group.lines:
            continue
        ours, theirs = calls.get((True, pair), []), calls.get((False, pair), [])
        if len(ours) != len(theirs):
            findings.append(_unmet_finding(group, source, destination, ours, theirs))
        for send, recv in zip(ours, theirs, strict=False):
            if signature(send).numel != signature(recv).numel or signature(send).dtype != signature(recv).dtype:
                findings.append(_unequal_finding(group, source, destination, send, recv))
                break
    return findings


def _unmet_finding(
    group: GroupView, source: int, destination: int, sends: Sequence[FlightEntry], recvs: Sequence[FlightEntry]
) -> FlightFinding:
    """Return the finding of a send or receive whose other side was never called."""
    waits_to_send = len(sends) > len(recvs)
    waiting, absent = (source, destination) if waits_to_send else (destination, source)
    entry = sends[len(recvs)] if waits_to_send else recvs[len(sends)]
    done, missing = ("send to", "recv from") if waits_to_send else ("recv from", "send to")
    return group.finding(
        "missing_call",
        [absent],
        f"rank {absent} never called the {missing} rank {waiting} that rank {waiting}'s {done} rank {absent} "
        f"waits for ({call_text([entry])}, {group.text})",
        sequence=entry.sequence,
        called=(waiting,),
        waiting=(waiting,),
        expected=call_text([entry]),
        is_p2p=True,
        first_ns=entry.created_ns,
    )


def _unequal_finding(
    group: GroupView, source: int, destination: int, send: FlightEntry, recv: FlightEntry
) -> FlightFinding:
    """Return the finding of a message whose two sides differ in size or type."""
    sizes = signature(send).numel != signature(recv).numel
    return group.finding(
        "size_mismatch" if sizes else "dtype_mismatch",
        [destination],
        f"rank {source} called {call_text([send])} to rank {destination}, "
        f"which called {call_text([recv])} from it ({group.text})",
        sequence=send.sequence,
        called=(source, destination),
        waiting=(source, destination),
        expected=call_text([send]),
        found=(Called(ranks=(destination,), call=call_text([recv])),),
        is_p2p=True,
        first_ns=send.created_ns,
    )


def _message_pair(group: GroupView, entry: FlightEntry) -> tuple[int, int] | None:
    """Return the global ranks (from, to) of a message."""
    if entry.source is None or entry.destination is None:
        return None
    if max(entry.source, entry.destination) >= len(group.members):
        return None
    return group.members[entry.source], group.members[entry.destination]


def _last_completed(line: GroupOnRank) -> int:
    return line.last_completed or 0


def _is_synchronising(line: GroupOnRank, sequence: int) -> bool:
    calls = line.calls.get(sequence, ())
    return bool(calls) and all(c.op in SYNCHRONISING for c in calls)


def _call_at(group: GroupView, sequence: int, ranks: Iterable[int] | None = None) -> str | None:
    calls = group.calls_at(sequence)
    kept = [calls[r] for r in (calls if ranks is None else ranks) if r in calls]
    return call_text(kept[0]) if kept else None


def _in_brackets(call: str | None) -> str:
    return "" if call is None else f" ({call})"


def _wait_text(ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"
