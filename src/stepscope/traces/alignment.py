"""The clocks of all ranks against one rank's: offset and drift from the ends of collectives.

All ranks leave an all_reduce together, but do not enter it together: ends align clocks, starts do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration
from stepscope.records.trace_collectives import (
    ClockAlignment,
    ClockFit,
    Contradicted,
    Instance,
    RankCollective,
    RankCommunication,
    Rebased,
)
from stepscope.stats.order import pair_slopes
from stepscope.stats.spans import distinct, median
from stepscope.traces.collective_calls import TOGETHER
from stepscope.traces.events import Ints

Floats = NDArray[np.float64]

AGREE_NS = 20_000
"""Ends of one collective differ by 1 to 7 us on a node of V100s (2026-11), by some 10 us across nodes: clocks that
differ by less cannot be told from that, and are left alone."""

_MIN_COLLECTIVES = 3  # below, an offset is one rank's luck
_MIN_STEPS = 3  # in which they agree on it, where steps are marked
_OF_A_STEP = 0.05  # an offset this near a multiple of the time between steps is one of counting
_ANY_HOST = ("localhost", "localhost.localdomain", "")
"""Names that many machines have: ranks under them may have different clocks."""
_MIN_FOR_DRIFT = 8
_MAX_DRIFT = 1e-3  # quartz is off by at most some 1e-4
_SLOPE_POINTS = 128
_SIGMA = 1.4826  # median absolute deviation -> standard deviation
_SURE = 0.5  # confidence of a match that may say something about clocks


def base_shifts(ranks: Sequence[RankCommunication]) -> dict[int, int]:
    """Return by rank what to add to its times so that all count from one base; ranks' files may state different ones.

    A rank without a recorded base has 0.
    """
    bases = {r.rank: r.base_time_ns for r in ranks}
    recorded = [b for b in bases.values() if b is not None]
    if not recorded:
        return dict.fromkeys(bases, 0)
    return {rank: 0 if base is None else base - min(recorded) for rank, base in bases.items()}


def align_clocks(ranks: Sequence[RankCommunication], instances: Sequence[Instance]) -> ClockAlignment:
    """Fit every rank's clock to the reference rank's (the lowest of those with most usable instances).

    Ranks that share no collective with the reference are reached through those that do. A clock is corrected only
    where the fit differs from the recorded one by more than AGREE_NS and three times the fit's residual, and
    where correcting does not make more collectives impossible (left by one rank before another entered). Ranks of one host
    have one clock, whatever their collectives say: on a busy machine one rank leaves milliseconds after another.
    Near-linear in instances times ranks. Different ``base_time_ns`` are always corrected.
    """
    look = {r.rank: r for r in sorted(ranks, key=lambda r: r.rank)}
    shifts = base_shifts(ranks)
    usable = [i for i in instances if _is_usable(i, look)]
    counts: dict[int, int] = defaultdict(int)
    for instance in usable:
        for m in instance.members:
            counts[m.rank] += 1
    if not counts:
        fits = tuple(_rebased_fit(_unknown_fit(r, "no collective in common"), shifts) for r in look)
        return ClockAlignment(
            reference_rank=None,
            fits=fits,
            text="clocks not compared: no collective appears on two ranks" if len(look) > 1 else "one rank",
        )
    reference = min(counts, key=lambda r: (-counts[r], r))
    lines = _lines_by_rank(usable, look, shifts, reference)
    fits_by_rank = _one_per_host(lines, look, reference)
    step_ns = _between_steps(look[reference])
    decided = [_clock_fit(rank, fits_by_rank.get(rank), look, reference, step_ns) for rank in look]
    chosen = [_rebased_fit(f, shifts, reference=reference) for f in decided]
    uncorrected = [_fit_without_correction(f) for f in decided]
    as_recorded = [_rebased_fit(f, shifts, reference=reference) for f in uncorrected]
    if uncorrected != decided and _impossible_count(usable, look, chosen) > _impossible_count(
        usable, look, as_recorded
    ):
        chosen = as_recorded
    return ClockAlignment(reference_rank=reference, fits=tuple(chosen), text=_clocks_text(chosen))


def corrected(fit: ClockFit, time_ns: int) -> int:
    """Return a time of this rank on the reference rank's clock, to the nearest ns; it is unchanged unless corrected."""
    if fit.status != "corrected":
        return time_ns
    return time_ns - round(fit.offset_ns + fit.drift * (time_ns - fit.at_ns))


@record
class _Line:
    """difference = offset + drift * (time - at)."""

    at_ns: int
    offset: float
    drift: float
    residual: float
    count: int
    span_ns: int
    steps: int | None = None  # in which the differences agree with it; None where steps are not marked

    def furthest(self) -> float:
        return abs(self.offset) + abs(self.drift) * self.span_ns / 2

    def value(self, time_ns: int) -> float:
        return self.offset + self.drift * (time_ns - self.at_ns)


