"""A part of the step does not shrink with the ranks and limits the speed-up.

What
----
Fits Amdahl's law and the universal scalability law (USL) to the speed-ups of one group, strategy and baseline under
strong scaling, on at least 4 different numbers of ranks (the fastest run on each). Fires if the fitted efficiency at
the most ranks is 0.80 or less. Reports the serial fraction with its 95% interval, the limit that it sets, and, if the
interval of the USL's second term is above 0, the number of ranks beyond which more are slower.

Why
---
With a serial fraction of 5% no number of ranks reaches 20x, and from 21 ranks on half of the cost is lost.

Known problems
--------------
"Serial" is everything that does not shrink: data loading, optimizer, launch costs, exposed communication. The laws give
the amount, not the cause. CPU ranks beyond the cores of the machine take turns and are not fitted. Weak scaling hides the
serial part behind added work and is not fitted. Any law fits fewer than 4 sizes.

References
----------
Amdahl, AFIPS 1967. Gunther, Guerrilla Capacity Planning, 2007. docs/reference/metrics.md, Scaling.
"""

from __future__ import annotations

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.units import format_percent
from stepscope.core.words import counted, grouped
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.nouns import Estimate
from stepscope.results.evidence import Evidence
from stepscope.results.pairs import Pair, pairs
from stepscope.results.scaling import GOOD
from stepscope.results.scaling_laws import MIN_SIZES, ScalingLaw, SizePoint, fit_amdahl, fit_usl

MAX_LOST = Limit(GOOD, unit="fitted efficiency on the largest number of ranks", source="rated good above 0.80")
_COMMAND = "stepscope bench --preset strong-scaling"


@record
class _Series:
    """Points of one group and strategy under strong scaling, the baseline's first."""

    name: str
    points: tuple[SizePoint, ...]
    runs: tuple[str, ...]

    @property
    def most(self) -> int:
        return max(point.world_size for point in self.points)


def check(evidence: Evidence) -> Statement:
    """Look for: a part of the step does not shrink with the ranks (Amdahl, USL)."""
    strong = [
        pair
        for pair in pairs(evidence)
        if pair.relative > 1
        if pair.row.scaling == "strong" and pair.row.rating is not None and not pair.copies
    ]
    if not strong:
        return skipped("no strong scaling: weak scaling hides the part that does not shrink", _COMMAND)
    within = [pair for pair in strong if not _beyond_cores(evidence, pair)]
    if within != strong and len({pair.row.world_size for pair in within}) + 1 < MIN_SIZES:
        cores = evidence.environment.usable_cores if evidence.environment is not None else 0
        return skipped(
            f"ranks beyond the machine's {counted(cores, 'core')} share them, which no law describes, and the fewer "
            f"sizes without them are less than {MIN_SIZES}",
            _COMMAND,
        )
    alike = grouped(within, lambda pair: (pair.row.group, pair.base.run_id, pair.run.strategy))
    fitted = [(series, fit_amdahl(series.points)) for series in map(_pair_series, alike.values())]
    laws = [(series, law) for series, law in fitted if not isinstance(law, Unavailable)]
    if not laws:
        most = max(len({p.world_size for p in series.points}) for series, _ in fitted)
        return skipped(
            f"{counted(most, 'number')} of ranks measured: a scaling law needs at least {MIN_SIZES}", _COMMAND
        )
    series, law = max(laws, key=lambda case: case[1].serial_fraction.value)
    return [_serial_fraction_finding(s, fit) for s, fit in laws if fit.efficiency(s.most) <= MAX_LOST] or (
        f"{series.name}: serial fraction {format_percent(law.serial_fraction.value)}, "
        f"{format_percent(law.efficiency(series.most))}"
        f" of ideal on {series.most} ranks; limit {format_percent(MAX_LOST)}"
    )


def _beyond_cores(evidence: Evidence, pair: Pair) -> bool:
    """Whether a run on CPUs of this one machine has more ranks than cores: they take turns."""
    machine = evidence.environment
    return machine is not None and pair.run.device == "cpu" and pair.row.world_size > machine.usable_cores


def _pair_series(members: list[Pair]) -> _Series:
    """Return the best speed-up of each number of ranks of one baseline."""
    first = members[0]
    by_size = grouped(members, lambda pair: pair.row.world_size)
    best = {n: max(some, key=lambda pair: pair.row.speedup) for n, some in by_size.items()}
    points = [SizePoint(world_size=first.row.baseline_world_size, speedup=Estimate(value=1.0))]
    points += [
        SizePoint(world_size=n, speedup=Estimate(value=p.row.speedup, low=p.row.low, high=p.row.high))
        for n, p in sorted(best.items())
    ]
    strategy = f": {first.run.strategy}" if first.run.strategy else ""
    runs = (first.base.run_id, *(p.run.run_id for p in best.values()))
    return _Series(name=f"{first.row.group}{strategy}", points=tuple(points), runs=runs)


def _serial_fraction_finding(series: _Series, law: ScalingLaw) -> Finding:
    """Return the finding, with evidence, stake and advice: a part of the step does not shrink with the ranks (Amdahl,
    USL)."""
    shown = ", ".join(f"{p.world_size}: {p.speedup.value:.2f}x" for p in series.points)
    fraction, limit = law.serial_fraction, law.most_speedup
    bound = "" if limit is None else f": at most {limit:.1f}x by Amdahl's law"
    assert fraction.low is not None
    assert fraction.high is not None
    interval = f"95% interval {format_percent(fraction.low)} to {format_percent(fraction.high)}"
    return finding(
        f"{format_percent(fraction.value)} of the work does not shrink with the ranks{bound}"
        if fraction.value < 1
        else f"negative scaling: {series.most} ranks reach {series.points[-1].speedup.value:.2f}x",
        f"speed-ups by ranks: {shown}",
        f"Amdahl's law: serial fraction {format_percent(fraction.value)} ({interval}), off by at most"
        f" {format_percent(law.max_relative_error)} on {law.sizes} sizes",
        _usl_text(series),
        severity="warning",
        stake=1 - law.efficiency(series.most),
        confidence=f"likely: {law.sizes} sizes, {interval}; the law does not identify the part",
        advice=[
            "identify the part: communication-bound, poor-overlap, data-loading and a trace name it",
            (
                "check with weak scaling whether more work per step outweighs it",
                "stepscope bench --preset weak-scaling",
            ),
        ],
        of=series.name,
        runs=series.runs,
    )


def _usl_text(series: _Series) -> str | None:
    law = fit_usl(series.points)
    if isinstance(law, Unavailable) or law.coherency.low is None:
        return None
    if law.coherency.low <= 0 or law.best_world_size is None or law.most_speedup is None:
        return "USL: these sizes show no cost that grows with the square of the ranks"
    return (
        f"USL: contention {format_percent(law.serial_fraction.value)}, coherency {law.coherency.value:.2g}"
        f" ({law.coherency.low:.2g} to {law.coherency.high:.2g}): fastest on"
        f" {law.best_world_size:.0f} ranks with {law.most_speedup:.1f}x, slower beyond"
    )


RULE = Rule(
    symptom="a part of the step does not shrink with the ranks (Amdahl, USL)",
    needs=("scaling",),
    look=check,
    folded=True,
    protocol=4,
    thresholds={
        "efficiency": MAX_LOST,
        "sizes": Limit(MIN_SIZES, unit="different numbers of ranks", source="any law fits fewer sizes"),
    },
)
