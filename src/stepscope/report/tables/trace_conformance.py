"""The recorded communication against the plan that the job's strategy declared."""

from __future__ import annotations

from collections import defaultdict

from stepscope.records.trace_conformance import ConformanceCheck
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import gaps, number, rank_set, who, words

MANY_DIFFERENCES = 12

NO_PLAN = "no communication plan in this trace (`stepscope bench --profile` writes one)"


def build(summary: TraceSummary) -> Table:
    """One row per set of ranks with the same outcome."""
    checks = [p.conformance for p in summary.ranks if p.conformance is not None]
    alike: dict[tuple[object, ...], list[ConformanceCheck]] = defaultdict(list)
    for c in checks:
        alike[c.strategy, c.steps, c.planned_per_step, c.launched_in_backward, c.overlap_planned, c.holds].append(c)
    texts: dict[str, list[int]] = defaultdict(list)
    for c in checks:
        for text in c.differences:
            texts[text].append(c.rank)
    told = [f"{who(ranks)}: {text}" for text, ranks in texts.items()]
    more = len(told) - MANY_DIFFERENCES
    return Table(
        key="conformance",
        title="Communication against the plan",
        columns=(
            Column(key="ranks", title="ranks", align="left", role="identity", lead=True),
            Column(key="strategy", title="strategy", align="left", role="identity", lead=True),
            Column(key="steps", title="steps"),
            Column(key="planned", title="planned a step"),
            Column(key="in_backward", title="in backward"),
            Column(key="overlap_planned", title="overlap planned", align="left"),
            Column(key="differences", title="differences"),
            Column(key="holds", title="as planned", align="left"),
        ),
        rows=tuple(_row(each) for each in alike.values()),
        footnotes=(
            "planned a step: collectives in the strategy's plan; in backward: launched inside the backward pass, "
            "in all steps",
        )
        if checks
        else (),
        notes=(
            *gaps(summary, "conformance", lambda p: p.conformance is not None, otherwise=NO_PLAN),
            *told[:MANY_DIFFERENCES],
            *((f"{more} more differences",) if more > 0 else ()),
        ),
    )


TABLE = TableKind(key="conformance", title="Communication against the plan", needs=("trace",), build=build)


def _row(checks: list[ConformanceCheck]) -> Row:
    first = checks[0]
    outcome = {
        None: Value(text="no whole step", raw=None, tone="dim"),
        True: Value(text="yes", raw=True, tone="good"),
        False: Value(text="no", raw=False, tone="bad"),
    }
    return Row(
        values=(
            words(rank_set(c.rank for c in checks)),
            words(first.strategy) if first.strategy else unknown(),
            number(first.steps),
            number(first.planned_per_step),
            number(first.launched_in_backward),
            words("yes" if first.overlap_planned else "no", raw=first.overlap_planned),
            number(max(len(c.differences) for c in checks)),
            outcome[first.holds],
        )
    )
