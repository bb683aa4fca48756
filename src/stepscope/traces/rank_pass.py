"""One rank's trace -> everything that can be said of it alone, as a small record that travels between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.records.trace_summary import FileNote, RankFacts, RankPass
from stepscope.traces.activity import activity_of
from stepscope.traces.budget import rank_budget
from stepscope.traces.events import RankTrace
from stepscope.traces.idle import idle_causes
from stepscope.traces.links import launches_of
from stepscope.traces.load import load_file, rank_of
from stepscope.traces.phases import phase_budgets
from stepscope.traces.steps import outside_work, step_budgets, step_marks

DEVICE_ONLY = frozenset({"budget", "overlap"})
"""Sections that the device scan alone can answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which sections to compute, and over which steps (None: all)."""

    sections: frozenset[str]

    @property
    def device_only(self) -> bool:
        return self.sections <= DEVICE_ONLY


def pass_file(
    path: Path,
    *,
    wanted: Wanted,
    stated: Mapping[str, int],
    alone: bool,
) -> RankPass:
    """Load one trace file and analyse it. Runs in any process."""
    trace = load_file(path, device_only=wanted.device_only)
    rank, notes = rank_of(trace, stated, alone=alone)
    return analyse(replace(trace, rank=rank, notes=(*trace.notes, *notes)), wanted)


def analyse(trace: RankTrace, wanted: Wanted) -> RankPass:
    """All wanted sections of one rank."""
    events = trace.events
    meta = trace.meta
    facts = RankFacts(
        rank=trace.rank,
        file=str(trace.path),
        size_bytes=trace.size_bytes,
        event_count=len(events),
        world_size=meta.world_size,
        backend=meta.backend,
        device_name=meta.device_names[0] if meta.device_names else None,
        host=meta.host,
    )
    activity = activity_of(events)
    result = RankPass(
        facts=facts,
        notes=tuple(FileNote(rank=trace.rank, kind=n.kind, text=n.text) for n in trace.notes),
        budget=rank_budget(trace, activity),
    )
    if trace.partial:
        return result
    launches = launches_of(events, activity.indices)
    marks = step_marks(events)
    return replace(
        result,
        steps=step_budgets(trace, activity, launches, marks),
        outside=outside_work(trace, activity, launches, marks),
        phases=phase_budgets(trace, activity, launches),
        idle=idle_causes(trace, activity, launches),
    )
