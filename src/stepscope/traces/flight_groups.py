"""One process group as all ranks' flight recorders together show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from stepscope.core.dataclass import dataclass
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.traces.flight_calls import group_text

DEFAULT = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """members: global ranks, as far as any dump knows; lines: by rank, of those whose recorder could be read."""

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
        """By rank, of those that kept it."""
        return {r: line.calls[sequence] for r, line in self.lines.items() if sequence in line.calls}

    def first_ns(self, sequence: int) -> int | None:
        """Wall clock of the first call of it; None where unknown."""
        times = [c.created_ns for calls in self.calls_at(sequence).values() for c in calls]
        return min((t for t in times if t is not None), default=None)


def group_views(dumps: Sequence[FlightDump], *, world_size: int | None) -> tuple[GroupView, ...]:
    """Every process group that any dump knows, by name; of one name with different members, one each."""
    readable = [d for d in dumps if d.unavailable is None]
    known = _members_by_name(readable, world_size)
    views = []
    for (name, members), description in known.items():
        inside = [d for d in readable if d.rank in members]
        of_group = {d.rank: [e for e in d.entries if e.group == name] for d in inside}
        counted = not any(e.is_p2p for entries in of_group.values() for e in entries)
        lines = {d.rank: _line(d, name, of_group[d.rank], use_counters=counted) for d in inside}
        views.append(GroupView(name=name, description=description, members=members, lines=lines))
    return tuple(views)


def _members_by_name(
    dumps: Sequence[FlightDump], world_size: int | None
) -> dict[tuple[str, tuple[int, ...]], str | None]:
    described: dict[str, str | None] = {}
    listed: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    seen: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for group in dump.groups:
            described[group.name] = described.get(group.name) or group.description
            seen[group.name].add(dump.rank)
            if group.ranks is not None:
                listed[group.name].add(group.ranks)
    found: dict[tuple[str, tuple[int, ...]], str | None] = {}
    for name, description in described.items():
        for ranks in sorted(listed[name]) or [_guessed_members(description, seen[name], world_size)]:
            found[name, ranks] = description
    return found


def _guessed_members(description: str | None, seen: Iterable[int], world_size: int | None) -> tuple[int, ...]:
    """Where no dump lists them: everybody for the default group, else those that called something in it."""
    if description == DEFAULT and world_size is not None:
        return tuple(range(world_size))
    return tuple(sorted(seen))


def _line(dump: FlightDump, name: str, entries: Sequence[FlightEntry], *, use_counters: bool) -> GroupOnRank:
    calls: dict[int, list[FlightEntry]] = defaultdict(list)
    for entry in entries:
        if not entry.is_p2p:
            calls[entry.sequence].append(entry)
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
        calls=dict(calls),
        last_called=max(reached, default=None),
        last_completed=completed,
        p2p=[e for e in entries if e.is_p2p and e.state != "completed"],
    )
