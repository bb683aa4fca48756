"""The same collective takes very different times although ranks arrive together: the network is shared.

What
----
Two ways. Calls of one size in `stepscope comm`: the slowest tenth takes at least {tail#} times the median, while the
ranks' medians are within {spread%} of each other (a slow rank would show there). Traces: among similar collectives
(operation, size, group), the transfer after the last rank's arrival has a slowest tenth of at least {tail#} times the
median.

Why
---
A step waits for its slowest collective. Tuning inside the job cannot remove variation by other jobs' traffic, and runs
at quiet and busy hours are not comparable.

Known problems
--------------
Ranks on one machine over loopback share cores, not a network, and are not judged. Messages below 1 MiB vary with the
host's scheduling. With fewer than 20 calls the slowest tenth is one or two calls, so one outlier could fire it.

References
----------
Bhatele et al., There goes the neighborhood: performance degradation due to nearby jobs, SC 2013 (up to 2x between equal
runs); docs/reference/metrics.md, Stragglers (transfer and waiting).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent, format_size
from stepscope.core.words import counted, grouped
from stepscope.diagnose.commands import is_slurm, swept_again
from stepscope.diagnose.rule import Limit, Rule, Statement, finding
from stepscope.records.comm import CommRow
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.results.comm_facts import LARGE_BYTES, by_sweep, size_of
from stepscope.results.evidence import Evidence

TAIL = Limit(
    1.5,
    unit="slowest tenth / median",
    source="a quiet shaped network between 4 hosts stays below 1.1 (2026-11); a second flow on a shared link doubles "
    "the time",
)
MOST_SPREAD = Limit(
    0.10,
    unit="(slowest - fastest rank) / slowest",
    source="ranks that differ by more include a slow rank, which another rule reports",
)
LEAST_CALLS = Limit(20, unit="calls", source="a tenth of them is two calls")


@record
class _Varying:
    name: str
    ratio: float
    sentences: tuple[str, ...]
    stake: float | None = None
    measured: bool = False


def check(evidence: Evidence) -> Statement:
    """Look for: collectives vary although ranks arrive together: the network is shared."""
    looked = sorted([*_varying_sweeps(evidence), *_varying_traces(evidence)], key=lambda varying: -varying.ratio)
    if not looked:
        return RULE.blind
    firing = grouped((v for v in looked if v.ratio >= TAIL), lambda varying: varying.measured)
    return [
        finding(
            f"{worst.name}: the slowest tenth of the calls takes {worst.ratio:.1f}x the median",
            worst.sentences,
            [f"{v.name}: {v.ratio:.1f}x" for v in others[:3]],
            severity="warning",
            stake=worst.stake,
            confidence="likely: the ranks share the network; a log of its switches would prove it",
            advice=[
                ("before tuning, measure again at another hour without other jobs of your own", swept_again(evidence)),
                ("ask for nodes under one switch", "sbatch --switches=1 JOB" if is_slurm(evidence) else None),
                "ask the operator about congestion control (ECN, adaptive routing) and the counters of the switches",
            ],
            of=worst.name,
        )
        for worst, *others in firing.values()
    ] or f"{looked[0].name}: slowest tenth {looked[0].ratio:.2f}x the median, limit {TAIL:g}x"


def _varying_sweeps(evidence: Evidence) -> Iterator[_Varying]:
    """Yield of each sweep the size whose slowest tenth is furthest above its median."""
    for name, rows in by_sweep(evidence.comm):
        row = max(filter(_is_judged, rows), key=_tail_ratio, default=None)
        if row is not None:
            tail = row.time_ns_p90 or 0.0
            yield _Varying(
                name=f"{name} at {format_size(size_of(row))}",
                ratio=_tail_ratio(row),
                sentences=(
                    f"median {format_duration(row.time_ns_median or 1.0)}, slowest tenth from {format_duration(tail)}, "
                    f"worst {format_duration(row.time_ns_max or tail)} of {counted(row.iterations or 0, 'call')}",
                    f"the ranks' own medians differ by {format_percent(row.rank_spread or 0.0)}: no rank is slow",
                ),
                measured=True,
            )


def _is_judged(row: CommRow) -> bool:
    """Whether a row is one of large messages over a network, with enough calls and ranks that arrive together."""
    over_network = (row.hosts or 1) > 1 or row.network is not None
    return (
        over_network
        and size_of(row) >= LARGE_BYTES
        and row.time_ns_p90 is not None
        and row.time_ns_median is not None
        and (row.iterations or 0) >= LEAST_CALLS
        and row.rank_spread is not None
        and row.rank_spread <= MOST_SPREAD
    )


def _tail_ratio(row: CommRow) -> float:
    return (row.time_ns_p90 or 0.0) / (row.time_ns_median or 1.0)


def _varying_traces(evidence: Evidence) -> Iterator[_Varying]:
    """Yield of each traced job on several hosts the collectives whose transfers vary most."""
    for trace in evidence.traces:
        job = trace.summary.collectives
        hosts = set(trace.summary.hosts.values()) - {None}
        if job is None or len(hosts) < 2:
            continue
        large = (one for one in job.instances if one.transfer_ns is not None and one.complete)
        like = grouped(large, lambda one: (one.op, one.size_bytes or 0, one.group.name if one.group else ""))
        for (op, size, _), instances in like.items():
            if size >= LARGE_BYTES and len(instances) >= LEAST_CALLS:
                name = f"{op} of {format_size(size)} in {trace.name}"
                yield _varying_instances(name, instances, max(trace.summary.windows_ns.values(), default=0))


def _varying_instances(name: str, instances: list[MatchedCollective], window_ns: int) -> _Varying:
    """Return how much the transfers of these collectives vary, and what that costs."""
    transfers = sorted(one.transfer_ns or 0 for one in instances)
    median = statistics.median(transfers) or 1.0
    slow = [one for one in instances if (one.transfer_ns or 0) >= TAIL * median]
    extra = sum((one.transfer_ns or 0) - median for one in slow)
    skew = sum(one.skew_ns or 0 for one in slow)
    return _Varying(
        name=name,
        ratio=transfers[int(0.9 * (len(transfers) - 1))] / median,
        sentences=(
            f"transfers after the last rank arrived: median {format_duration(median)}, slowest "
            f"{format_duration(transfers[-1])}, {len(slow)} of {counted(len(transfers), 'call')} above {TAIL:g}x",
            f"arrival skew of those calls: {format_duration(skew / max(1, len(slow)))} on average",
        ),
        stake=extra / window_ns if window_ns else None,
    )


RULE = Rule(
    symptom="collectives vary although ranks arrive together: the network is shared",
    sees=("comm", "traces"),
    unseen="no collective over a network with 20 calls of 1 MiB and more",
    unseen_command="stepscope comm --ops all_reduce --sizes 4M,64M --iters 50    # on several hosts",
    look=check,
    looks_at="comm over a network, traces",
    protocol=3,
    thresholds={"tail": TAIL, "spread": MOST_SPREAD, "calls": LEAST_CALLS},
)
