"""The same collective on all ranks: by Comms Id or sequence number where recorded, else by group and order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from stepscope.records.trace_collectives import CollectiveGroup, Instance, Member, RankCollective, RankCommunication
from stepscope.traces.alignment import base_shifts
from stepscope.traces.collective_calls import TOGETHER
from stepscope.traces.events import column
from stepscope.traces.order_matching import Place, RankOrder, pair, places, step_shift

Key = tuple[object, ...]

_UNEVEN = ("all_to_all", "all_to_all_v", "unknown")
"""Ranks may pass different sizes to these."""


def match_collectives(ranks: Sequence[RankCommunication]) -> tuple[Instance, ...]:
    """Put every collective of every rank in exactly one instance, in order of the earliest start. Near-linear.

    Point-to-point messages are matched by source and destination, or by number in groups of two; the number that
    NCCL gives them counts each rank's own messages and does not match otherwise.
    """
    names = _group_keys(ranks)
    numbered: dict[Key, list[tuple[Member, str]]] = defaultdict(list)
    ordered: dict[Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    alone: list[Instance] = []
    by_stream = _streams_agree(ranks)
    for rank in ranks:
        times_seen: dict[Key, int] = defaultdict(int)
        for position, c in enumerate(rank.collectives):
            member = Member(rank=rank.rank, position=position)
            key, method = _match_key(c, names)
            if key is not None:
                # Coalesced collectives share one number.
                numbered[(*key, times_seen[key])].append((member, method))
                times_seen[key] += 1
                continue
            channel = _order_key(c, names, by_stream=by_stream)
            if channel is None:
                alone.append(_lone_instance(member))
            else:
                ordered[channel][rank.rank].append(position)
    look = {r.rank: r for r in ranks}
    instances = alone + [_numbered_instance(members, look) for members in numbered.values()]
    shifts, hosts = base_shifts(ranks), {r.rank: r.host for r in ranks}
    for by_rank in ordered.values():
        instances.extend(_instances_by_order(by_rank, look, shifts, hosts))
    return _instances_by_time(instances, look, shifts)


def _match_key(c: RankCollective, names: dict[int, Key | None]) -> tuple[Key | None, str]:
    """Return the key that all ranks' parts of one collective share, and what it rests on; (None, "") where order alone
    tells."""
    if c.op == "send_recv" and (c.peers is not None or c.group is None or c.group.size != 2):
        return None, ""
    if c.comms_id is not None:
        return ("id", c.comms_id), "comms_id"
    key = names.get(id(c.group))
    if c.sequence is not None and key is not None:
        return ("sequence", key, c.op == "send_recv", c.sequence), "sequence"
    return None, ""


def _order_key(c: RankCollective, names: dict[int, Key | None], *, by_stream: bool) -> Key | None:
    """Return what puts collectives in one order on all ranks: their group; where it is unknown, their stream."""
    group = names.get(id(c.group))
    if c.op == "send_recv":
        if c.peers is not None:
            return ("peers", group, c.peers)
        return ("pair", group) if group is not None and c.group is not None and c.group.size == 2 else None
    if group is not None:
        return ("group", group)
    return ("stream", c.stream if by_stream else None)


def _streams_agree(ranks: Sequence[RankCommunication]) -> bool:
    """Whether collectives of unknown group use the same streams on all ranks, so that a stream names a group."""
    used = {frozenset(c.stream for c in r.collectives if c.group is None) for r in ranks}
    return len(used) == 1


def _group_keys(ranks: Iterable[RankCommunication]) -> dict[int, Key | None]:
    """Map the id of a group object to what names that group on all ranks; None where it cannot be told.

    Groups of one name are told apart by their members (tensor-parallel groups often share a name). A number stands for
    them: keys are hashed once a collective, and a group may have thousands.
    """
    groups: dict[int, CollectiveGroup] = {}
    members: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for rank in ranks:
        for c in rank.collectives:
            if c.group is not None and id(c.group) not in groups:
                groups[id(c.group)] = c.group
                if c.group.ranks is not None:
                    members[c.group.name].add(c.group.ranks)
    keys: dict[int, Key | None] = {}
    numbers: dict[Key, int] = {}
    for ident, group in groups.items():
        group_ranks = group.ranks
        if group_ranks is None and len(members[group.name]) == 1:
            group_ranks = next(iter(members[group.name]))
        key = (group.name, group_ranks or group.size)
        keys[ident] = (group.name, numbers.setdefault(key, len(numbers))) if group.name or group_ranks else None
    return keys


def _numbered_instance(members: list[tuple[Member, str]], look: dict[int, RankCommunication]) -> Instance:
    parts = [m for m, _ in members]
    ops = {_collective_of(m, look).op for m in parts} - {"unknown"}
    sizes = {_collective_of(m, look).size_bytes for m in parts} - {None}
    doubtful = len(ops) > 1 or (len(sizes) > 1 and ops.isdisjoint(_UNEVEN))
    return _instance_of(parts, members[0][1], 0.5 if doubtful else 1.0)


def _instances_by_order(
    by_rank: dict[int, list[int]],
    look: dict[int, RankCommunication],
    shifts: dict[int, int],
    hosts: dict[int, str | None],
) -> list[Instance]:
    """Match one group's collectives. The rank with most of them leads; the others' are paired with its, and with each other
    where they captured what it did not."""
    if len(by_rank) == 1:
        return [_lone_instance(Member(rank=rank, position=p)) for rank, places in by_rank.items() for p in places]
    leader = min(by_rank, key=lambda r: (-len(by_rank[r]), r))
    codes = _Codes()
    lead = codes.line(look[leader], by_rank[leader], shifts[leader], first=leader == min(by_rank))
    members: dict[object, list[Member]] = {i: [Member(rank=leader, position=p)] for i, p in enumerate(by_rank[leader])}
    sure: dict[object, float] = {}
    methods: dict[object, str] = {}
    place_of: dict[Place, int] = {}
    leftover: list[Instance] = []

    def add(at: object, member: Member, confidence: float, method: str) -> None:
        members.setdefault(at, []).append(member)
        sure[at] = min(sure.get(at, 1.0), confidence)
        if methods.get(at) in (None, "order"):
            methods[at] = method

    for rank in sorted(set(by_rank) - {leader}):
        line = codes.line(look[rank], by_rank[rank], shifts[rank], first=rank == min(by_rank))
        one_clock = hosts[rank] is not None and hosts[rank] == hosts[leader]
        if (shift := step_shift(lead, line, one_clock=one_clock)) is not None:
            place_of = place_of or {place: i for i, place in enumerate(places(lead))}
            for i, (step, op, size, count) in enumerate(places(line)):
                place = (step + shift.steps, op, size, count)
                at = place_of.get(place, place)
                method = "order" if at == i else "order_shifted"
                add(at, Member(rank=rank, position=by_rank[rank][i]), shift.confidence, method)
            continue
        pairing = pair(lead, line, one_clock=one_clock)
        for position, at in zip(by_rank[rank], pairing.to.tolist(), strict=True):
            member = Member(rank=rank, position=position)
            if pairing.method == "order_and_time" and at == -1:
                leftover.append(_lone_instance(member))
                continue
            add(at, member, pairing.confidence, pairing.method)
    return leftover + [_instance_of(m, methods.get(at, "alone"), sure.get(at)) for at, m in members.items()]


def _op_with_direction(c: RankCollective, *, first: bool) -> str:
    """Return the operation, and of a message between two ranks its direction: what one sends is what the other receives."""
    if c.op != "send_recv" or c.direction is None or c.peers is not None:
        return c.op
    return f"{c.op} {'from' if (c.direction == 'send') == first else 'to'} the first"


class _Codes:
    """Numbers for ops and sizes, the same for all ranks of a group; 0 = unknown, or may differ between ranks."""

    def __init__(self) -> None:
        self._ops: dict[str, int] = {"unknown": 0}

    def line(self, rank: RankCommunication, positions: list[int], shift_ns: int, *, first: bool) -> RankOrder:
        """Return the collectives at ``positions`` in codes. first: this is the lowest of the ranks that are compared."""
        chosen = [rank.collectives[p] for p in positions]
        return RankOrder(
            op=np.array(
                [self._ops.setdefault(_op_with_direction(c, first=first), len(self._ops)) for c in chosen],
                dtype=np.int64,
            ),
            together=np.array([c.op in TOGETHER for c in chosen], dtype=np.bool_),
            size=np.array(
                [0 if c.size_bytes is None or c.op in _UNEVEN else c.size_bytes + 1 for c in chosen], dtype=np.int64
            ),
            step=column(chosen, "step"),
            starts_ns=column(chosen, "start_ns") + shift_ns,
            ends_ns=column(chosen, "end_ns") + shift_ns,
            called_ns=column(chosen, "called_ns") + shift_ns,
        )


def _instances_by_time(
    instances: list[Instance], look: dict[int, RankCommunication], shifts: dict[int, int]
) -> tuple[Instance, ...]:
    """Return the instances in the order of their first start on the common clock."""

    def start(instance: Instance) -> tuple[int, int, int]:
        first = min(_collective_of(m, look).start_ns + shifts[m.rank] for m in instance.members)
        return first, instance.members[0].rank, instance.members[0].position

    return tuple(sorted(instances, key=start))


def _instance_of(members: list[Member], method: str, confidence: float | None) -> Instance:
    if len(members) == 1:
        return _lone_instance(members[0])
    return Instance(members=tuple(sorted(members, key=lambda m: m.rank)), method=method, confidence=confidence)


def _lone_instance(member: Member) -> Instance:
    return Instance(members=(member,), method="alone", confidence=None)


def _collective_of(member: Member, look: dict[int, RankCommunication]) -> RankCollective:
    return look[member.rank].collectives[member.position]
