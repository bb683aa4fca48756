"""All ranks' flight recorders side by side: who never called what, who called something else, who is stuck.

Calls are matched by group and sequence number, so that dumps may begin at different places; what a ring has dropped is
never taken for a call that was not made.

Where ranks of a group called different collectives under one number: the first such place of each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped, plural
from stepscope.records.nccl import MISMATCHES, Called, FlightDump, FlightFinding, Kind
from stepscope.store.importers import flight_recorder
from stepscope.store.layout import CellLayout
from stepscope.traces.flight_calls import (
    GroupView,
    Signature,
    call_text,
    group_views,
    missing_calls,
    point_to_point,
    ranks_text,
    signature,
    stuck_inside,
    unfinished,
)

Calls = tuple[Signature, ...]

NEAR = 16
"""How far apart the two places of one swapped or left-out call may lie."""


def mismatches(group: GroupView) -> list[FlightFinding]:
    """Report each set of ranks that first differs from the majority at one place. Only what two ranks kept is compared.

    What comes after the first difference of a group follows from it and is only counted.
    """
    by_rank = {
        rank: {s: tuple(signature(e) for e in calls) for s, calls in line.calls.items()}
        for rank, line in group.lines.items()
    }
    sequences = sorted({s for calls in by_rank.values() for s in calls})
    differing = [s for s in sequences if len({c[s] for c in by_rank.values() if s in c}) > 1]
    if not differing:
        return []
    first = differing[0]
    sides = _sides_by_call({rank: calls[first] for rank, calls in by_rank.items() if first in calls})
    usual, *others = sides
    return [
        _mismatch_finding(group, by_rank, first, sides[usual], sides[other], later=len(differing) - 1)
        for other in others
    ]


def _sides_by_call(calls: dict[int, Calls]) -> dict[Calls, list[int]]:
    """Group ranks by what they called: the largest side first, of equal ones that with the lowest rank."""
    sides = grouped(sorted(calls), calls.__getitem__)
    return dict(sorted(sides.items(), key=lambda side: (-len(side[1]), side[1][0])))


def _mismatch_finding(
    group: GroupView,
    by_rank: dict[int, dict[int, Calls]],
    sequence: int,
    usual: list[int],
    odd: list[int],
    *,
    later: int,
) -> FlightFinding:
    """Return the finding of the odd ranks that first differ from the usual ones at one sequence number: calls in another
    order, left out or of another kind. later: further places of the group that differ."""
    reference, deviant = by_rank[usual[0]], by_rank[odd[0]]
    expected = call_text(group.lines[usual[0]].calls[sequence])
    actual = call_text(group.lines[odd[0]].calls[sequence])
    at = f"collective {sequence} of {group.text}"
    ours, theirs = ranks_text(odd), ranks_text(usual)
    swapped = _swapped_place(reference, deviant, sequence)
    shift = None if swapped else _calls_ahead(reference, deviant, sequence)
    kind: Kind
    if swapped is not None:
        kind = "order_mismatch"
        text = f"{ours} called {actual} as {at} and {expected} as collective {swapped}; {theirs} in the opposite order"
    elif shift is not None and shift > 0:
        kind = "missing_call"
        which = at if shift == 1 else f"collectives {sequence} to {sequence + shift - 1} of {group.text}"
        text = (
            f"{ours} never called {which} ({expected}), which {theirs} called: its next call matches their earlier one"
        )
    elif shift is not None:
        kind = "order_mismatch"
        text = f"{ours} called {counted(-shift, 'collective')} more than {theirs}: {actual} as {at}"
    else:
        kind = _mismatch_kind(reference[sequence], deviant[sequence])
        text = f"{ours} called {actual} as {at}, {theirs} {expected}"
    if later and shift is None:
        text += f"; {counted(later, 'later collective')} of that group differ{'s' if later == 1 else ''} too"
    return group.finding(
        kind,
        odd,
        text,
        sequence=sequence,
        called=tuple(sorted((*usual, *odd))) if kind != "missing_call" else tuple(usual),
        waiting=tuple(
            sorted(r for r in (*usual, *odd) if _waits_there(group, r, sequence, displaced=shift is not None))
        ),
        expected=expected,
        found=(Called(ranks=tuple(odd), call=actual),),
    )


def _waits_there(group: GroupView, rank: int, sequence: int, *, displaced: bool) -> bool:
    """Return whether the rank waits due to it: in that very call, or in a later one where the numbers are displaced."""
    pending = group.lines[rank].pending()
    return any(s >= sequence for s in pending) if displaced else sequence in pending


def _mismatch_kind(usual: Calls, odd: Calls) -> Kind:
    if [c.op for c in usual] != [c.op for c in odd]:
        return "op_mismatch"
    if [c.numel for c in usual] != [c.numel for c in odd]:
        return "size_mismatch"
    return "dtype_mismatch"


def _swapped_place(reference: dict[int, Calls], deviant: dict[int, Calls], at: int) -> int | None:
    """The later place where each side made the other's call of this place."""
    return next(
        (s for s in range(at + 1, at + NEAR) if reference.get(s) == deviant[at] and deviant.get(s) == reference[at]),
        None,
    )


