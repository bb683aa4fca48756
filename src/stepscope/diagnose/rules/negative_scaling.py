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
from stepscope.diagnose.commands import profiled, remeasured
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.diagnose.trace_facts import trace_command
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.results.epochs import exposed_fraction
from stepscope.results.evidence import Evidence, cell_of
from stepscope.results.pairs import Pair, by_group, pairs

MIN_SPEEDUP = Limit(value=1.0, unit="speed-up", source="below it more ranks are slower")


def check(evidence: Evidence) -> Statement:
    compared = [pair for pair in pairs(evidence) if pair.relative > 1]
    if not compared:
        return Skipped(
            reason="no run on several ranks has a baseline on fewer ranks",
            command="stepscope bench --preset strong-scaling",
        )
    slower = [pair for pair in compared if pair.row.speedup < MIN_SPEEDUP.value]
    if slower:
        return [_report(evidence, group) for group in by_group(slower).values()]
    least = min(compared, key=lambda pair: pair.row.speedup)
    return f"least speed-up {least.row.speedup:.2f}x, {least.name}; limit 1"


def _report(evidence: Evidence, group: list[Pair]) -> Finding:
    ranked = sorted(group, key=lambda pair: pair.row.speedup)
    worst = ranked[0]
    row, run = worst.row, worst.run
    copies = worst.copies
    sentences = [f"speed-up {worst.speedup_text}: {format_percent(row.efficiency)} of {worst.relative:g}x"]
    sentences += [f"also {other.run.label}: {other.row.speedup:.2f}x" for other in ranked[1:4]]
    if copies:
        sentences.append(
            "explained by duplicated-data: the ranks do not share the work; no evidence of a communication problem"
        )
    elif (exposed := exposed_fraction(run)) is not None:
        sentences.append(f"{format_percent(exposed)} of the step is {EXPOSED_COMM}")
    unsure = row.high is not None and row.high >= MIN_SPEEDUP.value
    how = "not clearly faster" if unsure else "slower"
    others = _other_work(worst)
    if others:
        sentences.append(f"the two also differ in {others}: the ratio is not that of the ranks alone")
    return Finding(
        severity="warning" if unsure or others else "problem",
        title=f"{worst.ranks} are {how} than {worst.base_ranks}: {row.speedup:.2f}x",
        evidence=tuple(sentences),
        stake_fraction=None if copies or others else 1 - row.efficiency,
        confidence="likely: more than the number of ranks differs"
        if others
        else f"likely: the interval of the speed-up reaches {row.high:.2f}x"
        if unsure
        else "measured" + ("" if row.high is not None else ", without an interval"),
        advice=_advice(evidence, worst, copies=copies),
        subject=worst.name,
        runs=(worst.run.run_id, worst.base.run_id),
    )


def _other_work(pair: Pair) -> str:
    """Say what both state differently, so that any ratio is possible: ``hardware (NVIDIA A100 against Tesla V100)``."""
    stated = ((name, getattr(pair.run, name), getattr(pair.base, name)) for name in ("hardware", "device", "precision"))
    return ", ".join(f"{name} ({own} against {base})" for name, own, base in stated if own and base and own != base)


def _advice(evidence: Evidence, pair: Pair, *, copies: bool) -> tuple[Advice, ...]:
    if copies:
        return (advise("first give each rank its own share of the data: see duplicated-data"),)
    if _other_work(pair):
        return (
            advise(
                f"measure {pair.base.label} and {pair.run.label} on the same machine and in the same precision first",
                remeasured(evidence, pair.base, pair.run),
            ),
        )
    return (advise(f"run it on {pair.base_ranks} until the cause is found"), _look_inside(evidence, pair))


def _look_inside(evidence: Evidence, pair: Pair) -> Advice:
    """The next step: read the run's traces, make some, or (a run of another tool) record some."""
    cell = cell_of(evidence, pair.run)
    if cell is None:
        return advise("find where the step time goes: record a few steps with torch.profiler on all ranks")
    traced = evidence.trace_of(cell.cell_id)
    if traced is not None:
        return advise(
            "find where the step time goes: traces of this run are available",
            trace_command(traced, "--show budget,overlap,collectives,stragglers"),
        )
    return advise("find where the step time goes: trace a few steps on all ranks", profiled(evidence, cell))


RULE = Rule(
    symptom="more ranks are slower than fewer",
    needs=("scaling",),
    look=check,
    folded=True,
    protocol=1,
    thresholds={"speedup": MIN_SPEEDUP},
)
