"""Which strategy is fastest among runs that differ in nothing else.

What
----
Compares runs on the same number of ranks that share model, data, batch, precision and every setting, and differ in the
strategy or its options. Names the fastest with its gain over the slowest if the 95% intervals of the two step times do
not overlap (stricter than a test).

Why
---
This is the question that a matrix of strategies asks. Any other difference between two cells would answer another
question.

Known problems
--------------
Runs without an interval are not ranked. On CPU ranks that share cores the order says little about GPUs.

References
----------
docs/reference/metrics.md, Scaling.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped, in_words
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.results.learning import lossy

_OF_A_STRATEGY = ("strategy", "mesh", "micro_batch")
"""Settings that belong to a strategy: how it arranges the ranks, and each one's share of the global batch."""


def check(evidence: Evidence) -> Statement:
    """Look for: the fastest of several strategies."""
    timed = [
        (run, run.step_ns)
        for run in evidence.runs
        if run.status == "ok" and run.step_ns is not None and (run.world_size or 0) > 1
    ]
    alike = grouped(timed, lambda pair: _same_but_strategy(pair[0])).values()
    groups = [sorted(group, key=lambda pair: pair[1].value) for group in alike if _labels_differ(group)]
    if not groups:
        return skipped("no two runs differ in the strategy alone", NEEDS["cells"][1])
    several = len({group[0][0].global_batch for group in groups}) > 1
    names = [run.label for run, _ in groups[0]]
    listed = in_words(names) if len(names) <= 4 else f"{len(names)} strategies"
    return [
        _fastest_strategy_finding(group, several=several) for group in groups if group[0][1].below(group[-1][1])
    ] or (f"{groups[0][0][0].group}: no significant difference between {listed}")


def _labels_differ(group: Sequence[tuple[TrainingRun, Measured]]) -> bool:
    """Whether the labels distinguish the runs: what differs besides the strategy shows nowhere else."""
    strategies = {
        (run.strategy, repr(sorted(run.strategy_options.items())), str(run.settings.get("mesh"))) for run, _ in group
    }
    return len(strategies) == len(group) > 1


def _same_but_strategy(run: TrainingRun) -> tuple[object, ...]:
    """Return a key that runs share which differ in their strategy alone."""
    rest, varied = (
        {key: value for key, value in all_of.items() if not key.startswith(_OF_A_STRATEGY)}
        for all_of in (run.settings, run.varied)
    )
    return (
        run.source, run.group, run.model, run.dataset, run.precision, run.accumulation, run.world_size, run.global_batch,
        run.device, run.backend, run.hardware, repr(sorted(rest.items())), repr(sorted(varied.items())),
    )  # fmt: skip


def _fastest_strategy_finding(group: Sequence[tuple[TrainingRun, Measured]], *, several: bool) -> Finding:
    """Report the fastest of a group. several: groups of other global batches are judged as well."""
    (fast, fast_step), (slow, slow_step) = group[0], group[-1]
    gain = format_percent(slow_step.value / fast_step.value - 1)
    assert None not in (fast_step.low, fast_step.high, slow_step.low, slow_step.high)
    least, most = (slow_step.low or 0) / (fast_step.high or 1) - 1, (slow_step.high or 0) / (fast_step.low or 1) - 1
    tied = ", ".join(run.label for run, step in group[1:] if not fast_step.below(step))
    confidence = "measured: the 95% intervals do not overlap"
    if lossy(fast) and not lossy(slow):
        confidence += "; the fastest rounds or compresses gradients and trains a little differently: check the loss"
    if fast.device == "cpu":
        confidence += "; CPU ranks communicate with the cores that compute: on GPUs the order may differ"
    return finding(
        (
            f"{fast.strategy} is {gain} faster than {slow.strategy} on {counted(fast.world_size or 0, 'rank')}"
            if fast.strategy != slow.strategy
            else f"{fast.label} is {gain} faster than {slow.label}"
        )
        + (f", global batch {fast.global_batch}" if several else ""),
        f"step: {', '.join(f'{run.label} {format_duration(step.value)}' for run, step in group[:6])}",
        f"gain by the 95% intervals: {format_percent(least)} to {format_percent(most)}",
        tied and f"not significantly slower than the fastest: {tied}",
        severity="info",
        confidence=confidence,
        of=fast.group,
        runs=tuple(run.run_id for run, _ in group),
    )


RULE = Rule(
    symptom="the fastest of several strategies",
    needs=("runs",),
    look=check,
    decided_by="95% intervals of the steps that do not overlap",
    protocol=5,
    good_news=True,
)
