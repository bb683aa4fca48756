"""Cells that differ in one thing: reduction after the backward pass or inside it, the bucket size, the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from stepscope.core.dataclass import record
from stepscope.core.errors import StepscopeError
from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted, grouped
from stepscope.predict.run_buckets import bucket_cap, bucket_kinds, same_work
from stepscope.predict.specs import specs_of
from stepscope.records.cell import CellSpec
from stepscope.records.comparison import ComparedFigure
from stepscope.records.nouns import Measured
from stepscope.records.plan import CommOp
from stepscope.records.training import TrainingRun
from stepscope.results.comparing import figure
from stepscope.results.evidence import CellEvidence, TraceEvidence
from stepscope.results.held import held_by


@record
class Hidden:
    """Communication under computation in the profiled steps of all ranks.

    share: of all communication of its ``n`` steps; low, high: least and most of a step. comm_ns: of a rank and step, mean.
    """

    share: Measured
    comm_ns: float


@record
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
    """Compare every traced cell that reduces inside the backward pass with those of the same work that reduce after it; of
    cells that several run folders have, each against its own folder's."""
    jobs = traces_of(cells, traces)
    hidden = {run_id: overlap for run_id, trace in jobs.items() if (overlap := hidden_of(trace)) is not None}
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
            step=_step_comparison(inside, after),
        )
        for after in timed
        if after_backward(plans[after.cell_id])
        for inside in timed
        if inside_backward(plans[inside.cell_id]) and same_work(inside.result, after.result)
        if not has_own(after, inside) and not has_own(inside, after)
    )


def traces_of(cells: Sequence[CellEvidence], traces: Sequence[TraceEvidence]) -> dict[str, TraceEvidence]:
    """Return the traces of each cell by its run_id."""
    pairs = ((cell, trace) for cell in cells for trace in traces if trace.is_of(cell))
    return {cell.run.run_id: trace for cell, trace in pairs}


def _step_comparison(inside: CellEvidence, after: CellEvidence) -> ComparedFigure:
    """Return the comparison of two steps whose intervals are known."""
    assert inside.run.step_ns is not None
    assert after.run.step_ns is not None
    return figure(
        what=inside.run.label,
        metric="step_ns",
        side=after.run.label,
        first=after.run.step_ns,
        second=inside.run.step_ns,
        replicates=None,
    )


def hidden_of(trace: TraceEvidence) -> Hidden | None:
    """Return what of a job's communication is hidden; None where no step is marked, or there is no communication."""
    by_step = [
        [s.parts for rank in trace.summary.ranks for s in rank.steps if s.step == step]
        for step in trace.summary.common_steps or ()
    ]
    sums = [(sum(p.overlap_ns for p in parts), sum(p.comm_ns for p in parts)) for parts in by_step]
    comm = sum(total for _, total in sums)
    if not comm:
        return None
    shares = [overlap / total for overlap, total in sums if total]
    return Hidden(
        share=Measured.between(
            sum(overlap for overlap, _ in sums) / comm,
            (min(shares), max(shares)) if len(shares) > 1 else None,
            n=len(shares),
        ),
        comm_ns=fmean(p.comm_ns for parts in by_step for p in parts),
    )


def overlap_conclusions(overlaps: Sequence[OverlapGain]) -> tuple[str, ...]:
    """Say of each gain what share of communication is hidden, and how much shorter the step is, as far as both are shown."""
    return tuple(". ".join(_overlap_sentences(gain)) for gain in overlaps)


def _overlap_sentences(gain: OverlapGain) -> Iterator[str]:
    inside, after = gain.inside.run, gain.after.run
    hidden, none = gain.hidden_inside, gain.hidden_after
    span = (
        "" if hidden.share.low is None else f"{_percent_text(hidden.share.low)} to {_percent_text(hidden.share.high)} "
    )
    yield (
        f"{inside.label} hides {_percent_text(hidden.share.value)} of its communication under computation"
        f" ({span}in {counted(hidden.share.n or 0, 'profiled step')}); {after.label} hides {_percent_text(none.share.value)}"
    )
    yield step_said(gain)
    if gain.step.verdict != "better" and gain.inside.spec.device == "cpu" and gain.inside.spec.network is None:
        yield (
            "Ranks on one CPU communicate with the cores that compute, so hidden communication still takes their time; "
            "--emulate-network 2gbit:2 puts a network between them"
        )


