"""Scaling is good and needs no work.

What
----
Reports, for each group, the run on the most ranks whose efficiency is above 0.80 against a baseline on fewer ranks. Not
rated: baselines, runs that do other work than their baseline (duplicated data, lower accuracy), and runs against a
baseline with a super-linear speed-up.

Why
---
A job that scales well on this many ranks is worth trying on more, and time is better spent elsewhere.

Known problems
--------------
A faster epoch is not necessarily faster training: the time to an accuracy is given with the speed-up if accuracies are
known, and `quality-lost` judges it.

References
----------
docs/reference/metrics.md, Scaling: good above 0.80, excellent above 0.90.
"""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.diagnose.rule import Limit, Rule, Statement
from stepscope.records.finding import Finding, Skipped
from stepscope.results.evidence import Evidence
from stepscope.results.learning import quality
from stepscope.results.pairs import Pair, by_group, pairs
from stepscope.results.scaling import GOOD

MIN_EFFICIENCY = Limit(value=GOOD, unit="efficiency", source="rated good from here on")

_RATED = ("good", "excellent")


def check(evidence: Evidence) -> Statement:
    compared = [pair for pair in pairs(evidence) if pair.relative > 1]
    if not compared:
        return Skipped(
            reason="no run on several ranks has a baseline on fewer ranks",
            command="stepscope bench --preset strong-scaling",
        )
    good = [pair for pair in compared if pair.row.rating in _RATED]
    if good:
        return [_report(group) for group in by_group(good).values()]
    best = max(compared, key=lambda pair: pair.row.efficiency)
    rating = best.row.rating or "not rated"
    return (
        f"best efficiency {format_percent(best.row.efficiency)} ({rating}), {best.name}; good above"
        f" {format_percent(MIN_EFFICIENCY.value)}"
    )


def _report(group: list[Pair]) -> Finding:
    ranked = sorted(group, key=lambda pair: (-pair.row.world_size, -pair.row.efficiency))
    best = ranked[0]
    row = best.row
    kind = f"{row.scaling} scaling" if row.scaling else "strong or weak scaling unknown"
    evidence = [f"{best.speedup_text} on {best.ranks} against {best.base_ranks}, {kind}"]
    evidence += [f"also {other.run.label}: {other.row.speedup:.2f}x, {_efficiency(other)}" for other in ranked[1:4]]
    learned = quality(best.run, best.base)
    if learned is not None and learned.is_lower:
        evidence.append(f"its accuracy is {learned.lost * 100:.1f} points lower: see quality-lost")
    slower = [t for t in row.targets if t.speedup is not None and t.speedup < 1]
    if slower:
        evidence.append(
            f"this is per epoch; to validation accuracy {slower[0].accuracy:.2f} the speed-up is {slower[0].speedup:.2f}x"
        )
    of = "" if best.base.world_size == 1 else f" against {best.base_ranks}"
    return Finding(
        severity="info",
        title=f"{row.rating} scaling: {row.speedup:.2f}x on {best.ranks}{of}, {_efficiency(best)} efficiency",
        evidence=tuple(evidence),
        confidence="measured" + ("" if row.low is not None else ", without an interval"),
        subject=best.name,
        runs=(best.run.run_id, best.base.run_id),
    )


def _efficiency(pair: Pair) -> str:
    """Efficiency with one decimal: ``87.3%``."""
    return format_percent(pair.row.efficiency, digits=1)


RULE = Rule(
    symptom="scaling is good",
    needs=("scaling",),
    look=check,
    folded=True,
    good_news=True,
    protocol=1,
    thresholds={"efficiency": MIN_EFFICIENCY},
)
