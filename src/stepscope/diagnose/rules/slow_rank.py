"""One rank makes the others wait: in most steps, in turn, or occasionally.

What
----
The own time of a rank is its step without exposed communication; d is a rank's own time minus the median of the
others', step by step. A rank is slow (chronic) if over at least 20 timed steps the median of d exceeds 5% of the
others' own time and the lower end of the block bootstrap's 95% interval is above 0. If no rank is, the rule tests the
lead of the last rank of each step against 10% (rotating) and sums the steps in which a rank exceeds its usual by more
than 6 MAD over steps (one-off).

Why
---
All ranks leave a collective together, so a job runs at the speed of its slowest rank: one of 8 GPUs that is 50 ms late
on a 15 ms step costs 77% of the throughput.

Known problems
--------------
With two ranks, slow and fast cannot be distinguished. If more than half of the ranks are slow, they count as normal. A
z-score over ranks cannot exceed sqrt(n - 1), so 2 sigma never fires on 4 or 5 GPUs and must not be used. On shared
machines other jobs cause rotating ranks.

References
----------
METRICS, Stragglers. D / (T + D) = 50 / (15 + 50): loss of throughput by a delay D on a step T.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import again, profiled
from stepscope.diagnose.machine import excluding
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.records.finding import Advice, Finding, Severity, Skipped
from stepscope.results.cell_facts import TimedCell, among, by_model, timed_cells
from stepscope.results.evidence import Evidence
from stepscope.results.slow_ranks import (
    MIN_ONE_OFF,
    MIN_ROTATING,
    OUTLIER_MADS,
    WORDS,
    OwnTimes,
    Slow,
    own_times,
    slow_ranks,
)
from stepscope.stats.excess import LEAST_STEPS, MIN_EXCESS

STEPS = Threshold(value=LEAST_STEPS, unit="common timed steps", source="METRICS, Stragglers")
EXCESS = Threshold(
    value=MIN_EXCESS,
    unit="median excess / others' own time",
    source="as for traces: clocks and schedulers usually cause less (2026-11)",
)
ROTATING = Threshold(
    value=MIN_ROTATING,
    unit="median lead of the last / own time",
    source="twice the expected range of 8 normal samples whose spread is 3%",
)
ONE_OFF = Threshold(
    value=MIN_ONE_OFF, unit="share of all step time", source="less is negligible: 1 step of 100, 5 times as long"
)
OUTLIER = Threshold(
    value=OUTLIER_MADS, unit="MAD over steps", source="with normal noise one step in 1e9 exceeds 6 sigma"
)


def check(evidence: Evidence) -> Said:
    cells = timed_cells(evidence, least_ranks=2)
    times = {id(cell): each for cell in cells if (each := own_times(cell.cell.result)) is not None}
    enough = [cell for cell in cells if id(cell) in times and times[id(cell)].steps >= LEAST_STEPS]
    if not enough:
        most = max((each.steps for each in times.values()), default=0)
        return Skipped(
            reason=f"{LEAST_STEPS} timed steps on several ranks are needed"
            + (f", the most of any cell is {most}" if times else ", no cell has any"),
            command=f"stepscope bench MATRIX.yaml --steps {2 * LEAST_STEPS}",
        )
    slow = {id(cell): slow_ranks(times[id(cell)]) for cell in enough}
    found = []
    for group in by_model(cell for cell in enough if slow[id(cell)]):
        ranked = sorted(group, key=lambda cell: -slow[id(cell)][0].stake_fraction)
        worst = ranked[0]
        rest = _others(worst, ranked[1:], [slow[id(cell)][0] for cell in ranked[1:]])
        found += [
            _finding(evidence, worst, each, times[id(worst)], rest if at == 0 else ())
            for at, each in enumerate(slow[id(worst)])
        ]
    if found:
        return tuple(found)
    return _quiet(enough, [times[id(cell)] for cell in enough])


def _finding(evidence: Evidence, cell: TimedCell, slow: Slow, times: OwnTimes, rest: tuple[str, ...]) -> Finding:
    whole = slow.stake_fraction
    severity: Severity = "warning"
    if slow.kind == "chronic" and whole > 0.2:
        severity = "problem"
    return Finding(
        severity=severity,
        title=_title(slow),
        evidence=(*_evidence(slow, times), *rest),
        stake_fraction=whole,
        confidence=_confidence(slow, times),
        advice=_advice(evidence, cell, slow, times),
        subject=cell.name,
    )


def _title(slow: Slow) -> str:
    if slow.kind == "rotating":
        return f"the last rank rotates: {format_duration(slow.excess_ns)} of waiting in a typical step"
    where = f"rank {slow.rank} on {slow.host}"
    if slow.kind == "one-off":
        return (
            f"{where} was {format_duration(slow.excess_ns)} late in {counted(slow.late_steps, 'step')} of {slow.steps}"
        )
    return f"{where} is {format_percent(slow.excess_ns / slow.others_ns)} slower than the others, who wait for it"


def _evidence(slow: Slow, times: OwnTimes) -> tuple[str, ...]:
    own, low = format_duration(slow.others_ns), slow.low_ns
    if slow.kind == "rotating":
        return (
            f"own time {own}; the last rank takes {format_duration(slow.excess_ns)} more than the others (median)",
            f"in {slow.late_steps} of {slow.steps} steps by over {format_percent(MIN_ROTATING)}; no rank is last "
            "most of the time",
        )
    said = []
    if slow.kind == "chronic":
        said.append(
            f"own time {format_duration(slow.others_ns + slow.excess_ns)} against {own} of the others: "
            f"{format_duration(slow.excess_ns)} more in the median of {slow.steps} steps, at least "
            f"{format_duration(low or 0.0)} (95%)"
        )
        said.append(f"chronic: late in {slow.late_steps} of {slow.steps} steps")
    else:
        said.append(
            f"one-off: {slow.late_steps} of {slow.steps} steps beyond {OUTLIER_MADS:g} MAD of its usual, "
            f"{format_percent(slow.stake_fraction)} of all step time"
        )
    if slow.part is not None and slow.part_ns is not None:
        said.append(f"{format_duration(slow.part_ns)} of it {WORDS[slow.part]}")
    if slow.samples_ratio is not None and abs(slow.samples_ratio - 1) > MIN_EXCESS:
        said.append(f"it gets {slow.samples_ratio:.2f} times the others' samples per step")
    neighbours = sum(host == slow.host for host in times.hosts)
    if neighbours < times.ranks:
        said.append(f"{counted(neighbours, 'rank')} of {times.ranks} run on {slow.host}")
    return tuple(said)


def _confidence(slow: Slow, times: OwnTimes) -> str:
    if slow.kind == "one-off":
        return "measured; what happened in those steps is not recorded"
    text = f"measured over {slow.steps} steps"
    if times.ranks == 2 and slow.kind == "chronic":
        return f"{text}; with two ranks, slow only means slower than the other"
    return text


def _advice(evidence: Evidence, cell: TimedCell, slow: Slow, times: OwnTimes) -> tuple[Advice, ...]:
    if slow.kind == "rotating":
        return (
            Advice(
                text="check what interrupts ranks: other jobs, too many threads, data of uneven length",
                command="stepscope doctor",
            ),
        )
    if slow.kind == "one-off":
        return (
            Advice(
                text="check what ran in these steps: checkpoints, evaluation, garbage collection, other jobs",
                command=profiled(evidence, cell.cell),
            ),
        )
    advice = []
    if slow.samples_ratio is not None and slow.samples_ratio > 1 + MIN_EXCESS:
        advice.append(Advice(text="rebalance: give every rank as many samples"))
    elif slow.part == "data_wait":
        advice.append(
            Advice(
                text=f"its data arrives late: check where rank {slow.rank} reads from, and give it loader workers",
                command=again(evidence, cell.cell, ("num_workers", 2)),
            )
        )
    else:
        advice.append(
            Advice(
                text=f"check {slow.host}: throttled clocks, other jobs on its cores, another GPU model",
                command="stepscope doctor",
            )
        )
    if len(set(times.hosts)) > 1:
        advice.append(
            Advice(
                text=f"exclude {slow.host}: the step is then up to {format_percent(slow.stake_fraction)} shorter",
                command=excluding(evidence, slow.host),
            )
        )
    else:
        advice.append(
            Advice(
                text="rebalance: a smaller share of the batch for this rank, or a job without it",
                command="stepscope doctor --quick",
            )
        )
    return tuple(advice)


def _others(worst: TimedCell, cells: Sequence[TimedCell], slow: Sequence[Slow]) -> tuple[str, ...]:
    if not cells:
        return ()
    same = [
        f"{among(cell, worst)} ({'in turn' if each.rank is None else f'rank {each.rank}'}, "
        f"{format_percent(each.stake_fraction)})"
        for cell, each in zip(cells, slow, strict=True)
    ]
    more = f" and {len(same) - 3} more" if len(same) > 3 else ""
    return (f"also in {', '.join(same[:3])}{more}",)


def _quiet(cells: Sequence[TimedCell], times: Sequence[OwnTimes]) -> str:
    at = max(range(len(cells)), key=lambda i: times[i].largest_excess_fraction)
    return (
        f"{cells[at].name}: the slowest rank takes {format_percent(times[at].largest_excess_fraction)} more than "
        f"the others, limit {format_percent(MIN_EXCESS)}"
    )


RULE = Rule(
    name="slow-rank",
    symptom="a rank is slower than the others, who wait for it",
    needs=("cells",),
    look=check,
    protocol=2,
    thresholds={"steps": STEPS, "excess": EXCESS, "rotating": ROTATING, "one_off": ONE_OFF, "outlier": OUTLIER},
)
