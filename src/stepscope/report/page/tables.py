"""Which tables the page shows, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.core.dataclass import dataclass
from stepscope.core.words import counted
from stepscope.report.contents import comm_tables, experiment_tables, machine_tables, run_tables, step_tables
from stepscope.report.table import Column, Table, Value
from stepscope.report.trace_sections import table as trace_table
from stepscope.report.views import epochs, memory, pipeline, runs, scaling
from stepscope.report.views import history as history_view
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.history import history

MAX_NOTES = 50

MAX_ROWS = 2_000
"""Rows of one table in the page; the CSV files beside it have all."""

FOLD = 40
"""Rows from which on a table that charts show, too, starts closed."""

MANY_TRACES = 4
"""From more traced jobs than this on, each shows its budget only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A table as the page has it. columns: indices of those with anything in them. left_out: rows beyond the limit.

    throughout: names that all rows share, said once. fold: starts closed.
    """

    table: Table
    columns: tuple[int, ...]
    left_out: int
    throughout: str = ""
    fold: bool = False

    @property
    def measured(self) -> int:
        """Shown columns that a failed row fills with its reason: the measured ones that stand together, first of all."""
        roles = [self.table.columns[i].role for i in self.columns]
        first = roles.index("measured") if "measured" in roles else len(roles)
        after = next((n for n, role in enumerate(roles[first:]) if role != "measured"), len(roles) - first)
        return max(1, after)


def shown(table: Table, *, fold: bool = False, keep: int = MAX_ROWS) -> Shown:
    """``table`` without empty columns, with names that all rows share said once, and at most ``keep`` rows."""
    rows = table.rows[:keep]
    said = [
        i
        for i, column in enumerate(table.columns)
        if column.lead or any(row.values[i].raw not in (None, "") for row in rows)
    ]
    alike = [
        i
        for i in said
        if len(rows) > 1 and _can_be_said_once(table.columns[i]) and len({row.values[i].text for row in rows}) == 1
    ]
    said = [i for i in said if i not in alike]
    return Shown(
        table=replace(table, rows=rows),
        columns=tuple(said),
        left_out=len(table.rows) - len(rows),
        throughout=", ".join(_said_once(table.columns[i], rows[0].values[i]) for i in alike),
        fold=fold,
    )


def _can_be_said_once(column: Column) -> bool:
    return column.role in ("group", "identity") and not column.lead


def _said_once(column: Column, value: Value) -> str:
    return value.text if column.role == "group" else f"{column.title} {value.text}"


def all_tables(evidence: Evidence, *, drop_epochs: int = 1) -> tuple[Shown, ...]:
    """Every table of the page but scaling's, which stands with its charts."""
    found = [shown(table) for table in (*experiment_tables(evidence), *step_tables(evidence))]
    if evidence.runs:
        table = runs.build(evidence.runs, evidence.scaling, drop_epochs=drop_epochs, show=runs.PAGE)
        found.append(shown(replace(table, key="runs", title="Runs", notes=table.notes[:MAX_NOTES])))
    if (past := history(evidence)) is not None:
        found.insert(0, shown(history_view.build(past)))
    if (lost := scaling.scaling_budget_table(evidence.scaling_budgets)).rows:
        found.append(shown(lost))
    found += [shown(table, fold=len(table.rows) > FOLD) for table in run_tables(evidence, drop_epochs=drop_epochs)]
    found += [shown(table, fold=len(table.rows) > 200) for table in comm_tables(evidence.comm)]
    found += [shown(table) for table in (*memory.held_table(evidence.cells), *pipeline.pipeline_table(evidence.cells))]
    found += [shown(table) for table in machine_tables(evidence)]
    if any(run.epochs for run in evidence.runs):
        found.append(shown(epochs.epochs_table(evidence.runs), fold=True))
    return tuple(found)


def trace_tables(evidence: Evidence, *, first: Sequence[str] = ()) -> tuple[tuple[str, tuple[Shown, ...]], ...]:
    """For each traced job its name and tables: where the time went, and for few jobs also collectives and waiting.

    first: names in the order wanted.
    """
    sections = ("budget",) if len(evidence.traces) > MANY_TRACES else ("budget", "collectives", "stragglers")
    ordered = sorted(evidence.traces, key=lambda t: first.index(t.name) if t.name in first else len(first))
    return tuple((trace.name, tuple(_sections(trace, sections))) for trace in ordered)


def _sections(trace: TraceEvidence, sections: Sequence[str]) -> list[Shown]:
    tables = [trace_table(trace.summary, section) for section in sections]
    return [shown(table) for table in tables if table.rows]


def rows_left_out(table: Shown) -> str | None:
    """What a reader must know of a table that was cut."""
    return f"{counted(table.left_out, 'more row')}: in the CSV files" if table.left_out else None
