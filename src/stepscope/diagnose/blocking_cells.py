"""Cells of `bench` that reduce gradients only after the backward pass, and what overlap would return."""

from __future__ import annotations

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again
from stepscope.diagnose.rule import Statement, advise, severity_of
from stepscope.predict.run_buckets import same_work
from stepscope.records.finding import Finding, Skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.plan import CommOp
from stepscope.results.cell_facts import TimedCell, by_model, exposed, others, timed_cells
from stepscope.results.evidence import Evidence
from stepscope.results.sweeps import after_backward, plan_of


def blocking_cells(evidence: Evidence, *, least_share: float, least_gain: float) -> Statement:
    """Report cells whose collectives all come after backward and take more than ``least_share`` of the step there.

    least_gain: share of the step that an overlapping cell of the same run has to save, where one was measured.
    """
    cells = timed_cells(evidence, least_ranks=2)
    plans = {cell.cell.cell_id: plan_of(cell.cell.spec) for cell in cells}
    blocking = [c for c in cells if after_backward(plans[c.cell.cell_id])]
    if not blocking:
        if not cells:
            return Skipped(reason="no finished cell on several ranks", command=None)
        return f"{counted(len(cells), 'cell')}: all of them reduce during the backward pass"
    overlapping = [c for c in cells if c not in blocking]
    stakes = {id(c): _stake(c, overlapping, least_share=least_share, least_gain=least_gain) for c in blocking}
    firing = [c for c in blocking if stakes[id(c)][0] > 0]
    if not firing:
        worst = max(blocking, key=lambda c: stakes[id(c)][1])
        return f"{worst.name}: {stakes[id(worst)][2]}"
    findings = []
    for group in by_model(firing):
        ranked = sorted(group, key=lambda c: -stakes[id(c)][0])
        findings.append(_of_cells(evidence, ranked, stakes[id(ranked[0])], plans[ranked[0].cell.cell_id]))
    return tuple(findings)


def _stake(
    cell: TimedCell, overlapping: list[TimedCell], *, least_share: float, least_gain: float
) -> tuple[float, float, str, bool]:
    """Return (what overlap returns at most, share of communication, both in words, whether that was measured); a stake of 0
    is not worth a finding."""
    exposure = exposed(cell.cell.result)
    net = 0.0 if exposure is None else exposure.net_ns
    share = net / cell.step_ns
    sentence = f"{format_percent(share)} of the step is communication after backward"
    if share <= least_share:
        return 0.0, share, f"{sentence}, limit {format_percent(least_share)}", False
    measured = [c for c in overlapping if same_work(c.cell.result, cell.cell.result)]
    if measured:
        best = min(measured, key=lambda c: c.step_ns)
        gain = _gain(best, cell)
        if gain is not None:
            sentence += f"; measured: {best.cell.run.label} takes {format_duration(best.step_ns)}"
            sentence += f" against {format_duration(cell.step_ns)}"
            return (gain if gain > least_gain else 0.0), share, sentence, True
    return min(net, cell.phases.backward_compute_ns) / cell.step_ns, share, sentence, False


def _gain(fast: TimedCell, slow: TimedCell) -> float | None:
    """Share of the slower step that the faster one saves; 0 where their intervals overlap, None without intervals."""
    sure = fast.step.below(slow.step)
    return None if sure is None else 1 - fast.step_ns / slow.step_ns if sure else 0.0


def _of_cells(
    evidence: Evidence, ranked: list[TimedCell], stake: tuple[float, float, str, bool], plan: tuple[CommOp, ...]
) -> Finding:
    cell = ranked[0]
    most, share, sentence, sure = stake
    size = "gradient by gradient" if len(plan) > 1 else "in one piece"
    return Finding(
        severity=severity_of(most),
        title=f"gradients are reduced after backward: {format_percent(share)} of the step is {EXPOSED_COMM}",
        evidence=(
            sentence,
            f"{counted(len(plan), 'blocking collective')} a step, {size}",
            *others(ranked, lambda c: f"({format_duration(c.step_ns)} a step)"),
        ),
        stake_fraction=most,
        share=share,
        confidence="measured: both strategies ran here"
        if sure
        else "likely: no overlapping cell was measured well enough",
        advice=(
            advise(
                "reduce during the backward pass: DistributedDataParallel, or buckets of your own",
                again(evidence, cell.cell, ("strategy", ["naive", "bucketed", "ddp"])),
            ),
        ),
        subject=cell.name,
        runs=(cell.cell.run.run_id,),
    )
