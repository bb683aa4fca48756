"""What only a trace read in full can tell of one rank: steps, causes, collectives, and the sections asked for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from stepscope.core.errors import Unavailable
from stepscope.records.trace_summary import Missing, RankPass
from stepscope.traces.collectives import communication, group_budgets
from stepscope.traces.events import RankView
from stepscope.traces.groups import NOT_SHARDED
from stepscope.traces.idle import idle_causes, idle_gaps, long_gaps
from stepscope.traces.quality import rank_quality
from stepscope.traces.rule_facts import check_plan, gradient_sync, host_lateness, kernel_mix, step_flop, step_operators
from stepscope.traces.sections import SECTIONS
from stepscope.traces.steps import outside_work, phase_budgets, step_budgets
from stepscope.traces.workload import driver_memory, frameworks_of, job_signs

if TYPE_CHECKING:
    from stepscope.records.trace_budget import Utilisation


def completed(result: RankPass, view: RankView) -> RankPass:
    """Complete ``result``, which holds the budget, with everything else that is wanted."""
    calls, groups, quality = communication(view), group_budgets(view), (*result.quality, *rank_quality(view))
    no_steps = next((fact for fact in quality if "steps" in fact.takes), None)
    steps = step_budgets(view) if no_steps is None else ()
    frameworks = frameworks_of(view.events, view.meta)
    result = replace(
        result,
        facts=replace(result.facts, frameworks=frameworks),
        steps=steps,
        outside=outside_work(view),
        phases=phase_budgets(view),
        idle=idle_causes(view),
        long_gaps=long_gaps(view)[1],
        communication=calls,
        groups=groups,
        conformance=check_plan(view),
        mix=kernel_mix(view),
        signs=job_signs(view, frameworks),
        driver_memory=driver_memory(view),
        host_lateness=host_lateness(view),
        gradient_sync=gradient_sync(view),
        step_flop=step_flop(view),
        step_operators=step_operators(view),
        quality=quality,
    )
    if steps and (view.events.forward_thread > 0).any():
        from stepscope.traces.buckets import backward_passes

        layers = {g.group for g in groups if g.kind in NOT_SHARDED}
        result = replace(result, backward_passes=backward_passes(view, layers=layers))
    if any(c.op == "send_recv" for c in calls.collectives):
        from stepscope.traces.waiting import stage_waits

        result = replace(result, stage_waits=stage_waits(view, result.backward_passes))
    asked = view.wanted.sections
    if "spans" not in asked:
        del view.made[idle_gaps], view.made[long_gaps]  # as large as some columns
    missing = {} if no_steps is None else {Missing(section="steps", reason=no_steps.text): None}
    for section in SECTIONS:
        field = section.field or section.name
        if section.work is None or asked.isdisjoint((section.name, section.beside)) or getattr(result, field):
            continue
        module, _, name = section.work.partition(".")
        value = getattr(import_module(f"stepscope.traces.{module}"), name)(view)
        if isinstance(value, Unavailable):
            missing[Missing(section=section.name, reason=value.reason)] = None
        else:
            result = replace(result, **{field: value})
    return replace(result, unavailable=tuple(missing))


def utilisation_where_known(view: RankView) -> Utilisation | None:
    """The utilisation where FLOP and peak may be known: what that of any other trace says is why it is not."""
    names, events = view.meta.device_names, view.events
    if not names or not (events.flop or len(events.shapes)):
        return None
    from stepscope.machine.peaks.lookup import find

    if isinstance(find(names[0]), Unavailable):
        return None
    from stepscope.traces.utilisation import utilisation

    return utilisation(view)