def fit_line(times_ns: Ints, differences_ns: Ints) -> _Line:
    """Fit a clock's offset and drift robustly: Theil-Sen, then least squares over what lies within three deviations.

    The drift counts only if it explains the differences clearly better than a constant does. residual: 1.4826 x
    median absolute deviation.
    """
    low, high = int(times_ns.min()), int(times_ns.max())
    at = (low + high) // 2
    x = (times_ns - at).astype(np.float64)
    base = int(median(differences_ns))
    y = (differences_ns - base).astype(np.float64)
    level = median(y)
    flat = _robust_deviation(y - level)
    constant = _Line(at_ns=at, offset=base + level, drift=0.0, residual=flat, count=len(x), span_ns=high - low)
    if len(x) < _MIN_FOR_DRIFT or high == low:
        return constant
    slope = _theil_sen(x, y)
    start = median(y - slope * x)
    rest = y - start - slope * x
    scale = _robust_deviation(rest)
    kept = np.abs(rest) <= 3 * max(scale, 1.0)
    if kept.sum() >= _MIN_FOR_DRIFT and np.ptp(x[kept]) > 0:
        slope, start = (float(v) for v in np.polyfit(x[kept], y[kept], 1))
        scale = _robust_deviation(y - start - slope * x)
    steep = abs(slope) * (high - low)
    if abs(slope) > _MAX_DRIFT or steep <= 3 * scale or scale > 0.7 * flat:
        return constant
    return _Line(at_ns=at, offset=base + start, drift=slope, residual=scale, count=len(x), span_ns=high - low)


def _theil_sen(x: Floats, y: Floats) -> float:
    """Median slope over pairs of at most _SLOPE_POINTS evenly chosen points."""
    chosen = distinct(np.linspace(0, len(x) - 1, min(len(x), _SLOPE_POINTS)).astype(np.int64))
    slopes = pair_slopes(x[chosen], y[chosen])
    return median(slopes) if slopes.size else 0.0


def _robust_deviation(values: Floats) -> float:
    return _SIGMA * median(np.abs(values - median(values)))


def _is_usable(instance: Instance, look: Mapping[int, RankCommunication]) -> bool:
    if len(instance.members) < 2 or (instance.confidence or 0.0) < _SURE:
        return False
    return all(_collective_at(m.rank, m.position, look).op in TOGETHER for m in instance.members)


def _lines_by_rank(
    usable: Sequence[Instance], look: Mapping[int, RankCommunication], shifts: dict[int, int], reference: int
) -> dict[int, _Line]:
    """Each reachable rank's line, level by level outwards from the reference."""
    lines = {reference: _Line(at_ns=0, offset=0.0, drift=0.0, residual=0.0, count=0, span_ns=0)}
    waiting = list(usable)
    while waiting:
        times: dict[int, list[int]] = defaultdict(list)
        differences: dict[int, list[int]] = defaultdict(list)
        numbers: dict[int, list[int | None]] = defaultdict(list)
        later = []
        for instance in waiting:
            ends = {m.rank: _collective_at(m.rank, m.position, look).end_ns + shifts[m.rank] for m in instance.members}
            reference_ends = [e - round(lines[r].value(e)) for r, e in ends.items() if r in lines]
            new = [r for r in ends if r not in lines]
            if not new:
                continue
            if not reference_ends:
                later.append(instance)
                continue
            common = median_low(reference_ends)
            step = _collective_at(instance.members[0].rank, instance.members[0].position, look).step
            for r in new:
                times[r].append(ends[r])
                differences[r].append(ends[r] - common)
                numbers[r].append(step)
        if not times:
            break
        for r, values in times.items():
            line = fit_line(np.array(values, dtype=np.int64), np.array(differences[r], dtype=np.int64))
            lines[r] = replace(line, steps=_agreeing_steps(line, values, differences[r], numbers[r]))
        waiting = later
    return lines


def _agreeing_steps(
    line: _Line, times: Sequence[int], differences: Sequence[int], numbers: Sequence[int | None]
) -> int | None:
    """Count the steps in which a difference lies on the line; None where the steps are not marked."""
    if all(number is None for number in numbers):
        return None
    allowed = max(float(AGREE_NS), 3 * line.residual)
    rows = zip(times, differences, numbers, strict=True)
    return len({n for t, d, n in rows if n is not None and abs(d - line.value(t)) <= allowed})


def _between_steps(rank: RankCommunication) -> float | None:
    """Median time between the first collectives of neighbouring steps; None where fewer than two are marked."""
    first: dict[int, int] = {}
    for c in rank.collectives:
        if c.step is not None:
            first[c.step] = min(first.get(c.step, c.start_ns), c.start_ns)
    starts = np.array([first[n] for n in sorted(first)], dtype=np.int64)
    return median(np.diff(starts)) if len(starts) > 1 else None


