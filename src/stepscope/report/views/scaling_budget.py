"""1 rank against n: the parts of a step on both, what each would ideally take, and its share of the loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.core.words import counted
from stepscope.records.comparison import ScalingBudget
from stepscope.report.table import Column, Table, duration, percent, tabled
from stepscope.report.view import View
from stepscope.results.scaling_budget import PARTS, ranked


@dataclass(frozen=True, slots=True)
class _Line:
    head: str
    name: str
    base_ns: float
    ideal_ns: float
    run_ns: float
    lost_ns: float
    share: float | None


def build(budgets: Sequence[ScalingBudget]) -> Table:
    """One row a part, the largest loss first, and the whole below; a block for every pair and reading that has parts."""
    budgets = [budget for budget in budgets if budget.readings[0].parts]
    first = budgets[0] if len(budgets) == 1 else None
    return tabled(
        "scaling_budget",
        "Where the speed-up is lost",
        (
            Column("pair", "", lambda line: line.head, role="group"),
            Column("part", "part", lambda line: line.name, role="identity", lead=True),
            Column("base_ns", f"{first.base_world_size} rank{'s' * (first.base_world_size > 1)}" if first else "baseline",
                   lambda line: line.base_ns, duration),
            Column("ideal_ns", "ideal", lambda line: line.ideal_ns, duration, drop=1),
            Column("run_ns", counted(first.world_size, "rank") if first else "run", lambda line: line.run_ns, duration),
            Column("lost_ns", "lost", lambda line: line.lost_ns, duration),
            Column("share", "of the loss", lambda line: line.share, percent),
        ),
        [line for budget in budgets for line in _lines(budget)],
        footnotes=_footnotes(budgets),
    )  # fmt: skip


def _lines(budget: ScalingBudget) -> Iterable[_Line]:
    for reading in budget.readings:
        kind = f", {reading.scaling}" if reading.scaling else ""
        head = f"{budget.run} against {budget.base}{kind}"
        for part in ranked(reading):
            yield _Line(head, PARTS[part.key], part.base_ns, part.ideal_ns, part.run_ns, part.lost_ns, part.share)
        total = None if reading.lost_ns <= 0 else 1.0
        yield _Line(
            head, budget.unit, budget.base_time.value, reading.ideal_ns, budget.time.value, reading.lost_ns, total
        )


def _footnotes(budgets: Sequence[ScalingBudget]) -> tuple[str, ...]:
    notes = [
        "ideal: the baseline's time divided by the ranks (strong scaling), or unchanged (weak); lost: above the ideal time."
    ]
    signed = [
        part for b in budgets for each in b.readings if each.lost_ns > 0 for part in each.parts if part.share is None
    ]
    if signed:
        notes.append(
            "of the loss: unknown of a part that gained (-), and of one that lost more than the whole, which others gained"
            " back; the lost times sum to the loss."
        )
    if any(budget.traced for budget in budgets):
        notes.append("traced jobs: means over ranks and steps; the last rank to finish a step decides its length.")
    return tuple(notes)


VIEW = View(key="scaling_budget", title="Where the speed-up is lost", needs=("scaling_budgets",), table=build)
