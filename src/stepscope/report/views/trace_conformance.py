"""The recorded communication against the plan that the job's strategy declared."""

from __future__ import annotations

from collections import defaultdict

from stepscope.core.words import grouped, ranges
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Table, Value, number, said, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, who

MANY_DIFFERENCES = 12

NO_PLAN = "no communication plan in this trace (`stepscope bench --profile` writes one)"


def build(summary: TraceSummary) -> Table:
    """One row per set of ranks with the same outcome."""
    checks = [p.conformance for p in summary.ranks if p.conformance is not None]
    alike = grouped(
        checks,
        lambda c: (
            c.strategy,
            c.steps,
            c.planned_per_step,
            c.launched_in_backward,
            c.overlap_planned,
            c.holds,
            c.certain,
        ),
    )
    texts: dict[str, list[int]] = defaultdict(list)
    for c in checks:
        for text in c.differences:
            texts[text].append(c.rank)
    told = [f"{who(ranks)}: {text}" for text, ranks in texts.items()]
    more = len(told) - MANY_DIFFERENCES
    outcomes = {
        None: Value(text="no whole step", raw=None, tone="dim"),
        True: Value(text="yes", raw=True, tone="good"),
        False: Value(text="no", raw=False, tone="bad"),
    }
    rearranged = Value(text="other pieces", raw=False)
    return tabled(
        "conformance",
        "Communication against the plan",
        (
            Column("ranks", "ranks", lambda same: ranges(c.rank for c in same), role="identity", lead=True),
            Column("strategy", "strategy", lambda same: same[0].strategy or None, role="identity", lead=True),
            Column("steps", "steps", lambda same: same[0].steps, number),
            Column("planned", "planned a step", lambda same: same[0].planned_per_step, number),
            Column("in_backward", "in backward", lambda same: same[0].launched_in_backward, number),
            Column(
                "overlap_planned",
                "overlap planned",
                lambda same: said("yes" if same[0].overlap_planned else "no", same[0].overlap_planned),
            ),
            Column("differences", "differences", lambda same: max(len(c.differences) for c in same), number),
            Column(
                "holds",
                "as planned",
                lambda same: rearranged if same[0].differences and not same[0].certain else outcomes[same[0].holds],
            ),
        ),
        alike.values(),
        footnotes=(
            "planned a step: collectives in the strategy's plan; in backward: launched inside the backward pass, "
            "in all steps",
        ),
        notes=(
            *gaps(summary, "conformance", otherwise=NO_PLAN),
            *told[:MANY_DIFFERENCES],
            *((f"{more} more differences",) if more > 0 else ()),
        ),
    )


VIEW = View(key="trace_conformance", title="Communication against the plan", needs=("trace",), table=build)
