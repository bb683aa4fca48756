"""Layouts that a search found: the best ones with what they pay, and the obvious ones with why they lose."""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.predict.step.alternatives import warnings_of
from stepscope.predict.step.layout import layout_text
from stepscope.predict.step.plan import LayoutSearch, UsualLayout, slower_because
from stepscope.predict.step.step import StepPrediction
from stepscope.report.table import Column, Table, number, percent, said, size, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._predicted import PART, interval

SHOWN = 5


def explain(p: StepPrediction) -> str:
    """The two largest parts of the step beside computation, and warnings by their cause."""
    parts = {name: value / p.step_s for name, value in p.budget.parts.items() if name != "compute"}
    top = sorted(parts, key=lambda name: -parts[name])[:2]
    text = "; ".join(f"{PART[name]} {format_percent(parts[name])}" for name in top if parts[name] > 0.005)
    warned = ", ".join(w.cause for w in warnings_of(p))
    return "; ".join(part for part in (text, warned and f"! {warned}") if part) or "computation alone"


def build_plan(plan: LayoutSearch) -> Table:
    """One row a layout, fastest first."""
    best = plan.best[0]
    return tabled(
        "planned",
        "",
        (
            Column("rank", "", lambda item: item[0], whole, role="identity", lead=True),
            Column("layout", "layout", lambda item: layout_text(item[1].layout), role="identity", lead=True),
            Column("tokens_per_s", "tokens/s", lambda item: item[1].tokens_per_s, number),
            Column("interval", "80% interval", lambda item: interval(item[1]), unit="1/s", drop=2),
            Column("per_gpu", "per GPU", lambda item: item[1].tokens_per_s_per_gpu, number),
            Column("mfu", "MFU", lambda item: item[1].mfu["non-causal"], percent),
            Column("memory_bytes", "memory", lambda item: item[1].memory.total, size),
            Column(
                "against",
                "against the first",
                lambda item: "" if item[1] is best else slower_because(item[1], best),
                drop=1,
            ),
            Column("pays", "beside computation", lambda item: explain(item[1]), drop=1),
        ),
        list(enumerate(plan.best[:SHOWN], 1)),
    )


def build_alternatives(plan: LayoutSearch) -> Table:
    """One row an obvious layout."""

    def form(item: UsualLayout) -> str | None:
        return None if item.prediction is None else layout_text(item.prediction.layout)

    return tabled(
        "planned_alternatives",
        "Why not",
        (
            Column("name", "layout", lambda a: a.name, role="identity", lead=True),
            Column("form", "at its best", form, drop=1),
            Column("why", "why it loses", lambda a: said(a.why)),
        ),
        plan.alternatives,
    )


VIEW = View(key="planned", title="Planned layouts", needs=("plan",), table=build_plan)
