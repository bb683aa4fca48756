"""Who waits for whom: collectives that some rank never called, never got out of, or that nobody got out of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stepscope.core.words import counted
from stepscope.records.nccl import Called, FlightEntry, FlightFinding
from stepscope.traces.flight_calls import SYNCHRONISING, GroupOnRank, GroupView, call_text, ranks_text, signature


def missing_calls(group: GroupView) -> list[FlightFinding]:
    """Ranks that never called a collective in which others wait: one finding for each place where ranks stopped."""
    reached = {r: line.last_called for r, line in group.lines.items() if line.last_called is not None}
    top = max(reached.values(), default=0)
    stopped: dict[int, list[int]] = defaultdict(list)
    for rank, last in sorted(reached.items()):
        if last < top:
            stopped[last + 1].append(rank)
    found = []
    for sequence, absent in sorted(stopped.items()):
        called = tuple(sorted(r for r, last in reached.items() if last >= sequence))
        waiting = tuple(r for r in called if group.lines[r].pending())
        inside = tuple(r for r in called if sequence in group.lines[r].pending())
        if not waiting:
            continue  # nobody is kept from anything: they are only behind, as the leaves of a broadcast are
        call = _call_at(group, sequence)
        where = (
            f"in which {_wait(inside)}"
            if inside
            else f"which {ranks_text(called)} called; {_wait(waiting)} in later ones"
        )
        found.append(
            FlightFinding(
                kind="missing_call",
                ranks=tuple(absent),
                sentence=f"{ranks_text(absent)} never called collective {sequence} of {group.text}"
                f"{_in_brackets(call)}, {where}",
                group=group.name,
                group_description=group.description,
                sequence=sequence,
                called=called,
                waiting=inside or waiting,
                expected=call,
                first_ns=group.first_ns(sequence),
            )
        )
    return found


def stuck_inside(group: GroupView) -> list[FlightFinding]:
    """Ranks still inside a collective that others have left, though nobody can leave it before all are in.

    Their device or network does not go on, or its clean-up thread does not run.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for rank, line in sorted(group.lines.items()):
        done = max((_completed(o) for r, o in group.lines.items() if r != rank), default=0)
        first = next((s for s in line.pending() if s <= done and _synchronises(line, s)), None)
        if first is not None:
            places[first].append(rank)
    found = []
    for sequence, ranks in sorted(places.items()):
        out = tuple(r for r, line in sorted(group.lines.items()) if _completed(line) >= sequence)
        call = _call_at(group, sequence, ranks)
        ahead = max(_completed(group.lines[r]) for r in out) - sequence
        more = f" and {counted(ahead, 'later one')}" if ahead else ""
        verb = "is" if len(ranks) == 1 else "are"
        found.append(
            FlightFinding(
                kind="stuck_inside",
                ranks=tuple(ranks),
                sentence=f"{ranks_text(ranks)} {verb} stuck inside collective {sequence} of {group.text}"
                f"{_in_brackets(call)}: {ranks_text(out)} finished it{more}",
                group=group.name,
                group_description=group.description,
                sequence=sequence,
                called=tuple(sorted((*ranks, *out))),
                waiting=tuple(ranks),
                expected=call,
                first_ns=group.first_ns(sequence),
            )
        )
    return found


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
        text = f"{_wait(waiting)} in {what}; {ranks_text(absent)} left no dump, so it is unknown whether they called it"
    else:
        text = f"all {len(waiting)} ranks called {what} and none left it"
    return FlightFinding(
        kind="incomplete_dump" if absent else "stuck_inside",
        ranks=absent,
        sentence=text,
        group=group.name,
        group_description=group.description,
        sequence=sequence,
        called=waiting,
        waiting=waiting,
        expected=call,
        cause=False,
        first_ns=group.first_ns(sequence),
    )


def point_to_point(group: GroupView) -> list[FlightFinding]:
    """Sends without their recv and the reverse, and pairs that differ; of what has not finished.

    Point-to-point calls have no common number: the n-th unfinished of one pair of ranks belongs to the n-th of the
    other side.
    """
    sends: dict[tuple[int, int], list[FlightEntry]] = defaultdict(list)
    recvs: dict[tuple[int, int], list[FlightEntry]] = defaultdict(list)
    for line in group.lines.values():
        for entry in line.p2p:
            pair = _pair(group, entry)
            if pair is not None:
                (sends if entry.op == "send" else recvs)[pair].append(entry)
    found = []
    for pair in sorted(sends.keys() | recvs.keys()):
        source, destination = pair
        if source not in group.lines or destination not in group.lines:
            continue
        ours, theirs = sends[pair], recvs[pair]
        if len(ours) != len(theirs):
            found.append(_unmet(group, source, destination, ours, theirs))
        for send, recv in zip(ours, theirs, strict=False):
            if signature(send).numel != signature(recv).numel or signature(send).dtype != signature(recv).dtype:
                found.append(_unequal(group, source, destination, send, recv))
                break
    return found


def _unmet(
    group: GroupView,
    source: int,
    destination: int,
    sends: Sequence[FlightEntry],
    recvs: Sequence[FlightEntry],
) -> FlightFinding:
    waits_to_send = len(sends) > len(recvs)
    waiting, absent = (source, destination) if waits_to_send else (destination, source)
    entry = sends[len(recvs)] if waits_to_send else recvs[len(sends)]
    done, missing = ("send to", "recv from") if waits_to_send else ("recv from", "send to")
    return FlightFinding(
        kind="missing_call",
        ranks=(absent,),
        sentence=f"rank {absent} never called the {missing} rank {waiting} that rank {waiting}'s {done} rank {absent} "
        f"waits for ({call_text([entry])}, {group.text})",
        group=group.name,
        group_description=group.description,
        sequence=entry.sequence,
        called=(waiting,),
        waiting=(waiting,),
        expected=call_text([entry]),
        is_p2p=True,
        first_ns=entry.created_ns,
    )


def _unequal(group: GroupView, source: int, destination: int, send: FlightEntry, recv: FlightEntry) -> FlightFinding:
    sizes = signature(send).numel != signature(recv).numel
    return FlightFinding(
        kind="size_mismatch" if sizes else "dtype_mismatch",
        ranks=(destination,),
        sentence=f"rank {source} called {call_text([send])} to rank {destination}, "
        f"which called {call_text([recv])} from it ({group.text})",
        group=group.name,
        group_description=group.description,
        sequence=send.sequence,
        called=(source, destination),
        waiting=(source, destination),
        expected=call_text([send]),
        found=(Called(ranks=(destination,), call=call_text([recv])),),
        is_p2p=True,
        first_ns=send.created_ns,
    )


def _pair(group: GroupView, entry: FlightEntry) -> tuple[int, int] | None:
    """Global ranks (from, to)."""
    if entry.source is None or entry.destination is None:
        return None
    if max(entry.source, entry.destination) >= len(group.members):
        return None
    return group.members[entry.source], group.members[entry.destination]


def _completed(line: GroupOnRank) -> int:
    return line.last_completed or 0


def _synchronises(line: GroupOnRank, sequence: int) -> bool:
    calls = line.calls.get(sequence, ())
    return bool(calls) and all(c.op in SYNCHRONISING for c in calls)


def _call_at(group: GroupView, sequence: int, ranks: Iterable[int] | None = None) -> str | None:
    calls = group.calls_at(sequence)
    kept = [calls[r] for r in (calls if ranks is None else ranks) if r in calls]
    return call_text(kept[0]) if kept else None


def _in_brackets(call: str | None) -> str:
    return "" if call is None else f" ({call})"


def _wait(ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"
