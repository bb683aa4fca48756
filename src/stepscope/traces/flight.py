"""All ranks' flight recorders side by side: who never called what, who called something else, who is stuck.

Calls are matched by group and sequence number, so that dumps may begin at different places; what a ring has dropped is
never taken for a call that was not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepscope.core.errors import DataError
from stepscope.core.words import plural
from stepscope.records.nccl import MISMATCHES, FlightDump, FlightFinding, Kind
from stepscope.store.importers import flight_recorder
from stepscope.store.layout import CellLayout
from stepscope.traces.flight_calls import ranks_text
from stepscope.traces.flight_groups import GroupView, group_views
from stepscope.traces.flight_mismatch import mismatches
from stepscope.traces.flight_waits import missing_calls, point_to_point, stuck_inside, unfinished

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


def compare(dumps: Sequence[FlightDump], *, world_size: int | None = None) -> tuple[FlightFinding, ...]:
    """What went differently on different ranks, causes first; empty when nothing did.

    dumps: at most one a rank. world_size: None takes it from the dumps; with it, ranks without a dump are named.
    Differences in calls are facts. Waits are a snapshot: of a job that goes on they only say who was behind.
    """
    views = group_views(dumps, world_size=world_size)
    differing = [f for view in views for f in mismatches(view)]
    broken = {f.group for f in differing if f.waiting}
    waits = [f for view in views for f in _waits(view, broken=view.name in broken)]
    open_ends = [f for view in views if (f := unfinished(view)) is not None]
    found = [*differing, *_with_causes(waits, differing, open_ends, views)]
    if not any(f.cause for f in found):
        open_ends = _earliest(open_ends, views)
    return tuple(sorted((*found, *open_ends, *_incomplete(dumps, world_size, open_ends)), key=_importance))


def cell_findings(cell: CellLayout, world_size: int) -> tuple[FlightFinding, ...]:
    """The comparison of all dumps in the cell's folder; empty when no rank left one. Damaged dumps count as none."""
    if not cell.flights.is_dir():
        return ()
    try:
        folder = flight_recorder.read_folder(cell.flights)
    except DataError:
        return ()
    return compare(folder.dumps, world_size=world_size)


def summary(findings: Iterable[FlightFinding], *, limit: int = 3) -> str | None:
    """The causes on one line, each rank's first one; None when there is none.

    A cause that blames nobody new is left out: a rank that is stuck somewhere is missing everywhere.
    """
    told: list[str] = []
    named: set[int] = set()
    left = 0
    for finding in findings:
        if not finding.cause or (told and named.issuperset(finding.ranks) and finding.kind not in MISMATCHES):
            continue
        named.update(finding.ranks)
        if len(told) < limit:
            told.append(finding.sentence)
        else:
            left += 1
    if not told:
        return None
    return "; ".join([*told, *([f"and {left} more"] if left else [])])


def culprits(findings: Iterable[FlightFinding]) -> tuple[int, ...]:
    """Ranks that causes point at, in order."""
    return tuple(sorted({rank for f in findings if f.cause for rank in f.ranks}))


def _waits(view: GroupView, *, broken: bool) -> list[FlightFinding]:
    """``broken``: ranks sit in calls that were not the same, so that "one is out, one is not" means nothing."""
    return [*([] if broken else stuck_inside(view)), *missing_calls(view), *point_to_point(view)]


def _with_causes(
    waits: Sequence[FlightFinding],
    differing: Sequence[FlightFinding],
    open_ends: Sequence[FlightFinding],
    views: Sequence[GroupView],
) -> list[FlightFinding]:
    """The waits, those that follow from something else marked so.

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
        marked += [replace(_only(wait, blamed), cause=True)] if blamed else []
        others = [r for r in wait.ranks if r in excused]
        marked += [replace(_only(wait, others), cause=False)] if others else []
    if marked and not entangled and not silent and not any(f.cause for f in marked):
        return [replace(f, cause=True, sentence=f"{f.sentence}{_CIRCLE}") for f in marked]
    return marked


def _waits_for_another(rank: int, waits: Sequence[FlightFinding]) -> bool:
    return any(rank in f.waiting and set(f.ranks) - {rank} for f in waits if f.kind != "stuck_inside")


def _only(finding: FlightFinding, ranks: Sequence[int]) -> FlightFinding:
    """The finding about some of its ranks, with which its sentence begins."""
    if tuple(ranks) == finding.ranks or finding.kind != "missing_call":
        return replace(finding, ranks=tuple(ranks))
    rest = finding.sentence.removeprefix(ranks_text(finding.ranks))
    return replace(finding, ranks=tuple(ranks), sentence=ranks_text(ranks) + rest)


def _earliest(open_ends: Sequence[FlightFinding], views: Sequence[GroupView]) -> list[FlightFinding]:
    """With no other cause: the collectives nobody got out of; those that ranks entered first are the cause."""
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


def _incomplete(
    dumps: Sequence[FlightDump], world_size: int | None, open_ends: Sequence[FlightFinding]
) -> list[FlightFinding]:
    """Ranks that left no dump, unless a wait for them is told already; and dumps that hold nothing."""
    told = {rank for f in open_ends if f.cause for rank in f.ranks}
    silent = [r for r in range(world_size or 0) if r not in {d.rank for d in dumps} | told]
    found = []
    if silent:
        found.append(
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
            found.append(
                FlightFinding(
                    kind="incomplete_dump",
                    ranks=(dump.rank,),
                    sentence=f"rank {dump.rank}: {dump.unavailable}",
                    cause=False,
                )
            )
    return found


def _importance(finding: FlightFinding) -> tuple[bool, int, bool, int, str, int]:
    return (
        not finding.cause,
        _ORDER.index(finding.kind),
        finding.is_p2p,
        finding.first_ns or 2**63,
        finding.group or "",
        finding.sequence or 0,
    )
