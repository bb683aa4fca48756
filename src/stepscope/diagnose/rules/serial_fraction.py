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

from dataclasses import dataclass

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.records.finding import Finding, Skipped
from stepscope.records.nouns import Estimate
from stepscope.results.evidence import Evidence
from stepscope.results.pairs import Pair, pairs
from stepscope.results.scaling import GOOD
from stepscope.results.scaling_laws import MIN_SIZES, ScalingLaw, SizePoint, fit_amdahl, fit_usl

MAX_LOST = Limit(value=GOOD, unit="fitted efficiency on the largest number of ranks", source="rated good above 0.80")

_COMMAND = "stepscope bench --preset strong-scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """Points of one group and strategy under strong scaling, the baseline's first."""

    name: str
    points: tuple[SizePoint, ...]
    runs: tuple[str, ...]

    @property
    def most(self) -> int:
        return max(point.world_size for point in self.points)


def check(evidence: Evidence) -> Statement:
    strong = [
        pair
        for pair in pairs(evidence)
        if pair.relative > 1
        if pair.row.scaling == "strong" and pair.row.rating is not None and not pair.copies
    ]
    if not strong:
        return Skipped(reason="no strong scaling: weak scaling hides the part that does not shrink", command=_COMMAND)
    within = [pair for pair in strong if not _beyond_cores(evidence, pair)]
    if within != strong and len({pair.row.world_size for pair in within}) + 1 < MIN_SIZES:
        cores = evidence.environment.usable_cores if evidence.environment is not None else 0
        return Skipped(
            reason=f"ranks beyond the machine's {counted(cores, 'core')} share them, which no law describes, and the fewer "
            f"sizes without them are less than {MIN_SIZES}",
            command=_COMMAND,
        )
    fitted = [(series, fit_amdahl(series.points)) for series in _series(within)]
    laws = [(series, law) for series, law in fitted if not isinstance(law, Unavailable)]
    if not laws:
        most = max(len({p.world_size for p in series.points}) for series, _ in fitted)
        return Skipped(
            reason=f"{counted(most, 'number')} of ranks measured: a scaling law needs at least {MIN_SIZES}",
            command=_COMMAND,
        )
    firing = [(s, law) for s, law in laws if law.efficiency(s.most) <= MAX_LOST.value]
    if firing:
        return [_report(series, law) for series, law in firing]
    series, law = max(laws, key=lambda case: case[1].serial_fraction.value)
    return (
        f"{series.name}: serial fraction {format_percent(law.serial_fraction.value)}, "
        f"{format_percent(law.efficiency(series.most))}"
        f" of ideal on {series.most} ranks; limit {format_percent(MAX_LOST.value)}"
    )


def _beyond_cores(evidence: Evidence, pair: Pair) -> bool:
    """Whether a run on CPUs of this one machine has more ranks than cores: they take turns."""
    machine = evidence.environment
    return machine is not None and pair.run.device == "cpu" and pair.row.world_size > machine.usable_cores


def _series(strong: list[Pair]) -> list[_Series]:
    alike: dict[tuple[str, str, str | None], list[Pair]] = {}
    for pair in strong:
        alike.setdefault((pair.row.group, pair.base.run_id, pair.run.strategy), []).append(pair)
    series = []
    for (group, _, strategy), members in alike.items():
        best: dict[int, Pair] = {}
        for pair in members:
            before = best.get(pair.row.world_size)
            if before is None or pair.row.speedup > before.row.speedup:
                best[pair.row.world_size] = pair
        points = [SizePoint(world_size=members[0].row.baseline_world_size, speedup=Estimate(value=1.0))]
        points += [
            SizePoint(world_size=n, speedup=Estimate(value=p.row.speedup, low=p.row.low, high=p.row.high))
            for n, p in sorted(best.items())
        ]
        name = f"{group}: {strategy}" if strategy else group
        runs = (members[0].base.run_id, *(p.run.run_id for p in best.values()))
        series.append(_Series(name=name, points=tuple(points), runs=runs))
    return series


def _report(series: _Series, law: ScalingLaw) -> Finding:
    lost = 1 - law.efficiency(series.most)
    shown = ", ".join(f"{p.world_size}: {p.speedup.value:.2f}x" for p in series.points)
    evidence = [
        f"speed-ups by ranks: {shown}",
        f"Amdahl's law: serial fraction {format_percent(law.serial_fraction.value)} "
        f"({_interval(law.serial_fraction)}), off by at most"
        f" {format_percent(law.max_relative_error)} on {law.sizes} sizes",
        *_usl(series),
    ]
    limit = law.most_speedup
    bound = "" if limit is None else f": at most {limit:.1f}x by Amdahl's law"
    return Finding(
        severity="warning",
        title=f"{format_percent(law.serial_fraction.value)} of the work does not shrink with the ranks{bound}"
        if law.serial_fraction.value < 1
        else f"negative scaling: {series.most} ranks reach {series.points[-1].speedup.value:.2f}x",
        evidence=tuple(evidence),
        stake_fraction=lost,
        confidence=f"likely: {law.sizes} sizes, {_interval(law.serial_fraction)}; the law does not identify the part",
        advice=(
            advise("identify the part: communication-bound, poor-overlap, data-loading and a trace name it"),
            advise(
                "check with weak scaling whether more work per step outweighs it",
                "stepscope bench --preset weak-scaling",
            ),
        ),
        subject=series.name,
        runs=series.runs,
    )


def _usl(series: _Series) -> list[str]:
    law = fit_usl(series.points)
    if isinstance(law, Unavailable) or law.coherency.low is None:
        return []
    if law.coherency.low <= 0 or law.best_world_size is None or law.most_speedup is None:
        return ["USL: these sizes show no cost that grows with the square of the ranks"]
    return [
        f"USL: contention {format_percent(law.serial_fraction.value)}, coherency {law.coherency.value:.2g}"
        f" ({law.coherency.low:.2g} to {law.coherency.high:.2g}): fastest on"
        f" {law.best_world_size:.0f} ranks with {law.most_speedup:.1f}x, slower beyond"
    ]


def _interval(estimate: Estimate) -> str:
    assert estimate.low is not None
    assert estimate.high is not None
    return f"95% interval {format_percent(estimate.low)} to {format_percent(estimate.high)}"


RULE = Rule(
    symptom="a part of the step does not shrink with the ranks (Amdahl, USL)",
    needs=("scaling",),
    look=check,
    folded=True,
    protocol=4,
    thresholds={
        "efficiency": MAX_LOST,
        "sizes": Limit(value=MIN_SIZES, unit="different numbers of ranks", source="any law fits fewer sizes"),
    },
)