def step_said(gain: OverlapGain) -> str:
    """Say ``With overlap the step is 31% shorter: 283 ms against 412 ms (95% interval 12% to 40%)``, or that it is
    unclear."""
    step = gain.step
    times = f"{format_duration(step.second.value)} against {format_duration(step.first.value)}"
    if step.low is None or step.high is None:
        return f"Whether overlap shortens the step is not shown: {times}, too few steps for an interval"
    if step.verdict == "better":
        return (
            f"With overlap the step is {_percent_text(1 - step.ratio)} shorter: {times} "
            f"(95% interval {_percent_text(1 - step.high)} to {_percent_text(1 - step.low)})"
        )
    if step.verdict == "worse":
        return (
            f"With overlap the step is {_percent_text(step.ratio - 1)} longer: {times} "
            f"(95% interval {_percent_text(step.low - 1)} to {_percent_text(step.high - 1)})"
        )
    return (
        f"A shorter step is not shown: {times} (95% interval {_percent_text(1 - step.low)} shorter to "
        f"{_percent_text(step.high - 1)} longer)"
    )


def _percent_text(share: float | None) -> str:
    return format_percent(share or 0.0)


LEAST_SIZES = 3
"""Fewest sizes of a sweep: a smallest, a largest and one between."""


@record
class SizedStep:
    """The step of one finished cell with its bucket size. cap_mb: its bucket size in MiB; buckets: bytes of each, in launch
    order, as planned."""

    cell: CellEvidence
    cap_mb: float
    buckets: tuple[int, ...]
    step: Measured
    exposed_ns: float | None


@record
class BucketSweep:
    """Cells that differ in the bucket size alone, the smallest first."""

    sizes: tuple[SizedStep, ...]

    @property
    def best(self) -> SizedStep:
        return min(self.sizes, key=lambda size: size.step.value)

    @property
    def fastest_mb(self) -> Measured:
        """The best size, from the smallest to the largest of those that are not clearly slower, MiB; no interval where a
        step has none.
        """
        best = self.best
        slower = {size.cap_mb: best.step.below(size.step) for size in self.sizes}
        if None in slower.values():
            return Measured(value=best.cap_mb)
        tied = [cap for cap, surely in slower.items() if not surely]
        return Measured(value=best.cap_mb, low=min(tied), high=max(tied))

    @property
    def gradient_bytes(self) -> int:
        return sum(self.sizes[0].buckets)


def bucket_sweeps(cells: Sequence[CellEvidence], *, least_sizes: int = LEAST_SIZES) -> tuple[BucketSweep, ...]:
    """Return a sweep for each kind of cell that was run with at least so many bucket sizes."""
    done = {id(cell.result): cell for cell in cells if cell.run.status == "ok" and cell.run.step_ns is not None}
    sweeps = []
    for kind in bucket_kinds(cell.result for cell in done.values()).values():
        sized = [size for result in kind if (size := _sized_step(done[id(result)])) is not None]
        if len(sized) >= least_sizes:
            sweeps.append(BucketSweep(sizes=tuple(sorted(sized, key=lambda size: size.cap_mb))))
    return tuple(sweeps)


def _sized_step(cell: CellEvidence) -> SizedStep | None:
    """Return the step of a bucket size; None where size or time is unknown."""
    cap, step, exposed = bucket_cap(cell.spec), cell.run.step_ns, cell.run.exposed_comm_ns
    buckets = tuple(op.size_bytes for op in plan_of(cell.spec) if op.phase == "backward")
    if cap is None or step is None or not buckets:
        return None
    return SizedStep(
        cell=cell, cap_mb=cap, buckets=buckets, step=step, exposed_ns=None if exposed is None else exposed.value
    )


def bucket_conclusions(sweeps: Iterable[BucketSweep]) -> tuple[str, ...]:
    """Say the fastest size of each sweep, and of both ends by how much they are slower and what of it was measured."""
    return tuple(line for sweep in sweeps for line in _sweep_lines(sweep))


def _sweep_lines(sweep: BucketSweep) -> list[str]:
    """Say which bucket size is fastest, and why the smallest and the largest are slower."""
    best, least, most = sweep.best, sweep.sizes[0], sweep.sizes[-1]
    lines = [
        f"{best.cell.run.label}: {best.cap_mb:g} MiB is fastest of {len(sweep.sizes)} sizes measured,"
        f" {format_duration(best.step.value)} a step with {counted(len(best.buckets), 'bucket')}"
    ]
    if least is not best:
        lines.append(f"{_slower_words(least, best)}: {_why_small(least, best)}")
    if most is not best:
        lines.append(f"{_slower_words(most, best)}: {_why_large(most, best, sweep.gradient_bytes)}")
    return lines


def _slower_words(size: SizedStep, best: SizedStep) -> str:
    share, surely = format_percent(size.step.value / best.step.value - 1), best.step.below(size.step)
    if not surely:
        why = "too few steps" if surely is None else "the intervals overlap"
        return f"{size.cap_mb:g} MiB is not clearly slower ({share}, {why})"
    return f"{size.cap_mb:g} MiB is {share} slower"


