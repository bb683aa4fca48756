"""The step of a dry run over time: what computes, what is sent, and where the one waits for the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stepscope.predict.dry.host import HostPricing
from stepscope.predict.dry.step import Pricing, TimedRank, in_order
from stepscope.records.dry_run import DryRank
from stepscope.records.prediction import DryLanes, DrySpan

APART = 1e-3
"""Share of the step: kernels of one phase that are closer than this are one span."""


def lanes(rank: DryRank, pricing: Pricing | HostPricing) -> DryLanes | None:
    """Return the lanes of a rank; None of one with stages of a pipeline, and where all communication is taken to hide."""
    if rank.pipeline is not None or pricing.overlap or not rank.order:
        return None
    timed = pricing.timed(rank)
    clock = _Clock(timed)
    order = in_order(rank, timed.clocks)
    sent = [
        DrySpan(
            of=rank.calls[index].op,
            start_ns=start,
            end_ns=end,
            axis=rank.groups[rank.calls[index].group].axis,
            size_bytes=rank.calls[index].size_bytes,
        )
        for index, (_, start, end) in zip(order, timed.played.runs, strict=True)
    ]
    device, memory = timed.clocks.device_ns, rank.memory
    return DryLanes(
        computing=tuple(sorted((*_computing(rank, timed, clock), *clock.waits), key=lambda span: span.start_ns)),
        communicating=tuple(sent),
        at_ns=tuple(clock.at(device[min(at, len(rank.order))]) for at in memory.at),
        peak_ns=clock.at(device[min(memory.peak_at, len(rank.order))]),
        step_ns=timed.played.step_ns,
    )


class _Clock:
    """When the device has made so much progress: it goes on at one rate between the collectives that it waits for."""

    def __init__(self, timed: TimedRank) -> None:
        length = timed.clocks.length_ns
        needs = sorted((min(needed, length), end) for needed, _, end in timed.played.runs)
        rate = 1.0
        for _ in range(2):  # once to see how long it waits, and again at the rate that is left
            self.waits: list[DrySpan] = []
            self._progress, self._when = [0.0], [0.0]
            at = when = 0.0
            for needed, end in needs:
                when, at = when + (needed - at) * rate, needed
                self._add(at, when)
                if end > when:
                    self.waits.append(DrySpan(of="communication", start_ns=when, end_ns=end, waiting=True))
                    when = end
                    self._add(at, when)
            waited = sum(span.end_ns - span.start_ns for span in self.waits)
            self._add(length, when + (length - at) * rate)
            rate = max(1.0, (timed.played.step_ns - waited) / length) if length else 1.0

    def _add(self, progress: float, when: float) -> None:
        self._progress.append(progress)
        self._when.append(when)

    def at(self, progress: float, *, before: bool = False) -> float:
        """Return when so much is done. before: of a wait that begins there, not after it."""
        find = bisect_left if before else bisect_right
        place = min(max(find(self._progress, progress), 1), len(self._progress) - 1)
        low, high = self._progress[place - 1], self._progress[place]
        share = 1.0 if high <= low else min(1.0, (progress - low) / (high - low))
        return self._when[place - 1] + share * (self._when[place] - self._when[place - 1])

    def cut(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        """Yield the stretches of time in which this progress is made, without waits."""
        borders = sorted({start, end, *(at for at in self._progress if start < at < end)})
        for low, high in pairwise(borders):
            yield self.at(low), self.at(high, before=True)


def _computing(rank: DryRank, timed: TimedRank, clock: _Clock) -> Iterator[DrySpan]:
    device, host = timed.clocks.device_ns, timed.clocks.host_ns
    apart = APART * timed.clocks.length_ns
    runs: list[tuple[str, float, float]] = []
    for place, index in enumerate(rank.order):
        if device[place + 1] <= device[place]:
            continue
        start, end, phase = max(device[place], host[place + 1]), device[place + 1], rank.operators[index].phase
        if runs and runs[-1][0] == phase and start - runs[-1][2] <= apart:
            runs[-1] = phase, runs[-1][1], end
        else:
            runs.append((phase, start, end))
    for phase, start, end in runs:
        for low, high in _joined(list(clock.cut(start, end))):
            yield DrySpan(of=phase, start_ns=low, end_ns=high)


def _joined(stretches: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the stretches with those that touch made one."""
    joined: list[tuple[float, float]] = []
    for low, high in stretches:
        if joined and low - joined[-1][1] < 1.0:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined
