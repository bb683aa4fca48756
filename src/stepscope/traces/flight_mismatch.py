"""Where ranks of a group called different collectives under one number: the first such place of each group."""

from __future__ import annotations

from collections import defaultdict

from stepscope.core.words import counted
from stepscope.records.nccl import Called, FlightFinding, Kind
from stepscope.traces.flight_calls import Signature, call_text, ranks_text, signature
from stepscope.traces.flight_groups import GroupView

Calls = tuple[Signature, ...]

NEAR = 16
"""How far apart the two places of one swapped or left-out call may lie."""


def mismatches(group: GroupView) -> list[FlightFinding]:
    """One finding a set of ranks that first differs from the majority at one place. Only what two ranks kept is compared.

    What comes after the first difference of a group follows from it and is only counted.
    """
    by_rank = {
        rank: {s: tuple(signature(e) for e in calls) for s, calls in line.calls.items()}
        for rank, line in group.lines.items()
    }
    differing = [s for s in _sequences(by_rank) if len({c[s] for c in by_rank.values() if s in c}) > 1]
    if not differing:
        return []
    first = differing[0]
    sides = _sides({rank: calls[first] for rank, calls in by_rank.items() if first in calls})
    usual, *others = sides
    return [_finding(group, by_rank, first, sides[usual], sides[other], later=len(differing) - 1) for other in others]


def _sequences(by_rank: dict[int, dict[int, Calls]]) -> list[int]:
    return sorted({s for calls in by_rank.values() for s in calls})


def _sides(calls: dict[int, Calls]) -> dict[Calls, list[int]]:
    """Ranks by what they called: the largest side first, of equal ones that with the lowest rank."""
    sides: dict[Calls, list[int]] = defaultdict(list)
    for rank in sorted(calls):
        sides[calls[rank]].append(rank)
    return dict(sorted(sides.items(), key=lambda side: (-len(side[1]), side[1][0])))


def _finding(
    group: GroupView,
    by_rank: dict[int, dict[int, Calls]],
    sequence: int,
    usual: list[int],
    odd: list[int],
    *,
    later: int,
) -> FlightFinding:
    reference, deviant = by_rank[usual[0]], by_rank[odd[0]]
    expected = call_text(group.lines[usual[0]].calls[sequence])
    found = call_text(group.lines[odd[0]].calls[sequence])
    at = f"collective {sequence} of {group.text}"
    ours, theirs = ranks_text(odd), ranks_text(usual)
    swapped = _swapped(reference, deviant, sequence)
    shift = None if swapped else _shift(reference, deviant, sequence)
    kind: Kind
    if swapped is not None:
        kind = "order_mismatch"
        text = f"{ours} called {found} as {at} and {expected} as collective {swapped}; {theirs} in the opposite order"
    elif shift is not None and shift > 0:
        kind = "missing_call"
        which = at if shift == 1 else f"collectives {sequence} to {sequence + shift - 1} of {group.text}"
        text = (
            f"{ours} never called {which} ({expected}), which {theirs} called: its next call matches their earlier one"
        )
    elif shift is not None:
        kind = "order_mismatch"
        text = f"{ours} called {counted(-shift, 'collective')} more than {theirs}: {found} as {at}"
    else:
        kind = _kind(reference[sequence], deviant[sequence])
        text = f"{ours} called {found} as {at}, {theirs} {expected}"
    if later and shift is None:
        text += f"; {counted(later, 'later collective')} of that group differ{'s' if later == 1 else ''} too"
    return FlightFinding(
        kind=kind,
        ranks=tuple(odd),
        sentence=text,
        group=group.name,
        group_description=group.description,
        sequence=sequence,
        called=tuple(sorted((*usual, *odd))) if kind != "missing_call" else tuple(usual),
        waiting=tuple(sorted(r for r in (*usual, *odd) if _held(group, r, sequence, displaced=shift is not None))),
        expected=expected,
        found=(Called(ranks=tuple(odd), call=found),),
        first_ns=group.first_ns(sequence),
    )


def _held(group: GroupView, rank: int, sequence: int, *, displaced: bool) -> bool:
    """Whether the rank waits because of it: in that very call, or in a later one where the numbers are displaced."""
    pending = group.lines[rank].pending()
    return any(s >= sequence for s in pending) if displaced else sequence in pending


def _kind(usual: Calls, odd: Calls) -> Kind:
    if [c.op for c in usual] != [c.op for c in odd]:
        return "op_mismatch"
    if [c.numel for c in usual] != [c.numel for c in odd]:
        return "size_mismatch"
    return "dtype_mismatch"


def _swapped(reference: dict[int, Calls], deviant: dict[int, Calls], at: int) -> int | None:
    """The later place where each side made the other's call of this place."""
    return next(
        (s for s in range(at + 1, at + NEAR) if reference.get(s) == deviant[at] and deviant.get(s) == reference[at]),
        None,
    )


def _shift(reference: dict[int, Calls], deviant: dict[int, Calls], at: int) -> int | None:
    """k > 0: from here on the deviant makes the calls that the others make k later; k < 0: k earlier.

    None unless every call that both kept agrees under that shift, and None where it agrees without one.
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
