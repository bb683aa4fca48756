"""From one step, one night or one run on, steps take longer.

What
----
Three kinds of series. The steps of one run, where its log times each (Megatron, torchtitan, TensorBoard, W&B, tables by
step): the place where two levels meet, at least {steps} of it, medians {change%} apart, the middle halves of the sides
disjoint, and neither side drifting by half of the change. Runs of the same cell in several run folders, and rows of a
table that differ in their day alone: at least 6 runs, p < {p#} by permutation of rank sums, medians {change%} apart.
The place is the split with the least squares about two levels.

Why
---
A mean over both levels describes neither. What happened at that step, or between those two nights, is the cause.

Known problems
--------------
One change is looked for: of several the largest is named. Runs whose batch or sequence length changes on the way change
their step for that reason; where a log states the batch, they are not judged. A slow drift has no beginning and is
`noisy-measurement`'s.

References
----------
Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28, 1979. metrics.md, Comparisons.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import GRAVE, Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.finding import Severity
from stepscope.records.training import StepChange, TrainingRun
from stepscope.results.evidence import Evidence, name_of
from stepscope.results.history import History, Nights, history, nights
from stepscope.stats.order import LEAST_CHANGE, LEAST_SIDE, MIN_RUNS, SIGNIFICANT

CHANGE = Limit(
    LEAST_CHANGE, unit="of the step time before", source="medians of runs on quiet machines differ by 2%, with a margin"
)
PROBLEM = Limit(GRAVE, unit="of the step time before", source="as for shares of the step elsewhere")


def check(evidence: Evidence) -> Statement:
    """Look for: from one step, night or run on, steps take longer."""
    steps = [(run, run.step_change) for run in evidence.runs if run.step_change is not None]
    over_runs = history(evidence)
    days = nights(evidence.runs)
    findings = [
        *(_step_change_finding(run, change) for run, change in steps if change.ratio >= 1 + CHANGE),
        *(() if over_runs is None else _history_findings(over_runs)),
        *(_day_change_finding(day) for day in days if day.since is not None and day.change.after > day.change.before),
    ]
    if findings:
        return findings
    faster = [f"{name_of(run)}: {_change_text(change)}" for run, change in steps]
    if faster:
        return "; ".join(faster[:3])
    looked = len(days) + (0 if over_runs is None else len(over_runs.cells))
    if looked:
        return f"runs over time in {counted(looked, 'group')}: none became slower"
    if any(_has_logged_steps(run) for run in evidence.runs):
        return "the logged steps stay on one level"
    return skipped(f"no run logs its steps, and no {MIN_RUNS} runs of one kind are of different days")


def _has_logged_steps(run: TrainingRun) -> bool:
    """Whether a run's log has so many steps that a change would have been found."""
    counts = [figure.n for figure in (run.step_ns, run.samples_per_s) if figure is not None and figure.n is not None]
    return max(counts, default=0) >= 3 * LEAST_SIDE and not run.epochs


def _change_severity(ratio: float) -> Severity:
    return "problem" if ratio >= 1 + PROBLEM else "warning"


def _change_text(change: StepChange) -> str:
    way = "longer" if change.ratio >= 1 else "less time"
    return f"steps take {format_percent(abs(change.ratio - 1))} {way} from step {change.step} on"


def _step_change_finding(run: TrainingRun, change: StepChange) -> Finding:
    """Return the finding of a log whose steps take longer from one on."""
    levels = f"the logged rate is 1/{change.ratio:.2f} of the one before"
    if change.before_ns is not None and change.after_ns is not None:
        levels = (
            f"{format_duration(change.before_ns)} before, {format_duration(change.after_ns)} from step {change.step} on"
        )
    return finding(
        _change_text(change),
        f"medians: {levels}; {format_percent(change.share)} of the logged steps come after",
        "before and from there the step time is steady",
        severity=_change_severity(change.ratio),
        stake=min(1.0, change.share * (1 - 1 / change.ratio)),
        confidence="measured; the log does not state what changed",
        advice=[
            (
                f"look at what began with step {change.step}: other jobs on the hosts, throttled clocks, other "
                "data, a checkpoint or an evaluation that never ended"
            ),
            "the medians over the whole run mix two levels: compare runs by the steps of one",
        ],
        of=run,
    )


def _history_findings(over_runs: History) -> Iterator[Finding]:
    """Report all cells together where they changed together, else each cell that did."""
    for cell in [over_runs.common] if over_runs.common.since is not None else over_runs.cells:
        change, since = cell.change, cell.since
        if isinstance(change, Unavailable) or not since or change.after / change.before - 1 < CHANGE:
            continue
        before, after = over_runs.runs[since - 1], over_runs.runs[since]
        who = f"all {len(over_runs.cells)} cells" if cell.run is None else name_of(cell.run)
        ratio = change.after / change.before
        # The step before and after of this cell, or of those of all that lost most.
        cells = over_runs.cells if cell.run is None else (cell,)
        shown = [(c.run, [s for s in c.step_ns if s is not None]) for c in cells if c.run is not None]
        yield finding(
            f"steps take {format_percent(ratio - 1)} longer since {after.name} ({after.created[:10]})",
            f"{who}: {counted(since, 'run')} before, {len(over_runs.runs) - since} from there; p = {change.p_value:.2g}",
            [
                f"{name_of(run)}: {format_duration(steps[0])} in the first run, {format_duration(steps[-1])} in the last"
                for run, steps in sorted(shown, key=lambda row: -row[1][-1] / row[1][0])[:3]
            ],
            severity=_change_severity(ratio),
            stake=1 - 1 / ratio,
            confidence="measured; what changed between the two runs is not recorded as a cause",
            advice=[
                (
                    f"compare the last run before with the first after: {before.name} and {after.name}",
                    shlex.join(["stepscope", "compare", before.path, after.path]),
                )
            ],
            of=who,
            case="history",
        )


def _day_change_finding(day: Nights) -> Finding:
    """Return the finding of a series whose runs take longer from one day on."""
    since, runs = day.since or 0, day.runs
    change, first, date = day.change, runs[since], day.days[since]
    ratio = change.after / change.before
    return finding(
        f"steps take {format_percent(ratio - 1)} longer since {date}",
        f"{counted(len(runs), 'run')} from {day.days[0]} to {day.days[-1]}: {since} before, "
        f"{len(runs) - since} from there; p = {change.p_value:.2g}",
        _code_text(first) and f"{_code_text(runs[since - 1])} before, {_code_text(first)} from there",
        severity=_change_severity(ratio),
        stake=1 - 1 / ratio,
        confidence=f"measured, one figure per run; by chance in less than {format_percent(SIGNIFICANT)} of such series",
        advice=[f"compare what ran on {day.days[since - 1]} and {date}: code, packages, hosts, data"],
        of=re.sub(rf",? *{re.escape(date)}", "", name_of(first)),
        runs=tuple(run.run_id for run in runs),
        case="days",
    )


def _code_text(run: TrainingRun) -> str:
    """List what names the code of a run (commit, version), as its row states it."""
    names = ("commit", "sha", "revision", "build", "version")
    return ", ".join(f"{key} {value}" for key, value in run.settings.items() if key.lower() in names)


RULE = Rule(
    symptom="from one step, night or run on, steps take longer",
    needs=("runs",),
    look=check,
    folded=True,
    protocol=1,
    thresholds={
        "change": CHANGE,
        "grave": PROBLEM,
        "steps": Limit(LEAST_SIDE, unit="logged steps on each side", source="fewer are a pause"),
        "p": Limit(SIGNIFICANT, unit="probability", source="as for histories in reports"),
    },
)
