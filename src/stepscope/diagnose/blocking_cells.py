"""Cells of `bench` that reduce gradients only after the backward pass, and what overlap would return."""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Finding, Statement, advise, finding, skipped
from stepscope.predict.run_buckets import same_work
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.cell_facts import TimedCell, by_model, exposed, others, timed_cells
from stepscope.results.evidence import Evidence
from stepscope.results.sweeps import after_backward, plan_of

Stake = tuple[float, float, str, bool]
"""What overlap returns at most, share of communication, both in words, whether that was measured."""


def blocking_cells(evidence: Evidence, *, least_share: float, least_gain: float) -> Statement:
    """Report cells whose collectives all come after backward and take more than ``least_share`` of the step there.

    least_gain: share of the step that an overlapping cell of the same run has to save, where one was measured.
    """
    cells = timed_cells(evidence, least_ranks=2)
    if not cells:
        return skipped("no finished cell on several ranks")
    blocking = [c for c in cells if after_backward(plan_of(c.spec))]
    if not blocking:
        return f"{counted(len(cells), 'cell')}: all of them reduce during the backward pass"
    overlapping = [c for c in cells if c not in blocking]
    stakes = {id(c): _stake(c, overlapping, least_share=least_share, least_gain=least_gain) for c in blocking}
    firing = by_model(c for c in blocking if stakes[id(c)][0] > 0)
    worst = max(blocking, key=lambda c: stakes[id(c)][1])
    ranked = (sorted(group, key=lambda c: -stakes[id(c)][0]) for group in firing)
    return [
        _of_cells(evidence, cells, stakes[id(cells[0])]) for cells in ranked
    ] or f"{worst.name}: {stakes[id(worst)][2]}"


def _stake(cell: TimedCell, overlapping: list[TimedCell], *, least_share: float, least_gain: float) -> Stake:
    """Return what is at stake in a cell; a stake of 0 is not worth a finding."""
    exposure = exposed(cell.cell.result)
    net = 0.0 if exposure is None else exposure.net_ns
    share = net / cell.step_ns
    sentence = f"{format_percent(share)} of the step is communication after backward"
    if share <= least_share:
        return 0.0, share, f"{sentence}, limit {format_percent(least_share)}", False
    alike = (c for c in overlapping if same_work(c.cell.result, cell.cell.result))
    best = min(alike, key=lambda c: c.step_ns, default=None)
    faster = None if best is None else best.step.below(cell.step)
    if best is None or faster is None:
        return min(net, cell.phases.backward_compute_ns) / cell.step_ns, share, sentence, False
    sentence += (
        f"; measured: {best.run.label} takes {format_duration(best.step_ns)} against {format_duration(cell.step_ns)}"
    )
    gain = 1 - best.step_ns / cell.step_ns if faster else 0.0
    return (gain if gain > least_gain else 0.0), share, sentence, True


def _of_cells(evidence: Evidence, ranked: list[TimedCell], stake: Stake) -> Finding:
    cell, (most, share, sentence, sure) = ranked[0], stake
    plan = plan_of(cell.spec)
    size = "gradient by gradient" if len(plan) > 1 else "in one piece"
    return finding(
        f"gradients are reduced after backward: {format_percent(share)} of the step is {EXPOSED_COMM}",
        sentence,
        f"{counted(len(plan), 'blocking collective')} a step, {size}",
        others(ranked, lambda c: f"({format_duration(c.step_ns)} a step)"),
        stake=most,
        share=share,
        confidence="measured: both strategies ran here"
        if sure
        else "likely: no overlapping cell was measured well enough",
        advice=[
            advise(
                "reduce during the backward pass: DistributedDataParallel, or buckets of your own",
                again(evidence, cell.cell, ("strategy", ["naive", "bucketed", "ddp"])),
            )
        ],
        of=cell.run,
    )