def _calls_ahead(reference: dict[int, Calls], deviant: dict[int, Calls], at: int) -> int | None:
    """Return k > 0 where from here on the deviant makes the calls that the others make k later, k < 0 where k earlier.

    It is None unless every call that both kept agrees under that shift, and None where they agree without one.
    """
    later = [s for s in reference if s > at and s in deviant]
    if later and all(reference[s] == deviant[s] for s in later):
        return None
    for distance in range(1, NEAR):
        for shift in (distance, -distance):
            early, late = (deviant, reference) if shift > 0 else (reference, deviant)
            pairs = [(call, late[s + distance]) for s, call in early.items() if s >= at and s + distance in late]
            # One pair that agrees far away may be chance.
            if (len(pairs) > 1 or (pairs and distance == 1)) and all(a == b for a, b in pairs):
                return shift
    return None


_ORDER: tuple[Kind, ...] = (
    "order_mismatch",
    "op_mismatch",
    "size_mismatch",
    "dtype_mismatch",
    "stuck_inside",
    "missing_call",
    "incomplete_dump",
)
_CIRCLE = " (these ranks wait for each other)"


def compare_dumps(dumps: Sequence[FlightDump], *, world_size: int | None = None) -> tuple[FlightFinding, ...]:
    """Return what went differently on different ranks, causes first; empty when nothing did.

    dumps: at most one a rank. world_size: None takes it from the dumps; with it, ranks without a dump are named.
    Differences in calls are facts. Waits are a snapshot: of a job that goes on they only say who was behind.
    """
    views = group_views(dumps, world_size=world_size)
    # What the dumps show.
    differing = [f for view in views for f in mismatches(view)]
    broken = {f.group for f in differing if f.waiting}
    waits = [f for view in views for f in _wait_findings(view, broken=view.name in broken)]
    open_ends = [f for view in views if (f := unfinished(view)) is not None]
    # Which of it is the cause of the rest.
    findings = [*differing, *_waits_with_causes(waits, differing, open_ends, views)]
    if not any(f.cause for f in findings):
        open_ends = _open_ends_with_causes(open_ends, views)
    lost = _lost_dump_findings(dumps, world_size, open_ends)
    return tuple(sorted((*findings, *open_ends, *lost), key=_importance_key))


def cell_findings(cell: CellLayout, world_size: int) -> tuple[FlightFinding, ...]:
    """Return the comparison of all dumps in the cell's folder; empty when no rank left one. Damaged dumps count as none."""
    if not cell.flights.is_dir():
        return ()
    try:
        folder = flight_recorder.read_folder(cell.flights)
    except DataError:
        return ()
    return compare_dumps(folder.dumps, world_size=world_size)


def summary(findings: Iterable[FlightFinding]) -> str | None:
    """The causes on one line, each rank's first one; None when there is none.

    A cause that blames nobody new is left out: a rank that is stuck somewhere is missing everywhere.
    """
    sentences: list[str] = []
    named: set[int] = set()
    for finding in findings:
        if not finding.cause or (sentences and named.issuperset(finding.ranks) and finding.kind not in MISMATCHES):
            continue
        named.update(finding.ranks)
        sentences.append(finding.sentence)
    return "; ".join(sentences[:3] + [f"and {len(sentences) - 3} more"] * (len(sentences) > 3)) or None


def culprits(findings: Iterable[FlightFinding]) -> tuple[int, ...]:
    """Ranks that causes point at, in order."""
    return tuple(sorted({rank for f in findings if f.cause for rank in f.ranks}))


def _wait_findings(view: GroupView, *, broken: bool) -> list[FlightFinding]:
    """Find waits. ``broken``: ranks sit in calls that were not the same, so that "one is out, one is not" means nothing."""
    return [*([] if broken else stuck_inside(view)), *missing_calls(view), *point_to_point(view)]


