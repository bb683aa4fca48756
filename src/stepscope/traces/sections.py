"""What only a trace read in full can tell of one rank: steps, causes, collectives, and the sections asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from stepscope.core.errors import Unavailable
from stepscope.records.trace_summary import Missing, RankPass
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankTrace
from stepscope.traces.groups import NOT_SHARDED, group_budgets
from stepscope.traces.idle import IdleGaps, idle_causes, idle_gaps, long_gaps
from stepscope.traces.nesting import Launches, launches_of
from stepscope.traces.rule_facts import check_plan, gradient_sync, host_lateness, kernel_mix, step_flop, step_operators
from stepscope.traces.steps import (
    StepWindows,
    outside_work,
    phase_budgets,
    phase_spans,
    step_budgets,
    step_windows,
    whole_steps,
)
from stepscope.traces.units import frameworks_of

if TYPE_CHECKING:
    from stepscope.records.trace_collectives import RankCommunication
    from stepscope.traces.load import Wanted

T = TypeVar("T")


def with_sections(result: RankPass, trace: RankTrace, activity: Activity, wanted: Wanted) -> RankPass:
    """Complete ``result``, which holds the budget, with everything else that is wanted."""
    events = trace.events
    launches = launches_of(events, activity.indices)
    windows = whole_steps(trace, activity, step_windows(events, activity, launches))
    phases = phase_spans(events, dict(wanted.regions))
    gaps = idle_gaps(events, activity, launches, phases)
    calls = communication(trace, activity, launches, windows, gaps)
    gaps, long = long_gaps(events, gaps, windows.marks, rank=trace.rank)
    result = replace(
        result,
        facts=replace(result.facts, frameworks=frameworks_of(events, trace.meta)),
        steps=step_budgets(trace, activity, windows),
        outside=outside_work(trace, activity, launches, windows),
        phases=phase_budgets(trace, activity, launches, phases),
        idle=idle_causes(gaps, rank=trace.rank, source=activity.source),
        long_gaps=long,
        communication=calls,
        groups=group_budgets(trace.rank, activity, calls.collectives, phases),
        conformance=check_plan(trace, calls.collectives),
        mix=kernel_mix(trace),
        host_lateness=host_lateness(trace, gaps),
        gradient_sync=gradient_sync(trace, calls.collectives),
        step_flop=step_flop(trace),
        step_operators=step_operators(trace),
    )
    result = _with_passes(result, trace, activity, calls)
    kept = gaps if "spans" in wanted.sections else None
    del gaps, calls  # as large as some columns
    return _details(result, trace, activity, launches, windows, phases, kept, wanted)


def _with_passes(result: RankPass, trace: RankTrace, activity: Activity, calls: RankCommunication) -> RankPass:
    """Add the facts of backward passes and pipeline stages, where steps are marked."""
    if not result.steps:
        return result
    if (trace.events.forward_thread > 0).any():
        from stepscope.traces.buckets import backward_passes

        layers = {g.group for g in result.groups if g.kind in NOT_SHARDED}
        result = replace(result, backward_passes=backward_passes(trace, calls.collectives, layers=layers))
    if any(c.op == "send_recv" for c in calls.collectives):
        from stepscope.traces.waiting import stage_waits

        waits = stage_waits(trace, activity, result.steps, calls.collectives, result.backward_passes)
        result = replace(result, stage_waits=waits)
    return result


def can_have_mfu(trace: RankTrace) -> bool:
    """Whether FLOP and peak may be known: what the utilisation of any other trace says is why it is not."""
    if not trace.meta.device_names or not (trace.events.flop or len(trace.events.shapes)):
        return False
    from stepscope.machine.peaks.lookup import find

    return not isinstance(find(trace.meta.device_names[0]), Unavailable)


def _details(
    result: RankPass,
    trace: RankTrace,
    activity: Activity,
    launches: Launches,
    windows: StepWindows,
    phases: dict[str, Spans],
    gaps: IdleGaps | None,
    wanted: Wanted,
) -> RankPass:
    """Add the sections that are computed, and imported, only where asked for."""
    asked = wanted.sections
    missing: list[Missing] = []

    def available(section: str, value: T | Unavailable) -> T | None:
        if isinstance(value, Unavailable):
            missing.append(Missing(section=section, reason=value.reason))
            return None
        return value

    used = "utilisation" in asked or ("mfu" in asked and can_have_mfu(trace))
    if used or "operators" in asked:
        from stepscope.traces.operators import operator_links, operator_table

        links = operator_links(trace.events, launches)
        if "operators" in asked:
            table = operator_table(trace, launches, links=links, sort=wanted.sort, limit=wanted.limit)
            result = replace(result, operators=table)
        if used:
            from stepscope.traces.utilisation import utilisation

            model, executed = wanted.model_flop, wanted.hardware_flop
            share = utilisation(trace, result.steps, model_flop=model, hardware_flop=executed, links=links)
            result = replace(result, utilisation=share)
        del links
    if "kernels" in asked:
        from stepscope.traces.kernels import kernel_table

        result = replace(result, kernels=kernel_table(trace, limit=wanted.limit))
    if "launches" in asked:
        from stepscope.traces.idle import launch_statistics

        result = replace(result, launches=launch_statistics(trace, launches))
    if "copies" in asked:
        from stepscope.traces.kernels import copy_table

        result = replace(result, copies=copy_table(trace))
    if "annotations" in asked:
        from stepscope.traces.modules import annotation_rows

        result = replace(result, annotations=annotation_rows(trace, launches, limit=wanted.limit))
    if "modules" in asked:
        from stepscope.traces.modules import module_rows

        result = replace(result, modules=available("modules", module_rows(trace, activity, launches)) or ())
    if "sequences" in asked:
        from stepscope.traces.kernels import sequence_rows

        result = replace(result, sequences=sequence_rows(trace))
    if "buckets" in asked and result.communication is not None:
        from stepscope.traces.buckets import bucket_rows

        rows = bucket_rows(trace, activity, launches, result.communication.collectives)
        result = replace(result, buckets=rows)
    if "units" in asked and result.communication is not None:
        from stepscope.traces.units import sharded_units, unit_copies

        units = sharded_units(trace, activity, phases, result.communication.collectives)
        if units is not None and units.source == "device":
            units = replace(units, copies=unit_copies(trace.events, activity, launches, windows))
        result = replace(result, units=units)
    if "layers" in asked and result.communication is not None:
        from stepscope.traces.modules import divided_layers

        layers = divided_layers(trace, activity, phases, result.communication.collectives, result.groups)
        result = replace(result, layers=layers)
    if "replay" in asked and result.communication is not None:
        from stepscope.traces.replay import rank_steps

        steps = rank_steps(trace, activity, launches, phases, result.steps, result.communication.collectives)
        result = replace(result, replay=steps)
    if "memory" in asked:
        from stepscope.traces.memory import memory_timeline

        result = replace(result, memory=available("memory", memory_timeline(trace, phases=phases)) or ())
    if "path" in asked:
        from stepscope.traces.critical_path import Walk, critical_path, rank_legs
        from stepscope.traces.replay import cpu_legs

        walk = Walk(trace.events, activity, launches)
        result = replace(
            result,
            path=available("path", critical_path(trace, activity, launches, walk=walk)),
            legs=available(
                "job_path",
                rank_legs(trace, activity, launches, walk=walk)
                if activity.source == "device"
                else cpu_legs(trace.rank, activity, result.communication.collectives if result.communication else ()),
            ),
        )
    if "profile" in asked:
        from stepscope.traces.diff import work_profile

        result = replace(result, profile=available("profile", work_profile(trace, activity, windows)))
    if "spans" in asked:
        from stepscope.traces.timeline_spans import timeline_spans

        result = replace(result, spans=timeline_spans(trace.rank, trace.events, activity, gaps=gaps))
    return replace(result, unavailable=tuple(dict.fromkeys(missing)))
