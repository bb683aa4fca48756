"""Times of collectives are too noisy to compare, or their mean is far above the median.

What
----
Sizes whose 95% interval extends {reach%} or more from the median; sizes whose mean is at least twice the median; gloo ranks
that ran under the default scheduler policy.

Why
---
Differences smaller than the interval mean nothing. A training step waits for every call, so it pays the mean: long
tails cost more than the median shows. Under SCHED_OTHER waking gloo threads preempt each other if ranks share cores.

Known problems
--------------
Logs of other tools have no intervals and cannot be judged.

References
----------
docs/reference/metrics.md, Collectives. 1 KiB all-reduce of 2 gloo ranks on 2 cores: mean / median 4.0 under SCHED_OTHER, 1.0
to 1.4 under SCHED_BATCH (measured, 2026-11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.core.units import format_percent, format_size
from stepscope.core.words import counted
from stepscope.diagnose.commands import sweep_budget_ns, swept_again
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.records.comm import CommRow
from stepscope.records.finding import Finding, Skipped
from stepscope.results.comm_facts import interval_share, measured, size_of
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.results.labels import op_label, sweep_names

MAX_REACH = Limit(
    value=0.10, unit="interval's reach / median", source="5 times the half-width that a measurement aims at (2%)"
)
GLOO_THREADS = 4
"""Of a rank: main, gloo_tcp_loop and two pt_gloo_runloop threads, torch 2.13 (counted, 2026-11)."""

MEAN_OVER_MEDIAN = Limit(
    value=2.0, unit="mean / median", source="gloo, 1 KiB, 2 ranks on 2 cores: 4.0 SCHED_OTHER, to 1.4 SCHED_BATCH"
)


def check(evidence: Evidence) -> Statement:
    shown = measured(evidence.comm)
    wide = [(reach, row) for row in shown if (reach := interval_share(row)) is not None]
    tails = [(row.time_ns_mean / row.time_ns_median, row) for row in shown if row.time_ns_mean and row.time_ns_median]
    if not (wide or tails):
        return Skipped(reason="no collective has an interval or a mean", command=NEEDS["comm"][1])
    called = sweep_names(shown)

    def name(row: CommRow) -> str:
        return f"{op_label(row)} of {format_size(size_of(row))} on {called(row)}"

    findings = []
    if noisy := [interval for interval in wide if interval[0] > MAX_REACH.value]:
        reach, worst = max(noisy, key=lambda interval: interval[0])
        findings.append(_noisy(len(noisy), len(shown), reach, name(worst), _longer(evidence)))
    if long := [tail for tail in tails if tail[0] >= MEAN_OVER_MEDIAN.value]:
        ratio, worst = max(long, key=lambda tail: tail[0])
        findings.append(_tails(len(long), len(shown), ratio, name(worst)))
    if ordinary := [
        row
        for row in shown
        if row.backend == "gloo" and row.scheduler_policy == "SCHED_OTHER" and _shares_cores(evidence, row)
    ]:
        findings.append(_policy(ordinary))
    if findings:
        return tuple(findings)
    reach, worst = max(wide, key=lambda interval: interval[0], default=(0.0, shown[0]))
    return f"widest interval ±{format_percent(reach)} ({name(worst)}), limit ±{format_percent(MAX_REACH.value)}"


def _shares_cores(evidence: Evidence, row: CommRow) -> bool:
    """Whether gloo's threads of a host's ranks have fewer cores than they are; True where the cores are unknown."""
    machine = evidence.environment
    return machine is None or -(-row.world_size // (row.hosts or 1)) * GLOO_THREADS > machine.usable_cores


def _longer(evidence: Evidence) -> str | None:
    """Return the command with four times the budget that fell short: half the interval, where calls vary at random."""
    seconds = math.ceil(4 * sweep_budget_ns(evidence) / 1e9)
    return swept_again(evidence, "--budget", f"{seconds}s")


def _noisy(count: int, total: int, reach: float, worst: str, command: str | None) -> Finding:
    return Finding(
        severity="warning",
        title=f"{count} of {counted(total, 'size')}: the median is uncertain by more than "
        f"±{format_percent(MAX_REACH.value)}",
        evidence=(f"worst: ±{format_percent(reach)}, {worst}", "smaller differences mean nothing"),
        confidence="measured",
        advice=(
            advise("measure longer without other load on the machine: --budget gives each size more time", command),
        ),
    )


def _tails(count: int, total: int, ratio: float, worst: str) -> Finding:
    return Finding(
        severity="warning",
        title=f"{count} of {counted(total, 'size')} with long tails: the mean is up to {ratio:.1f}x the median",
        evidence=(f"worst: {worst}", "a step waits for every call, so it pays the mean"),
        confidence="measured",
        advice=(advise("check p99 and max in results.csv; other work on the cores or the network causes tails"),),
    )


def _policy(rows: Sequence[CommRow]) -> Finding:
    return Finding(
        severity="info",
        title="times of small messages vary: gloo's ranks ran under the default scheduler policy, SCHED_OTHER",
        evidence=(
            f"{counted(len(rows), 'size')}; where ranks share cores, waking threads preempt each other, and small messages "
            "take several times as long on average as under SCHED_BATCH",
        ),
        confidence="likely: the policy is recorded, its cost depends on the kernel",
        advice=(advise("check whether SCHED_BATCH is allowed on this machine", "stepscope doctor"),),
    )


RULE = Rule(
    symptom="times of collectives are noisy, or their mean is far above the median",
    needs=("comm",),
    look=check,
    protocol=1,
    thresholds={"reach": MAX_REACH, "tails": MEAN_OVER_MEDIAN},
)