def _why_small(least: SizedStep, best: SizedStep) -> str:
    """Say why small buckets are slower: more calls, and what each costs."""
    more = len(least.buckets) - len(best.buckets)
    if more <= 0:
        return f"it makes the same {counted(len(least.buckets), 'bucket')}"
    text = f"{counted(len(least.buckets), 'all-reduce')} of about {_mean_bucket_text(least)} instead of {len(best.buckets)}"
    if best.step.below(least.step):
        per_bucket = format_duration((least.step.value - best.step.value) / more)
        text += f"; the step grows by {per_bucket} for each of the {more} more"
    return text


def _why_large(most: SizedStep, best: SizedStep, gradient_bytes: int) -> str:
    """Say why large buckets are slower: they start later, so that more of them is exposed."""
    largest = max(most.buckets, default=0)
    share = format_percent(largest / gradient_bytes) if gradient_bytes else "all"
    text = f"{share} of the gradients travel in one bucket, which starts when the last of them is ready"
    if len(most.buckets) == 1:
        text = f"all {format_bytes_binary(gradient_bytes)} of gradients are one bucket, which starts when backward ends"
    if most.exposed_ns is None or best.exposed_ns is None:
        return text
    return (
        f"{text}; {format_duration(most.exposed_ns)} exposed, {format_duration(best.exposed_ns)} at {best.cap_mb:g} MiB"
    )


def _mean_bucket_text(size: SizedStep) -> str:
    return format_bytes_binary(sum(size.buckets) / max(1, len(size.buckets)))


FAILED = ("oom", "host_oom", "skipped")


@record
class BatchMemory:
    """The memory of one batch. per_sample_bytes: growth of the peak since the next smaller batch that ran, for each further
    sample of a rank's micro-batch; None: it is the smallest, or has no peak. held: bytes by kind (parameters, gradients,
    optimizer, activations), tensor by tensor, of the rank that holds most; empty: not counted."""

    run: TrainingRun
    micro_batch: int
    peak_bytes: int | None
    per_sample_bytes: float | None
    held_bytes: Mapping[str, int]


def memory_by_batch(
    runs: Sequence[TrainingRun], cells: Sequence[CellEvidence] = ()
) -> tuple[tuple[BatchMemory, ...], ...]:
    """Return a group for each set of runs that differ in the batch alone, small batches first; out of memory is a result,
    too.

    Groups of one batch tell nothing, and are left out.
    """
    shown = [
        run for run in runs if run.micro_batch is not None and (_peak_bytes(run) is not None or run.status in FAILED)
    ]
    counted = {cell.run.run_id: memory.sizes for cell in cells if (memory := held_by(cell)) is not None}
    groups = (_memory_group(group, counted) for group in grouped(shown, _but_for_batch).values())
    return tuple(group for group in groups if len({batch.micro_batch for batch in group}) > 1)


def _memory_group(runs: Sequence[TrainingRun], counted: Mapping[str, Mapping[str, int]]) -> tuple[BatchMemory, ...]:
    """Return the memory of runs that differ in the batch alone, small batches first, with the growth a sample, bytes."""
    ordered = sorted(runs, key=lambda run: run.micro_batch or 0)
    ran = [run for run in ordered if _peak_bytes(run) is not None]
    growth = {
        larger.run_id: ((_peak_bytes(larger) or 0) - (_peak_bytes(smaller) or 0))
        / (_micro_batch(larger) - _micro_batch(smaller))
        for smaller, larger in pairwise(ran)
        if _micro_batch(larger) > _micro_batch(smaller)
    }
    return tuple(
        BatchMemory(
            run=run, micro_batch=_micro_batch(run), peak_bytes=_peak_bytes(run), per_sample_bytes=growth.get(run.run_id),
            held_bytes=counted.get(run.run_id, {}),
        )
        for run in ordered
    )  # fmt: skip


def _micro_batch(run: TrainingRun) -> int:
    return run.micro_batch or 0


def _peak_bytes(run: TrainingRun) -> int | None:
    return run.peak_memory_bytes if run.status == "ok" else None


_OF_BATCH = ("micro_batch", "global_batch", "batch_rule")


def _but_for_batch(run: TrainingRun) -> tuple[object, ...]:
    settings, varied = (
        {key: value for key, value in options.items() if key not in _OF_BATCH} for options in (run.settings, run.varied)
    )
    return (
        run.source, run.model, run.dataset, run.strategy_key, run.precision, run.accumulation, run.world_size, run.device,
        run.backend, run.hardware, repr(sorted(settings.items())), repr(sorted(varied.items())),
    )  # fmt: skip
