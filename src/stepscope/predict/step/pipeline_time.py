"""What a pipeline costs on top of its busiest stage: idle stages, and messages that nothing hides."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.predict.pipeline import StageTime, simulate
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.stages import Stage
from stepscope.records.pipeline import PipelineLayout

MOST_TASKS = 8_000
"""Forward and backward passes of chunks that are simulated; beyond, the formulas stand alone."""


def pipeline_time(
    layout: Layout, stages: Sequence[Stage], c: StepCalibration, *, simulated: bool
) -> tuple[float, float]:
    """Seconds of a step: (bubble, exposed messages). simulated: task by task, where there are few enough; else formulas."""
    if layout.pp == 1:
        return 0.0, 0.0
    send = stages[0].send * (1 - c.pp_overlap)
    if simulated:
        found = _simulated(layout, stages, send)
        if found is not None:
            return found
    return _formulas(layout, stages, send)


def _formulas(layout: Layout, stages: Sequence[Stage], send: float) -> tuple[float, float]:
    """1F1B: the other stages' passes once; interleaving divides that by the chunks, zero-bubble by three (ZB-H1, Qi et al.,
    arXiv 2401.10241). Messages: twice through the pipe; and as 1F1B keeps p micro-batches in flight in a cycle of p stages
    and 2 (p - 1) messages, 2 (p - 1) / p of them for each micro-batch.
    """
    p, v, m = layout.pp, layout.vpp, layout.micro_batches
    each = [stage.forward + stage.backward for stage in stages]
    bubble = (sum(each) - max(each)) / (3 if layout.schedule.startswith("z") else v)
    hops = 2.0 * (p - 1) * v
    if layout.schedule == "1f1b" and v == 1:
        hops += 2 * m * (p - 1) / p
    return bubble, hops * send


def _simulated(layout: Layout, stages: Sequence[Stage], send: float) -> tuple[float, float] | None:
    """Two rounds of micro-batches; each further one takes what the busiest rank does. None: no such schedule, too large."""
    schedule = "interleaved" if layout.vpp > 1 and layout.schedule == "1f1b" else layout.schedule
    p, v, m = layout.pp, layout.vpp, layout.micro_batches
    few = m if m <= 3 * p else 2 * p + m % p
    plan = PipelineLayout(schedule=schedule, ranks=p, micro_batches=few, chunks=v)
    if plan.problem or 2 * p * v * few > MOST_TASKS or (schedule == "gpipe" and few < m):
        return None
    ranks = plan.rank_of_stage

    def step(message: float) -> float:
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
