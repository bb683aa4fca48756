"""What a step waits for beside its busiest stage: data-parallel traffic, idle stages, messages that nothing hides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepscope.predict.pipeline import StageTime, simulate
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.stages import Stage, StepSetup
from stepscope.predict.step.traffic import Calls, HeldParameters, gather_calls, reduce_calls, seconds
from stepscope.records.mesh import PipelineLayout


def held_parameters(setup: StepSetup, stage: Stage) -> HeldParameters:
    """Return what a rank of the stage holds: tensor parallelism splits all matrices, expert parallelism the experts."""
    model, layout, moe = setup.model, setup.layout, stage.moe_layers
    ends = model.embedding_params * (stage.first + (stage.last and not (model.tied and stage.first)))
    expert_params = model.experts * model.expert_params
    dense = (stage.layers - moe) * model.layer_params(moe=False)
    if moe:
        dense += moe * (model.layer_params(moe=True) - expert_params)
    return HeldParameters(dense=(dense + ends) / layout.tp, expert=moe * expert_params / layout.tp / layout.ep)


def exposed(setup: StepSetup, stage: Stage) -> float:
    """Seconds of a step that this stage waits for data-parallel traffic."""
    layout = setup.layout
    if layout.dp * layout.cp <= 1:
        return 0.0
    return _sharded_exposed_s(setup, stage) if layout.zero == 3 else _replicated_exposed_s(setup, stage)


def _replicated_exposed_s(setup: StepSetup, stage: Stage) -> float:
    """Reductions under the backward pass of the last micro-batch; ZeRO-1 and 2 gather parameters under the next forward."""
    layout, units = setup.layout, max(stage.layers, 1)
    reduce = _gather_once_s(setup, stage, reduce_calls) / units
    after = stage.backward / units
    tail = _left_after_s(reduce, after, units) if layout.overlap else reduce * units
    slow = setup.calibration.overlap_slowdown
    busy = min(reduce * units, stage.backward) * (slow - 1) if layout.overlap else 0.0
    times = layout.micro_batches if layout.syncs_each else 1
    gather = 0.0
    if layout.zero:
        whole = _gather_once_s(setup, stage, gather_calls)
        gather = max(whole / units, whole - stage.forward) if layout.overlap else whole
    return (tail + busy) * times + gather


def _left_after_s(reduce: float, after: float, units: int) -> float:
    """Return what is left of ``units`` equal reductions, launched as their layers' gradients are ready, after the last."""
    end = 0.0
    for index in range(1, units + 1):
        end = max(end, index * after) + reduce
    return end - units * after


def _sharded_exposed_s(setup: StepSetup, stage: Stage) -> float:
    """FSDP: each layer's parameters are gathered one layer ahead, gradients scattered behind; one stream of traffic."""
    layout, units = setup.layout, max(stage.layers, 1)
    gather, reduce = (
        _gather_once_s(setup, stage, gather_calls) / units,
        _gather_once_s(setup, stage, reduce_calls) / units,
    )
    forward, backward = stage.forward / units, stage.backward / units
    m, gathers = layout.micro_batches, 2 if layout.reshard else 1
    reductions = m if layout.syncs_each else 1
    if not layout.overlap:
        return units * (m * gathers * gather + reductions * reduce)
    slow = setup.calibration.overlap_slowdown
    there, again = _pass_s(units, gather, 0.0, forward, slow), gather if layout.reshard else 0.0
    quiet, loud = (_pass_s(units, again, reduction, backward, slow) for reduction in (0.0, reduce))
    end = m * there + (m - reductions) * quiet + reductions * loud
    return max(0.0, end - m * (stage.forward + stage.backward))


def _pass_s(units: int, gather: float, reduce: float, compute: float, slow: float) -> float:
    """Seconds of one pass over the layers. A gather starts when the layer before it starts; a reduction when its ends."""
    traffic = gather + reduce
    compute += min(traffic, compute) * (slow - 1)
    wire = gather
    started = max(0.0, wire)
    end = started
    for index in range(units):
        begin = max(end, wire)
        end = begin + compute
        if index < units - 1:
            wire = max(wire, begin) + gather
        if reduce:
            wire = max(wire, end) + reduce if index == units - 1 else max(wire, begin) + reduce
    return max(end, wire)


def _gather_once_s(
    setup: StepSetup, stage: Stage, plan: Callable[[Layout, HeldParameters, int], Iterable[Calls]]
) -> float:
    """Seconds of gathering the stage's parameters, or reducing its gradients, once, layer by layer."""
    calls = plan(setup.layout, held_parameters(setup, stage), max(stage.layers, 1))
    return seconds(setup.cluster, calls) / setup.calibration.comm_rate


MOST_TASKS = 8_000
"""Forward and backward passes of chunks that are simulated; beyond, the formulas stand alone."""


def pipeline_time(setup: StepSetup, stages: Sequence[Stage], *, simulated: bool) -> tuple[float, float]:
    """Seconds of a step: (bubble, exposed messages). simulated: task by task, where there are few enough; else formulas."""
    layout = setup.layout
    if layout.pp == 1:
        return 0.0, 0.0
    send = stages[0].send * (1 - setup.calibration.pp_overlap)
    times = _pipeline_simulated_s(layout, stages, send) if simulated else None
    return _pipeline_formula_s(layout, stages, send) if times is None else times


def _pipeline_formula_s(layout: Layout, stages: Sequence[Stage], send: float) -> tuple[float, float]:
    """1F1B: the other stages' passes once; interleaving divides that by the chunks, zero-bubble by three (ZB-H1, Qi et al.,
    arXiv 2401.10241). Messages: twice through the pipe; and as 1F1B keeps p micro-batches in flight in a cycle of p stages
    and 2 (p - 1) messages, 2 (p - 1) / p of them for each micro-batch.
    """
    p, v, m = layout.pp, layout.vpp, layout.micro_batches
    durations = [stage.forward + stage.backward for stage in stages]
    bubble = (sum(durations) - max(durations)) / (3 if layout.schedule.startswith("z") else v)
    hops = 2.0 * (p - 1) * v
    if layout.schedule == "1f1b" and v == 1:
        hops += 2 * m * (p - 1) / p
    return bubble, hops * send


def _pipeline_simulated_s(layout: Layout, stages: Sequence[Stage], send: float) -> tuple[float, float] | None:
    """Simulate two rounds of micro-batches; each further one takes what the busiest rank does. None where there is no such
    schedule, or it is too large."""
    schedule = "interleaved" if layout.vpp > 1 and layout.schedule == "1f1b" else layout.schedule
    p, v, m = layout.pp, layout.vpp, layout.micro_batches
    few = m if m <= 3 * p else 2 * p + m % p
    plan = PipelineLayout(schedule=schedule, ranks=p, micro_batches=few, chunks=v)
    if plan.problem or 2 * p * v * few > MOST_TASKS or (schedule == "gpipe" and few < m):
        return None
    ranks = plan.rank_of_stage

    def step(message: float) -> float:
        """Return the time of the schedule, s, with messages of this length."""
        times = [
            StageTime(
                forward_ns=stages[r].forward / v, backward_ns=stages[r].backward / v, send_ns=message,
                send_back_ns=message,
            )
            for r in ranks
        ]  # fmt: skip
        return simulate(plan, times).step_ns

    busiest = few * max(stage.forward + stage.backward for stage in stages)
    bare, whole = step(0.0), step(send)
    more = (m - few) * send * 2 * (p - 1) / p if schedule == "1f1b" else 0.0
    return max(0.0, bare - busiest), max(0.0, whole - bare) + more