def _one_per_host(lines: dict[int, _Line], look: Mapping[int, RankCommunication], reference: int) -> dict[int, _Line]:
    """Give ranks of one host, which share a clock, one line, unless many machines have the host's name and the ranks' own
    lines contradict it."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in lines:
        host = look[rank].host
        if host is not None:
            by_host[host].append(rank)
    result = dict(lines)
    for host, members in by_host.items():
        fitted = [r for r in members if r != reference]
        if len(members) < 2 or not fitted:
            continue
        at = int(median([lines[r].at_ns for r in fitted]))
        values = [lines[r].value(at) for r in fitted]
        middle = 0.0 if host == look[reference].host else median(values)
        for r, value in zip(fitted, values, strict=True):
            if host not in _ANY_HOST or abs(value - middle) <= max(5 * AGREE_NS, 5 * lines[r].residual):
                drift = 0.0 if host == look[reference].host else median([lines[m].drift for m in fitted])
                result[r] = replace(lines[r], at_ns=at, offset=middle, drift=drift)
    return result


def _clock_fit(
    rank: int, line: _Line | None, look: Mapping[int, RankCommunication], reference: int, step_ns: float | None
) -> ClockFit:
    """Return the fit of one rank's clock against the reference: same host, corrected, or why it is unknown."""
    if rank == reference:
        return replace(_unknown_fit(rank, "reference rank of the comparison"), status="reference")
    if line is None:
        return _unknown_fit(rank, "no collective in common with a compared rank")
    fit = ClockFit(
        rank=rank,
        status="unknown",
        offset_ns=line.offset,
        drift=line.drift,
        at_ns=line.at_ns,
        residual_ns=line.residual,
        collectives=line.count,
        reason="",
    )
    host = look[rank].host
    if host is not None and host == look[reference].host and line.offset == 0.0 and line.drift == 0.0:
        # What is left is how far apart the ranks woke up: no doubt about their clock.
        residual = min(line.residual, float(AGREE_NS))
        return replace(fit, status="same_host", residual_ns=residual, reason=f"on {host}, as rank {reference}")
    if line.count < _MIN_COLLECTIVES:
        return replace(fit, reason=f"only {line.count} collectives in common")
    allowed = max(float(AGREE_NS), 3 * line.residual)
    if line.furthest() <= allowed:
        return replace(fit, status="agrees", reason=f"within {format_duration(allowed)}")
    if line.steps is not None and line.steps < _MIN_STEPS:
        return replace(fit, reason=f"collectives of only {line.steps} steps agree on it")
    if (
        step_ns
        and round(abs(line.offset) / step_ns)
        and abs(abs(line.offset) / step_ns % 1.0 - 0.5) >= 0.5 - _OF_A_STEP
    ):
        steps = round(abs(line.offset) / step_ns)
        return replace(
            fit, reason=f"it differs by the time of {steps} step{'s' * (steps > 1)}: the steps may be shifted"
        )
    return replace(fit, status="corrected", reason=f"differs by up to {format_duration(line.furthest())}")


def _rebased_fit(fit: ClockFit, shifts: dict[int, int], *, reference: int | None = None) -> ClockFit:
    """Return the fit in terms of the rank's own recorded times, its base time included."""
    ahead = shifts[fit.rank] - (0 if reference is None else shifts[reference])
    at = fit.at_ns - shifts[fit.rank]
    if ahead == 0:
        return replace(fit, at_ns=at)
    moves = fit.status == "corrected"
    return replace(
        fit if moves else Rebased(**asdict(fit)),
        status="corrected",
        offset_ns=(fit.offset_ns if moves else 0.0) - ahead,
        drift=fit.drift if moves else 0.0,
        at_ns=at,
        reason=f"its file counts from another base time; {fit.reason}",
    )


def _fit_without_correction(fit: ClockFit) -> ClockFit:
    """Return the fit without its correction."""
    if fit.status != "corrected":
        return fit
    fields = {**asdict(fit), "status": "unknown", "reason": "correcting it would make collectives impossible"}
    return Contradicted(**fields)


def _unknown_fit(rank: int, reason: str) -> ClockFit:
    return ClockFit(
        rank=rank, status="unknown", offset_ns=0.0, drift=0.0, at_ns=0, residual_ns=None, collectives=0, reason=reason
    )


def _impossible_count(
    usable: Sequence[Instance], look: Mapping[int, RankCommunication], fits: Sequence[ClockFit]
) -> int:
    """Count the collectives that, on the corrected clocks, one rank leaves before another enters."""
    by_rank = {f.rank: f for f in fits}
    count = 0
    for instance in usable:
        spans = [(_collective_at(m.rank, m.position, look), by_rank[m.rank]) for m in instance.members]
        last = max(corrected(fit, c.start_ns) for c, fit in spans)
        count += last > min(corrected(fit, c.end_ns) for c, fit in spans)
    return count


def _clocks_text(fits: Sequence[ClockFit]) -> str:
    """Say how many clocks were corrected, by how much at most, and how many could not be compared."""
    moved = [f for f in fits if f.status == "corrected"]
    unknown = [f for f in fits if f.status == "unknown"]
    if moved:
        most = max(moved, key=lambda f: abs(f.offset_ns))
        text = f"{len(moved)} of {len(fits)} clocks corrected, rank {most.rank} by {most.offset_ns / 1000:,.0f} us"
    else:
        text = "clocks agree"
    if unknown:
        text += f"; {len(unknown)} could not be compared ({unknown[0].reason})"
    return text


def _collective_at(rank: int, position: int, look: Mapping[int, RankCommunication]) -> RankCollective:
    return look[rank].collectives[position]
