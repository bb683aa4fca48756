"""What the flight recorders that ranks left behind say about a cell that did not end well."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import DataError
from stepscope.records.flight import MISMATCHES, FlightFinding
from stepscope.store.importers import flight_recorder
from stepscope.store.layout import CellLayout
from stepscope.traces.flight import compare, culprits, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsVerdict:
    """What ranks called and did not call, in words. ``rank``: the lowest that causes point at; None for nobody.

    hung: of a group that stood still. differed: only calls that were not the same on all ranks, for a group that broke
    instead, where calls that were never made follow from the break; None when there are none.
    """

    hung: str
    differed: str | None
    rank: int | None


def flight_findings(cell: CellLayout, world_size: int) -> tuple[FlightFinding, ...]:
    """The comparison of all dumps in the cell's folder; empty when no rank left one. Damaged dumps count as none."""
    if not cell.flights.is_dir():
        return ()
    try:
        folder = flight_recorder.read_folder(cell.flights)
    except DataError:
        return ()
    return compare(folder.dumps, world_size=world_size)


def judge_calls(cell: CellLayout, world_size: int) -> CallsVerdict | None:
    """The verdict of all dumps in the cell's folder; None when there is none or they show nothing."""
    findings = flight_findings(cell, world_size)
    told = summary(findings)
    if told is None:
        return None
    silent = [f.sentence for f in findings if f.kind == "incomplete_dump" and not f.cause]
    return CallsVerdict(
        hung="; ".join([told, *silent]),
        differed=summary(f for f in findings if f.kind in MISMATCHES),
        rank=next(iter(culprits(findings)), None),
    )


def flight_reason(cell: CellLayout, world_size: int) -> str | None:
    """One line: which rank never called what, called something else or is stuck; None when the dumps do not tell.

    Ranks that left no dump (killed outright) are named in it.
    """
    verdict = judge_calls(cell, world_size)
    return None if verdict is None else verdict.hung
