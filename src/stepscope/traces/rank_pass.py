"""One rank's trace -> everything that can be said of it alone, as a small record that travels between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import MissingError, Unavailable
from stepscope.records.trace_summary import FileNote, Missing, RankFacts, RankPass
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity, activity_of
from stepscope.traces.annotations import annotation_rows
from stepscope.traces.buckets import bucket_rows
from stepscope.traces.budget import rank_budget
from stepscope.traces.collectives import communication
from stepscope.traces.conformance import check_plan
from stepscope.traces.copies import copy_table
from stepscope.traces.critical_path import Walk, critical_path, rank_legs
from stepscope.traces.diff import work_profile
from stepscope.traces.events import RankTrace
from stepscope.traces.group_budget import group_budgets
from stepscope.traces.idle import idle_causes, idle_gaps
from stepscope.traces.kernels import kernel_table
from stepscope.traces.launches import launch_statistics
from stepscope.traces.links import Launches, launches_of
from stepscope.traces.load import load_file, rank_of
from stepscope.traces.memory import memory_timeline
from stepscope.traces.operators import operator_table
from stepscope.traces.phases import phase_budgets, phase_spans
from stepscope.traces.rule_facts import gradient_sync, host_lateness, kernel_mix
from stepscope.traces.sequences import sequence_rows
from stepscope.traces.steps import StepWindows, outside_work, step_budgets, step_windows
from stepscope.traces.timeline_spans import timeline_spans
from stepscope.traces.utilisation import utilisation

T = TypeVar("T")

DEVICE_ONLY = frozenset({"budget"})
"""Sections that the device scan alone can answer: the budget, which holds what is hidden and exposed."""


EVERYTHING = frozenset({
    "budget", "operators", "kernels", "launches", "copies", "annotations", "sequences", "buckets", "memory",
    "utilisation", "path",
})  # fmt: skip
"""What costs extra beyond the budget; steps, phases, idle causes and collectives come with any full reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which sections to compute, and how. FLOP are per step and rank; None: what the trace recorded.

    limit: rows of the lists that can be long (operators, kernels, annotations); None: all.
    """

    sections: frozenset[str] = EVERYTHING
    sort: str = "device_self"
    limit: int | None = None
    model_flop: float | None = None
    hardware_flop: float | None = None

    @property
    def device_only(self) -> bool:
        return self.sections <= DEVICE_ONLY


def pass_file(
    path: Path,
    *,
    wanted: Wanted,
    stated: Mapping[str, int],
    alone: bool,
    cache: bool = False,
) -> RankPass:
    """Load one trace file and analyse it. Runs in any process."""
    try:
        trace = load_file(path, device_only=wanted.device_only, cache=cache)
        rank, notes = rank_of(trace, stated, alone=alone)
        return analyse(replace(trace, rank=rank, notes=(*trace.notes, *notes)), wanted)
    except MemoryError as error:
        raise MissingError(
            f"{path}: not enough memory to read it",
            why="every event takes about 60 bytes, and the analyses as much again",
            fix="read device events alone (--show budget), or profile fewer steps",
        ) from error


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
        partial=trace.partial,
    )
    if trace.partial or result.budget is None:
        return result
    launches = launches_of(events, activity.indices)
    windows = step_windows(events, activity, launches)
    phases = phase_spans(events)
    gaps = idle_gaps(events, activity, launches, phases)
    calls = communication(trace, activity, launches, windows, gaps)
    result = replace(
        result,
        steps=step_budgets(trace, activity, windows),
        outside=outside_work(trace, activity, launches, windows),
        phases=phase_budgets(trace, activity, launches, phases),
        idle=idle_causes(gaps, rank=trace.rank, source=activity.source),
        communication=calls,
        groups=group_budgets(trace.rank, activity, calls.collectives),
        conformance=check_plan(trace, calls.collectives),
        mix=kernel_mix(trace),
        host_lateness=host_lateness(trace, gaps),
        gradient_sync=gradient_sync(trace, calls.collectives),
    )
    shared = _Shared(activity=activity, launches=launches, windows=windows, phases=phases)
    return _details(result, trace, shared, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What several sections of one rank are made from."""

    activity: Activity
    launches: Launches
    windows: StepWindows
    phases: dict[str, Spans]


def _details(result: RankPass, trace: RankTrace, shared: _Shared, wanted: Wanted) -> RankPass:
    """The sections that are computed only where asked for."""
    activity, launches = shared.activity, shared.launches
    asked = wanted.sections
    missing: list[Missing] = []

    def known(section: str, value: T | Unavailable) -> T | None:
        if isinstance(value, Unavailable):
            missing.append(Missing(section=section, reason=value.reason))
            return None
        return value

    if "operators" in asked:
        result = replace(result, operators=operator_table(trace, launches, sort=wanted.sort, limit=wanted.limit))
    if "kernels" in asked:
        result = replace(result, kernels=kernel_table(trace, limit=wanted.limit))
    if "launches" in asked:
        result = replace(result, launches=launch_statistics(trace, launches))
    if "copies" in asked:
        result = replace(result, copies=copy_table(trace))
    if "annotations" in asked:
        result = replace(result, annotations=annotation_rows(trace, launches, limit=wanted.limit))
    if "sequences" in asked:
        result = replace(result, sequences=sequence_rows(trace))
    if "buckets" in asked and result.communication is not None:
        rows = bucket_rows(trace, activity, launches, result.communication.collectives)
        result = replace(result, buckets=rows)
    if "memory" in asked:
        result = replace(result, memory=known("memory", memory_timeline(trace, phases=shared.phases)) or ())
    if "utilisation" in asked:
        used = utilisation(trace, result.steps, model_flop=wanted.model_flop, hardware_flop=wanted.hardware_flop)
        result = replace(result, utilisation=used)
    if "path" in asked:
        walk = Walk(trace.events, activity, launches)
        result = replace(
            result,
            path=known("path", critical_path(trace, activity, launches, walk=walk)),
            legs=known("job_path", rank_legs(trace, activity, launches, walk=walk)),
        )
    if "profile" in asked:
        result = replace(result, profile=known("profile", work_profile(trace, activity, shared.windows)))
    if "spans" in asked:
        result = replace(result, spans=timeline_spans(trace.rank, trace.events, activity))
    return replace(result, unavailable=tuple(dict.fromkeys(missing)))
