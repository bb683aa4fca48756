"""Bus bandwidth is lower at the largest size than at a smaller size.

What
----
Fires on sweeps of at least three sizes if busbw at the largest size is at least {drop%} below its maximum and the 95%
intervals of the two do not overlap. Tables of other tools have means without an interval: there it takes {without%}, and a
smaller drop is not judged.

Why
---
busbw grows with the size until the link is saturated and then stays constant. A drop means that large messages hit a
limit that smaller ones do not: a cache, a shared switch, paging, an unsuitable protocol. Gradient buckets and
all-gathers of that size are slower.

Known problems
--------------
On CPUs the drop is common once messages exceed the caches; it does not concern the network.

References
----------
nccl-tests, doc/PERFORMANCE.md: bus bandwidth does not depend on the size once latency is paid.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_bandwidth, format_percent, format_size
from stepscope.core.words import grouped
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.comm import CommRow
from stepscope.results.comm_facts import above_peak, by_sweep, size_of
from stepscope.results.evidence import NEEDS, Evidence

MIN_DROP = Limit(
    0.10,
    unit="1 - busbw at the largest size / best busbw",
    source="5 times the half-width of the interval that a measurement aims at (2%)",
)
WITHOUT_INTERVAL = Limit(
    0.25,
    unit="1 - busbw at the largest size / best busbw, of means without an interval",
    source="means of one size, out of and in place, differ by up to 14% in nine public logs of nccl-tests (2026-11)",
)
_BUCKETED = ("all_reduce", "reduce_scatter", "all_gather")
"""Operations whose messages are buckets or units, whose size is an option."""

LEAST_SIZES = Limit(3, unit="sizes of a sweep", source="of two sizes, one is always lower")


def check(evidence: Evidence) -> Statement:
    """Look for: bus bandwidth drops at large sizes."""
    sweeps = []
    for name, rows in by_sweep(evidence.comm):
        rated = [row for row in rows if row.busbw_bytes_per_s and not _is_burst(row)]
        if len(rated) >= LEAST_SIZES:
            best, last = max(rated, key=_busbw_of), rated[-1]
            falls = next((row for row in rated if size_of(row) > size_of(best) and _is_low(row, best, last)), last)
            sweeps.append((1 - _busbw_of(last) / _busbw_of(best), name, best, last, falls))
    if not sweeps:
        return skipped("no sweep has three sizes with a bus bandwidth", NEEDS["comm"][1])
    sweeps.sort(key=lambda sweep: -sweep[0])
    drop, name, best, last, _ = sweeps[0]
    falling = [sweep for sweep in sweeps if sweep[0] >= MIN_DROP and _is_clearly_lower(*sweep[2:4])]
    if falling:
        # Out of place and in place, of one table of another tool, are one finding.
        tables = grouped(falling, lambda sweep: _sweep_or_table_name(sweep[1], sweep[3]))
        return [
            _busbw_drop_finding(*of_table[0], others=[sweep[1:4] for sweep in of_table[1:]])
            for of_table in tables.values()
        ]
    if drop >= MIN_DROP and not _has_interval(best, last):
        return skipped(f"{name}: {_lower_text(drop, best, last)}, of means without an interval", NEEDS["comm"][1])
    return f"{name}: {_lower_text(drop, best, last)}, limit {format_percent(MIN_DROP)} beyond noise"


def _sweep_or_table_name(name: str, row: CommRow) -> str:
    """What a finding is of: the sweep, or where a tool measured in and out of place at once, its table."""
    return (
        name
        if row.time_ns_median
        else f"{row.cell_id.removesuffix(', in place').removesuffix(', out of place')} {row.op}"
    )


def _is_burst(row: CommRow) -> bool:
    """Whether an emulated link let the message pass faster than its rate: what follows is that rate, no drop."""
    return row.network is not None and above_peak(row, row.link_peak_bytes_per_s) is not None


def _busbw_of(row: CommRow) -> float:
    return row.busbw_bytes_per_s or 0.0


def _lower_text(drop: float, best: CommRow, last: CommRow) -> str:
    return f"{format_percent(drop)} lower at {format_size(size_of(last))} than at {format_size(size_of(best))}"


def _is_clearly_lower(best: CommRow, last: CommRow) -> bool:
    """Whether the interval of the rate at ``best`` is above that at ``last``; of means, whether it is much higher."""
    if not (best.time_ns_high and last.time_ns_low and best.time_ns_median and last.time_ns_median):
        return (
            not (best.time_ns_median or last.time_ns_median)
            and 1 - _busbw_of(last) / _busbw_of(best) >= WITHOUT_INTERVAL
        )
    slowest_best = _busbw_of(best) * best.time_ns_median / best.time_ns_high
    return slowest_best > _busbw_of(last) * last.time_ns_median / last.time_ns_low


def _has_interval(*rows: CommRow) -> bool:
    return all(row.time_ns_low and row.time_ns_high and row.time_ns_median for row in rows)


def _is_low(row: CommRow, best: CommRow, last: CommRow) -> bool:
    """Whether a rate is nearer to that at ``last`` than to the best."""
    return _busbw_of(row) < (_busbw_of(best) + _busbw_of(last)) / 2


def _busbw_drop_finding(
    drop: float,
    name: str,
    best: CommRow,
    last: CommRow,
    falls: CommRow,
    *,
    others: Sequence[tuple[str, CommRow, CommRow]],
) -> Finding:
    """Return the finding, with evidence, stake and advice: bus bandwidth drops at large sizes."""
    cpu = last.device == "cpu"
    keep = ", and keep buckets below it" if last.op in _BUCKETED else ": larger messages in pieces may be faster"
    return finding(
        f"{name}: busbw is {_lower_text(drop, best, last)}",
        f"{format_bandwidth(_busbw_of(best))} at {format_size(size_of(best))}, {format_bandwidth(_busbw_of(last))} at "
        f"{format_size(size_of(last))}",
        falls is not last
        and f"from {format_size(size_of(falls))} on it is low: {format_bandwidth(_busbw_of(falls))} there",
        [
            f"{other}: {format_bandwidth(_busbw_of(high))} at {format_size(size_of(high))}, "
            f"{format_bandwidth(_busbw_of(low))} at {format_size(size_of(low))}"
            for other, high, low in others
        ],
        cpu and "common on CPU ranks: large messages no longer fit the CPU's caches",
        severity="info" if cpu else "warning",
        confidence="measured; the cause is unknown"
        if _has_interval(best, last)
        else "measured, means without an interval; the cause is unknown",
        advice=[
            (
                f"find the size where busbw drops{keep}",
                f"stepscope comm --ops {last.op} --sizes {size_of(best)}:{size_of(last)}:2",
            )
        ],
        of=name,
    )


RULE = Rule(
    symptom="bus bandwidth drops at large sizes",
    needs=("comm",),
    look=check,
    protocol=3,
    thresholds={"drop": MIN_DROP, "without": WITHOUT_INTERVAL, "sizes": LEAST_SIZES},
)
