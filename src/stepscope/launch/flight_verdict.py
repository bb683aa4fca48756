"""What the flight recorders that ranks left behind say about a cell that did not end well."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.records.flight import MISMATCHES
from stepscope.store.layout import CellLayout
from stepscope.traces.flight import cell_findings, culprits, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsVerdict:
    """What ranks called and did not call, in words. ``rank``: the lowest that causes point at; None for nobody.

    hung: of a group that stood still. differed: only calls that were not the same on all ranks, for a group that broke
    instead, where calls that were never made follow from the break; None when there are none.
    """

    hung: str
    differed: str | None
    rank: int | None


def judge_calls(cell: CellLayout, world_size: int) -> CallsVerdict | None:
    """The verdict of all dumps in the cell's folder; None when there is none or they show nothing."""
    findings = cell_findings(cell, world_size)
    told = summary(findings)
    if told is None:
        return None
    silent = [f.sentence for f in findings if f.kind == "incomplete_dump" and not f.cause]
    return CallsVerdict(
        hung="; ".join([told, *silent]),
        differed=summary(f for f in findings if f.kind in MISMATCHES),
        rank=next(iter(culprits(findings)), None),
    )