def _waits_with_causes(
    waits: Sequence[FlightFinding],
    differing: Sequence[FlightFinding],
    open_ends: Sequence[FlightFinding],
    views: Sequence[GroupView],
) -> list[FlightFinding]:
    """Return the waits, with those marked that follow from something else.

    A rank that waits for another one cannot be blamed for what it has not called since; neither can ranks that sit in
    a call which was not the same everywhere, nor a stuck rank for what it did not call afterwards.
    """
    entangled = {r for f in differing if f.waiting for view in views if view.name == f.group for r in view.lines}
    stuck = {r for f in waits if f.kind == "stuck_inside" for r in f.ranks}
    silent = [f for f in open_ends if f.kind == "incomplete_dump"]
    held_up = {r for f in waits for r in f.ranks if _waits_for_another(r, [*waits, *silent])}
    marked = []
    for wait in waits:
        excused = entangled if wait.kind == "stuck_inside" else entangled | stuck | held_up
        if wait.kind in MISMATCHES:
            excused = set()
        blamed = [r for r in wait.ranks if r not in excused]
        marked += [replace(_narrowed_finding(wait, blamed), cause=True)] if blamed else []
        others = [r for r in wait.ranks if r in excused]
        marked += [replace(_narrowed_finding(wait, others), cause=False)] if others else []
    if marked and not entangled and not silent and not any(f.cause for f in marked):
        return [replace(f, cause=True, sentence=f"{f.sentence}{_CIRCLE}") for f in marked]
    return marked


def _waits_for_another(rank: int, waits: Sequence[FlightFinding]) -> bool:
    return any(rank in f.waiting and set(f.ranks) - {rank} for f in waits if f.kind != "stuck_inside")


def _narrowed_finding(finding: FlightFinding, ranks: Sequence[int]) -> FlightFinding:
    """Return the finding for some of its ranks alone, with which its sentence begins."""
    if tuple(ranks) == finding.ranks or finding.kind != "missing_call":
        return replace(finding, ranks=tuple(ranks))
    rest = finding.sentence.removeprefix(ranks_text(finding.ranks))
    return replace(finding, ranks=tuple(ranks), sentence=ranks_text(ranks) + rest)


def _open_ends_with_causes(open_ends: Sequence[FlightFinding], views: Sequence[GroupView]) -> list[FlightFinding]:
    """With no other cause, name as the cause, of the collectives that nobody got out of, those that ranks entered first."""
    first: dict[int, int] = {}
    entered: dict[tuple[str, int, int], int] = {}
    for view in views:
        for rank, line in view.lines.items():
            for sequence in line.pending():
                record = min((c.record_id for c in line.calls.get(sequence, ())), default=0)
                entered[view.name, sequence, rank] = record
                first[rank] = min(first.get(rank, record), record)
    return [
        replace(f, cause=all(entered[f.group or "", f.sequence or 0, r] == first[r] for r in f.waiting))
        for f in open_ends
    ]


def _lost_dump_findings(
    dumps: Sequence[FlightDump], world_size: int | None, open_ends: Sequence[FlightFinding]
) -> list[FlightFinding]:
    """Report ranks that left no dump, unless a wait for them is told already, and dumps that hold nothing."""
    waited_for = {rank for f in open_ends if f.cause for rank in f.ranks}
    silent = [r for r in range(world_size or 0) if r not in {d.rank for d in dumps} | waited_for]
    findings = []
    if silent:
        findings.append(
            FlightFinding(
                kind="incomplete_dump",
                ranks=tuple(silent),
                sentence=f"{ranks_text(silent)} left no flight recorder {plural(len(silent), 'dump')}: killed, or not "
                "responding",
                cause=False,
            )
        )
    for dump in dumps:
        if dump.unavailable is not None:
            findings.append(
                FlightFinding(
                    kind="incomplete_dump",
                    ranks=(dump.rank,),
                    sentence=f"rank {dump.rank}: {dump.unavailable}",
                    cause=False,
                )
            )
    return findings


def _importance_key(finding: FlightFinding) -> tuple[bool, int, bool, int, str, int]:
    """Return a key by which causes come first, then the plainest kind, collectives, the earliest."""
    return (
        not finding.cause,
        _ORDER.index(finding.kind),
        finding.is_p2p,
        finding.first_ns or 2**63,
        finding.group or "",
        finding.sequence or 0,
    )
