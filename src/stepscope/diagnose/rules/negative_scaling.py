"""More ranks are slower than fewer.

What
----
Throughput (or epoch time, on the same data) of a run relative to its baseline, below 1. Reports the worst run of every
group, with the causes that the evidence shows: duplicated data, exposed communication.

Why
---
Ranks beyond the baseline's cost money and return less than nothing. Until the cause is fixed, the job is cheaper and
faster on fewer ranks.

Known problems
--------------
A baseline with another batch, precision or machine makes any ratio possible; see `settings-differ` and `scaling-mixed`.
A speed-up whose interval contains 1 is not a gain either; the finding calls it uncertain.

References
----------
docs/reference/metrics.md, Scaling: speed-up < 1 is negative scaling.
"""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.diagnose.commands import profiled, remeasured, trace_command
from stepscope.diagnose.rule import Advices, Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.epochs import exposed_fraction
from stepscope.results.evidence import Evidence, cell_of
from stepscope.results.pairs import Pair, by_group, pairs, sharing_beside

SHARE_FIRST = (
    "see first whether each rank gets its own share of the data: DataLoader(sampler=DistributedSampler(dataset))"
)
MIN_SPEEDUP = Limit(1.0, unit="speed-up", source="below it more ranks are slower")


def check(evidence: Evidence) -> Statement:
    """Look for: more ranks are slower than fewer."""
    compared = [pair for pair in pairs(evidence) if pair.relative > 1]
    if not compared:
        return skipped(
            "no run on several ranks has a baseline on fewer ranks", "stepscope bench --preset strong-scaling"
        )
    slower = by_group(
        pair for pair in compared if pair.row.speedup < MIN_SPEEDUP and sharing_beside(pair, compared) is None
    )
    least = min(compared, key=lambda pair: pair.row.speedup)
    return [_negative_scaling_finding(evidence, group) for group in slower.values()] or (
        f"least speed-up {least.row.speedup:.2f}x, {least.name}; limit 1"
    )


def _negative_scaling_finding(evidence: Evidence, group: list[Pair]) -> Finding:
    """Return the finding, with evidence, stake and advice: more ranks are slower than fewer."""
    worst, *rest = sorted(group, key=lambda pair: pair.row.speedup)
    row, run, base, copies = worst.row, worst.run, worst.base, worst.copies
    unsure = row.high is not None and row.high >= MIN_SPEEDUP
    # What both state differently, so that any ratio is possible: hardware (NVIDIA A100 against Tesla V100).
    stated = ((name, getattr(run, name), getattr(base, name)) for name in ("hardware", "device", "precision"))
    differing = {name: (own, of) for name, own, of in stated if own and of and own != of} | worst.mixed
    others = ", ".join(f"{name} ({own} against {of})" for name, (own, of) in differing.items())
    exposed = None if copies else exposed_fraction(run)
    if others:
        confidence = "likely: more than the number of ranks differs"
    elif unsure:
        confidence = f"likely: the interval of the speed-up reaches {row.high:.2f}x"
    else:
        confidence = "measured" + ("" if row.high is not None else ", without an interval")
    return finding(
        f"{worst.ranks} are {'not clearly faster' if unsure else 'slower'} than {worst.base_ranks}: {row.speedup:.2f}x",
        f"speed-up {worst.speedup_text}: {format_percent(row.efficiency)} of {worst.relative:g}x",
        [f"also {other.run.label}: {other.row.speedup:.2f}x" for other in rest[:3]],
        copies
        and "explained by duplicated-data: the ranks do not share the work; no evidence of a communication problem",
        worst.keeps_its_epochs
        and f"an epoch takes as long on {worst.ranks} as on {worst.base_ranks}: each rank may run all of it, not its share",
        exposed is not None and f"{format_percent(exposed)} of the step is {EXPOSED_COMM}",
        others and f"the two also differ in {others}: the ratio is not that of the ranks alone",
        severity="warning" if unsure or others else "problem",
        stake=None if copies or others else 1 - row.efficiency,
        confidence=confidence,
        advice=["first give each rank its own share of the data: see duplicated-data"]
        if copies
        else [
            (
                f"measure {base.label} and {run.label} on the same machine and in the same precision first",
                remeasured(evidence, base, run),
            )
        ]
        if others
        else [
            *[SHARE_FIRST] * worst.keeps_its_epochs,
            f"run it on {worst.base_ranks} until the cause is found",
            _look_inside(evidence, worst),
        ],
        of=(run, base),
    )


def _look_inside(evidence: Evidence, pair: Pair) -> Advices:
    """The next step: read the run's traces, make some, or (a run of another tool) record some."""
    cell = cell_of(evidence, pair.run)
    if cell is None:
        return "find where the step time goes: record a few steps with torch.profiler on all ranks"
    traced = evidence.trace_of(cell.cell_id)
    if traced is not None:
        return (
            "find where the step time goes: traces of this run are available",
            trace_command(traced, "--show budget,overlap,collectives,stragglers"),
        )
    return ("find where the step time goes: trace a few steps on all ranks", profiled(evidence, cell))


RULE = Rule(
    symptom="more ranks are slower than fewer",
    needs=("scaling",),
    look=check,
    folded=True,
    protocol=1,
    thresholds={"speedup": MIN_SPEEDUP},
)
