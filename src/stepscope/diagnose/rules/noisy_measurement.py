"""Figures are too noisy for conclusions: few samples, wide intervals, drift.

What
----
Finished runs with fewer than {steps} (or, if only epochs were timed, than {epochs}), a 95% interval that extends more
than {reach%} from the median step, or drifting step times (bench's note) whose halves differ by {drift%}. One finding
lists them all, worst first.

Why
---
Noise of 10% hides a gain of half of it, and every ratio inherits the noise of both sides. On a drifting machine the run
measured first looks faster.

Known problems
--------------
Sources with one figure and no count cannot be judged. Steps of different work (sequence lengths) have wide intervals by
nature.

References
----------
docs/reference/metrics.md, Comparisons: the interval of a median needs {epochs#} samples; measure.ci of bench.
"""

from __future__ import annotations

from stepscope.core.dataclass import record
from stepscope.core.units import format_percent
from stepscope.core.words import counted, plural
from stepscope.diagnose.commands import ANY_MATRIX, remeasured
from stepscope.diagnose.rule import Limit, Rule, Statement, finding, skipped
from stepscope.records.finding import Doubt
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.results.epochs import timed_epochs
from stepscope.results.evidence import CellEvidence, Evidence, cell_of, name_of
from stepscope.stats.order import MIN_INTERVAL_SAMPLES
from stepscope.stats.step_table import cell_table
from stepscope.stats.warmup import MIN_STEPS, drift_fraction

MIN_STEP_COUNT = Limit(MIN_STEPS, unit="timed steps", source="minimum of bench before it may stop (stats/stopping)")
MIN_EPOCH_COUNT = Limit(
    MIN_INTERVAL_SAMPLES,
    unit="timed epochs",
    source="2 x 0.5^6 = 0.03: fewer samples give no 95% interval of the median",
)
MAX_REACH = Limit(0.05, unit="interval's reach / median", source="2.5 times the target of bench (measure.ci 0.02)")
MIN_DRIFT = Limit(
    0.02,
    unit="second half of the steps / first half - 1",
    source="the target of bench (measure.ci): less drift keeps the median within its interval",
)

_DRIFT = "drifted"

LEAST_REPEATS = 3
"""The least number of repeats of a run whose mean has an interval."""


@record
class _Noisy:
    """reach: how far the time may be off, of itself: the interval's longer side, or the drift; None: unknown.

    short: it has too few samples, and what there are do not vary much.
    """

    run: TrainingRun
    text: str
    reach: float | None
    short: bool


def check(evidence: Evidence) -> Statement:
    """Look for: too few samples, wide intervals or drifting step times."""
    timed = [
        (run, count) for run in evidence.runs if run.status == "ok" and (count := _replicate_count(run)) is not None
    ]
    if not timed:
        return skipped("no run records how many steps or epochs were timed", ANY_MATRIX)
    noisy = [n for run, count in timed if (n := _noisy_run(evidence, run, *count)) is not None]
    if noisy and len(evidence.runs) == 1 and evidence.runs[0].parts_ns:  # shares of its own steps are what it says
        return f"{noisy[0].text}: of one run, which nothing is compared with"
    if noisy:
        return _noisy_measurement_statement(evidence, sorted(noisy, key=lambda n: -(n.reach or 0.0)), len(timed))
    reaches = [(reach, run) for run, _ in timed if (reach := _relative_reach(run.step_ns)) is not None]
    if not reaches:
        return f"{counted(len(timed), 'run')} with enough epochs each"
    worst, run = max(reaches, key=lambda pair: pair[0])
    return f"widest interval ±{format_percent(worst)} ({name_of(run)}), limit ±{format_percent(MAX_REACH)}"


def _replicate_count(run: TrainingRun) -> tuple[int, str, float] | None:
    """Return how many replicates a run's time rests on, of what, and how many are enough; repeats of a whole run are few
    by nature."""
    if isinstance(repeats := run.settings.get("repeats"), int):
        return repeats, "repeat", LEAST_REPEATS
    if run.step_ns is not None:
        return None if run.step_ns.n is None else (run.step_ns.n, "step", MIN_STEP_COUNT)
    timed = len(timed_epochs(run))
    return (timed, "epoch", MIN_EPOCH_COUNT) if timed else None


def _relative_reach(measured: Measured | None) -> float | None:
    if measured is None or measured.low is None or measured.high is None or measured.value <= 0:
        return None
    return max(measured.high - measured.value, measured.value - measured.low) / measured.value


def _noisy_run(evidence: Evidence, run: TrainingRun, count: int, what: str, least: float) -> _Noisy | None:
    reach = _relative_reach(run.step_ns)
    drift = next((note for note in run.notes if _DRIFT in note), None)
    drifted = None if drift is None else _drift_share(cell_of(evidence, run))
    if drifted is not None and drifted < MIN_DRIFT:
        drift = None
    wide = reach is not None and reach > MAX_REACH
    reasons = [
        count < least and f"{counted(count, what)} timed, {least:g} are needed",
        wide and f"interval ±{format_percent(reach or 0.0)}",
        drift,
    ]
    if not any(reasons):
        return None
    off = reach if drift is None else None if drifted is None else max(drifted, reach or 0.0)
    text = "; ".join(reason for reason in reasons if reason)
    return _Noisy(run=run, text=text, reach=off, short=not wide and drift is None)


def _drift_share(cell: CellEvidence | None) -> float | None:
    """Return by how much a cell's halves differ at most, of the first; None: its steps are unknown.

    The first steps alone, which bench notes too, move no median.
    """
    if cell is None:
        return None
    table = cell_table(cell.result)
    rounds = {} if table is None else table.by_round(table.step_ns)
    return max((abs(drift_fraction(steps)) for steps in rounds.values()), default=0.0)


def _noisy_measurement_statement(evidence: Evidence, noisy: list[_Noisy], timed: int) -> Statement:
    """Return the finding, or why there is none: too few samples, wide intervals or drifting step times."""
    alone = len(noisy) == 1
    short = {case.short for case in noisy}
    fault = "too short or too noisy" if len(short) > 1 else "too short" if short == {True} else "too noisy"
    command = remeasured(evidence, *(case.run for case in noisy))
    return finding(
        f"{len(noisy)} of {timed} {plural(timed, 'run')} {'is' if alone else 'are'} {fault} for conclusions",
        [case.text if alone else f"{name_of(case.run)}: {case.text}" for case in noisy[:5]],
        len(noisy) > 5 and f"and {len(noisy) - 5} more",
        advice=[
            (
                "measure longer: the runs are short, whatever the machine does"
                if fault == "too short"
                else "measure longer, in several rounds, without other load on the machine",
                command and f"{command} --set measure.budget_s=120 --set measure.rounds=3",
            ),
            "ignore differences smaller than the intervals; compare shows the larger ones",
        ],
        of=name_of(noisy[0].run) if alone else None,
        runs=tuple(case.run.run_id for case in noisy),
        casts_doubt={case.run.run_id: Doubt(why=f"{case.run.label}: {case.text}", reach=case.reach) for case in noisy},
    )


RULE = Rule(
    symptom="too few samples, wide intervals or drifting step times",
    needs=("runs",),
    look=check,
    protocol=1,
    thresholds={"steps": MIN_STEP_COUNT, "epochs": MIN_EPOCH_COUNT, "reach": MAX_REACH, "drift": MIN_DRIFT},
)
