"""Bucket sizes that one run measured: the step of each, and what makes the smallest and the largest slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.run_buckets import bucket_cap, bucket_kinds
from stepscope.records.nouns import Measured
from stepscope.results.evidence import CellEvidence
from stepscope.results.overlap_gain import plan_of

LEAST_SIZES = 3
"""A smallest, a largest and one between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedStep:
    """One finished cell. cap_mb: its bucket size in MiB; buckets: bytes of each, in launch order, as planned."""

    cell: CellEvidence
    cap_mb: float
    buckets: tuple[int, ...]
    step: Measured
    exposed_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """One for each kind of cell that was run with at least so many bucket sizes."""
    done = {id(cell.result): cell for cell in cells if cell.run.status == "ok" and cell.run.step_ns is not None}
    found = []
    for kind in bucket_kinds(cell.result for cell in done.values()).values():
        sized = [size for result in kind if (size := _sized(done[id(result)])) is not None]
        if len(sized) >= least_sizes:
            found.append(BucketSweep(sizes=tuple(sorted(sized, key=lambda size: size.cap_mb))))
    return tuple(found)


def _sized(cell: CellEvidence) -> SizedStep | None:
    cap, step, exposed = bucket_cap(cell.spec), cell.run.step_ns, cell.run.exposed_comm_ns
    buckets = tuple(op.size_bytes for op in plan_of(cell.spec) if op.phase == "backward")
    if cap is None or step is None or not buckets:
        return None
    return SizedStep(
        cell=cell, cap_mb=cap, buckets=buckets, step=step, exposed_ns=None if exposed is None else exposed.value
    )


def conclusions(sweeps: Iterable[BucketSweep]) -> tuple[str, ...]:
    """The fastest size of each sweep, and of both ends by how much they are slower and what of it was measured."""
    return tuple(line for sweep in sweeps for line in _of(sweep))


def _of(sweep: BucketSweep) -> list[str]:
    best, least, most = sweep.best, sweep.sizes[0], sweep.sizes[-1]
    lines = [
        f"{best.cell.run.label}: {best.cap_mb:g} MiB is fastest of {len(sweep.sizes)} sizes measured,"
        f" {format_duration(best.step.value)} a step with {counted(len(best.buckets), 'bucket')}"
    ]
    if least is not best:
        lines.append(f"{_slower(least, best)}: {_why_small(least, best)}")
    if most is not best:
        lines.append(f"{_slower(most, best)}: {_why_large(most, best, sweep.gradient_bytes)}")
    return lines


def _slower(size: SizedStep, best: SizedStep) -> str:
    share, surely = format_percent(size.step.value / best.step.value - 1), best.step.below(size.step)
    if not surely:
        why = "too few steps" if surely is None else "the intervals overlap"
        return f"{size.cap_mb:g} MiB is not clearly slower ({share}, {why})"
    return f"{size.cap_mb:g} MiB is {share} slower"


def _why_small(least: SizedStep, best: SizedStep) -> str:
    more = len(least.buckets) - len(best.buckets)
    if more <= 0:
        return f"it makes the same {counted(len(least.buckets), 'bucket')}"
    text = f"{counted(len(least.buckets), 'all-reduce')} of about {_mean(least)} instead of {len(best.buckets)}"
    if best.step.below(least.step):
        each = format_duration((least.step.value - best.step.value) / more)
        text += f"; the step grows by {each} for each of the {more} more"
    return text


def _why_large(most: SizedStep, best: SizedStep, gradient_bytes: int) -> str:
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


def _mean(size: SizedStep) -> str:
    return format_bytes_binary(sum(size.buckets) / max(1, len(size.buckets)))
