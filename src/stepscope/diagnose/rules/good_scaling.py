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
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.results.evidence import Evidence
from stepscope.results.learning import quality
from stepscope.results.pairs import Pair, by_group, pairs
from stepscope.results.scaling import GOOD

MIN_EFFICIENCY = Limit(GOOD, unit="efficiency", source="rated good from here on")
_RATED = ("good", "excellent")


def check(evidence: Evidence) -> Statement:
    """Look for: scaling is good."""
    compared = [pair for pair in pairs(evidence) if pair.relative > 1 and not pair.mixed]
    if not compared:
        return skipped(
            "no run on several ranks has a baseline on fewer ranks that differs in nothing else",
            "stepscope bench --preset strong-scaling",
        )
    best = max(compared, key=lambda pair: pair.row.efficiency)
    good = by_group(pair for pair in compared if pair.row.rating in _RATED)
    return [_good_scaling_finding(group) for group in good.values()] or (
        f"best efficiency {format_percent(best.row.efficiency)} ({best.row.rating or 'not rated'}), {best.name}; good above"
        f" {format_percent(MIN_EFFICIENCY)}"
    )


def _good_scaling_finding(group: list[Pair]) -> Finding:
    """Return the finding, with evidence, stake and advice: scaling is good."""
    best, *others = sorted(group, key=lambda pair: (-pair.row.world_size, -pair.row.efficiency))
    row, learned = best.row, quality(best.run, best.base)
    kind = f"{row.scaling} scaling" if row.scaling else "strong or weak scaling unknown"
    slower = next((t for t in row.targets if t.speedup is not None and t.speedup < 1), None)
    of = "" if best.base.world_size == 1 else f" against {best.base_ranks}"
    return finding(
        f"{row.rating} scaling: {row.speedup:.2f}x on {best.ranks}{of}, {_efficiency_text(best)} efficiency",
        f"{best.speedup_text} on {best.ranks} against {best.base_ranks}, {kind}",
        [f"also {other.run.label}: {other.row.speedup:.2f}x, {_efficiency_text(other)}" for other in others[:3]],
        learned is not None
        and learned.is_lower
        and f"its accuracy is {learned.lost * 100:.1f} points lower: see quality-lost",
        slower is not None
        and f"this is per epoch; to validation accuracy {slower.accuracy:.2f} the speed-up is {slower.speedup:.2f}x",
        severity="info",
        confidence="measured" + ("" if row.low is not None else ", without an interval"),
        of=(best.run, best.base),
    )


def _efficiency_text(pair: Pair) -> str:
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
