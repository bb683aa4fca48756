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

from stepscope.core.units import format_percent, format_size
from stepscope.core.words import counted
from stepscope.diagnose.commands import sweep_budget_ns, swept_again
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.comm import CommRow
from stepscope.results.comm_facts import interval_share, measured, size_of
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.results.labels import op_label, sweep_names

MAX_REACH = Limit(
    0.10, unit="interval's reach / median", source="5 times the half-width that a measurement aims at (2%)"
)

GLOO_THREADS = 4
"""Of a rank: main, gloo_tcp_loop and two pt_gloo_runloop threads, torch 2.13 (counted, 2026-11)."""

MEAN_OVER_MEDIAN = Limit(
    2.0, unit="mean / median", source="gloo, 1 KiB, 2 ranks on 2 cores: 4.0 SCHED_OTHER, to 1.4 SCHED_BATCH"
)


def check(evidence: Evidence) -> Statement:
    """Look for: times of collectives are noisy, or their mean is far above the median."""
    shown = measured(evidence.comm)
    wide = [(reach, row) for row in shown if (reach := interval_share(row)) is not None]
    tails = [(row.time_ns_mean / row.time_ns_median, row) for row in shown if row.time_ns_mean and row.time_ns_median]
    if not (wide or tails):
        return skipped("no collective has an interval or a mean", NEEDS["comm"][1])
    called, total = sweep_names(shown), counted(len(shown), "size")

    def name(row: CommRow) -> str:
        return f"{op_label(row)} of {format_size(size_of(row))} on {called(row)}"

    findings: list[Finding] = []
    reach, worst = max(wide, key=lambda interval: interval[0], default=(0.0, shown[0]))
    limit = f"±{format_percent(MAX_REACH)}"
    if reach > MAX_REACH:
        # Four times the budget that fell short: half the interval, where calls vary at random.
        seconds = math.ceil(4 * sweep_budget_ns(evidence) / 1e9)
        findings.append(
            finding(
                f"{sum(r > MAX_REACH for r, _ in wide)} of {total}: the median is uncertain by more than {limit}",
                f"worst: ±{format_percent(reach)}, {name(worst)}",
                "smaller differences mean nothing",
                advice=[
                    (
                        "measure longer without other load on the machine: --budget gives each size more time",
                        swept_again(evidence, "--budget", f"{seconds}s"),
                    )
                ],
            )
        )
    if long := [tail for tail in tails if tail[0] >= MEAN_OVER_MEDIAN]:
        ratio, slowest = max(long, key=lambda tail: tail[0])
        findings.append(
            finding(
                f"{len(long)} of {total} with long tails: the mean is up to {ratio:.1f}x the median",
                f"worst: {name(slowest)}",
                "a step waits for every call, so it pays the mean",
                advice=["check p99 and max in results.csv; other work on the cores or the network causes tails"],
            )
        )
    if ordinary := sum(
        row.backend == "gloo" and row.scheduler_policy == "SCHED_OTHER" and _shares_cores(evidence, row)
        for row in shown
    ):
        findings.append(
            finding(
                "times of small messages vary: gloo's ranks ran under the default scheduler policy, SCHED_OTHER",
                f"{counted(ordinary, 'size')}; where ranks share cores, waking threads preempt each other, and small "
                "messages take several times as long on average as under SCHED_BATCH",
                severity="info",
                confidence="likely: the policy is recorded, its cost depends on the kernel",
                advice=[("check whether SCHED_BATCH is allowed on this machine", "stepscope doctor")],
            )
        )
    return findings or f"widest interval ±{format_percent(reach)} ({name(worst)}), limit {limit}"


def _shares_cores(evidence: Evidence, row: CommRow) -> bool:
    """Whether gloo's threads of a host's ranks have fewer cores than they are; True where the cores are unknown."""
    machine = evidence.environment
    return machine is None or -(-row.world_size // (row.hosts or 1)) * GLOO_THREADS > machine.usable_cores


RULE = Rule(
    symptom="times of collectives are noisy, or their mean is far above the median",
    needs=("comm",),
    look=check,
    protocol=1,
    thresholds={"reach": MAX_REACH, "tails": MEAN_OVER_MEDIAN},
)
