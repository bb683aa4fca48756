"""What overlap brings: cells of the same work that reduce gradients after the backward pass, and inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import StepscopeError
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.run_buckets import same_work
from stepscope.predict.specs import specs_of
from stepscope.records.cell import CellSpec
from stepscope.records.comparison import ComparedFigure
from stepscope.records.plan import CommOp
from stepscope.results.compared_figure import figure
from stepscope.results.evidence import CellEvidence, TraceEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Communication under computation in the profiled steps of all ranks.

    share: of all communication. low, high: of the single steps; None: one step. comm_ns: of a rank and step, mean.
    """

    share: float
    low: float | None
    high: float | None
    steps: int
    comm_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapGain:
    """Two cells of the same work, both traced. step: of ``inside`` against ``after``, from timed steps."""

    after: CellEvidence
    inside: CellEvidence
    hidden_after: Hidden
    hidden_inside: Hidden
    step: ComparedFigure


def plan_of(spec: CellSpec) -> tuple[CommOp, ...]:
    """The collectives that the cell's strategy declares for a step; none where it is not installed here."""
    try:
        return specs_of(spec).comm_plan
    except (StepscopeError, ValueError):
        return ()


def after_backward(plan: Sequence[CommOp]) -> bool:
    """Whether all communication follows the backward pass."""
    return bool(plan) and all(op.phase == "after_backward" for op in plan)


def inside_backward(plan: Sequence[CommOp]) -> bool:
    """Whether gradients are reduced during the backward pass; a pipeline's messages are none."""
    return any(op.phase == "backward" and op.op not in ("send", "recv") for op in plan)


def gains(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> tuple[OverlapGain, ...]:
    """Every traced cell that reduces inside the backward pass against those of the same work that reduce after it; of cells
    that several run folders have, each against its own folder's."""
    jobs = traces_of(cells, traces)
    hidden = {run_id: found for run_id, trace in jobs.items() if (found := hidden_of(trace)) is not None}
    timed = [c for c in cells if c.run.run_id in hidden and c.run.status == "ok" and c.run.step_ns is not None]
    plans = {cell.cell_id: plan_of(cell.spec) for cell in timed}
    there = {(cell.run.source, cell.cell_id) for cell in timed}

    def has_own(cell: CellEvidence, other: CellEvidence) -> bool:
        return cell.run.source != other.run.source and (cell.run.source, other.cell_id) in there

    return tuple(
        OverlapGain(
            after=after,
            inside=inside,
            hidden_after=hidden[after.run.run_id],
            hidden_inside=hidden[inside.run.run_id],
            step=_against(inside, after),
        )
        for after in timed
        if after_backward(plans[after.cell_id])
        for inside in timed
        if inside_backward(plans[inside.cell_id]) and same_work(inside.result, after.result)
        if not has_own(after, inside) and not has_own(inside, after)
    )


def traces_of(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> dict[str, TraceEvidence]:
    """run_id -> the traces of that cell."""
    pairs = ((cell, trace) for cell in cells for trace in traces if trace.is_of(cell))
    return {cell.run.run_id: trace for cell, trace in pairs}


def _against(inside: CellEvidence, after: CellEvidence) -> ComparedFigure:
    assert inside.run.step_ns is not None
    assert after.run.step_ns is not None
    return figure(
        what=inside.run.label,
        metric="step",
        side=after.run.label,
        higher_is_better=False,
        first=after.run.step_ns,
        second=inside.run.step_ns,
        replicates=None,
    )


def hidden_of(trace: TraceEvidence) -> Hidden | None:
    """None where no step is marked, or there is no communication."""
    each = [
        [s.parts for found in trace.summary.ranks for s in found.steps if s.step == step]
        for step in trace.summary.common_steps or ()
    ]
    sums = [(sum(p.overlap_ns for p in parts), sum(p.comm_ns for p in parts)) for parts in each]
    comm = sum(total for _, total in sums)
    if not comm:
        return None
    shares = [overlap / total for overlap, total in sums if total]
    return Hidden(
        share=sum(overlap for overlap, _ in sums) / comm,
        low=min(shares) if len(shares) > 1 else None,
        high=max(shares) if len(shares) > 1 else None,
        steps=len(shares),
        comm_ns=fmean(p.comm_ns for parts in each for p in parts),
    )


def conclusions(found: Sequence[OverlapGain]) -> tuple[str, ...]:
    """Of each gain, what share of communication is hidden, and how much shorter the step is, as far as both are shown."""
    return tuple(". ".join(_said(gain)) for gain in found)


def _said(gain: OverlapGain) -> Iterator[str]:
    inside, after = gain.inside.run, gain.after.run
    hidden, none = gain.hidden_inside, gain.hidden_after
    span = "" if hidden.low is None else f"{_percent(hidden.low)} to {_percent(hidden.high)} "
    yield (
        f"{inside.label} hides {_percent(hidden.share)} of its communication under computation"
        f" ({span}in {counted(hidden.steps, 'profiled step')}); {after.label} hides {_percent(none.share)}"
    )
    yield step_said(gain)
    if gain.step.verdict != "better" and gain.inside.spec.device == "cpu" and gain.inside.spec.network is None:
        yield (
            "Ranks on one CPU communicate with the cores that compute, so hidden communication still takes their time; "
            "--emulate-network 2gbit:2 puts a network between them"
        )


def step_said(gain: OverlapGain) -> str:
    """``With overlap the step is 31% shorter: 283 ms against 412 ms (95% interval 12% to 40%)``, or that it is unclear."""
    step = gain.step
    times = f"{format_duration(step.second.value)} against {format_duration(step.first.value)}"
    if step.low is None or step.high is None:
        return f"Whether overlap shortens the step is not shown: {times}, too few steps for an interval"
    if step.verdict == "better":
        return (
            f"With overlap the step is {_percent(1 - step.ratio)} shorter: {times} "
            f"(95% interval {_percent(1 - step.high)} to {_percent(1 - step.low)})"
        )
    if step.verdict == "worse":
        return (
            f"With overlap the step is {_percent(step.ratio - 1)} longer: {times} "
            f"(95% interval {_percent(step.low - 1)} to {_percent(step.high - 1)})"
        )
    return (
        f"A shorter step is not shown: {times} (95% interval {_percent(1 - step.low)} shorter to "
        f"{_percent(step.high - 1)} longer)"
    )


def _percent(share: float | None) -> str:
    return format_percent(share or 0.0)
