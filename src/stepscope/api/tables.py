"""The tables of a job by name: those of its report, the sections of its traces, its timed steps, its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.errors import UsageError
from stepscope.report.contents import every_table
from stepscope.report.frame import Frame, Values, frame_of, joined, stacked
from stepscope.report.trace_sections import SECTIONS
from stepscope.report.trace_sections import table as trace_table
from stepscope.report.views.findings import findings_table
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.stats.step_table import StepTable, cell_table
from stepscope.traces import sections

if TYPE_CHECKING:
    from stepscope.records.finding import Diagnosis
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.traces.sections import StatedClass

TRACE = "trace_"
"""Before the name of a section of the traces, where something else of the job may have its name."""

FIRST: Mapping[str, tuple[str, ...]] = {
    "steps": ("timed_steps", "trace_steps"),
    "ranks": ("ranks", "trace_budget"),
    "runs": ("runs",),
    "collectives": ("trace_collectives", "comm"),
    "memory": ("trace_memory", "memory_snapshots", "held", "memory"),
}
"""What a job is asked for -> the tables that answer it; the first that its data fill."""

BY_RANK = tuple(section.name for section in sections.SECTIONS if section.view and section.work)
"""Sections of which each rank has its own."""

_NEED = {
    "comm": "comm",
    "pairs": "comm",
    "collectives": "comm",
    "memory": "memory",
    "scaling": "scaling",
    "nccl": "nccl",
}
_UNTIMED = ("no steps were timed", "stepscope profile -- COMMAND")
_NOTHING = ("these data hold nothing of it", None)


def tables_of(
    evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int, classes: Sequence[StatedClass] = ()
) -> Mapping[str, Callable[[], Frame]]:
    """Return the tables that a job's data may fill by name; each is made when it is called."""
    made: dict[str, Callable[[], Frame]] = {"findings": lambda: frame_of(findings_table(diagnosis.findings))}
    if evidence.traces:
        made |= {f"{TRACE}{name}": partial(_section, evidence, name) for name in SECTIONS}
        made |= {name: made[f"{TRACE}{name}"] for name in SECTIONS}
        from stepscope.api.event_tables import event_tables

        made |= event_tables(evidence.traces, classes)
    made |= {t.key: partial(frame_of, t) for t in every_table(evidence, drop_epochs=drop_epochs)}
    if tables := dict(_timed(evidence)):
        made["timed_steps"] = partial(_steps, tables)
    for name, choices in FIRST.items():
        if (chosen := next((key for key in choices if key in made), None)) is not None:
            made[name] = made[chosen]
    return made


def table_by_rank(evidence: Evidence, name: str) -> Frame:
    """Return a table of traces with the rows of each rank by itself. Raises UsageError for one that is of the whole job."""
    key = name.removeprefix(TRACE)
    if key not in BY_RANK or not evidence.traces:
        raise UsageError(f"table {name!r} is not made for one rank: {', '.join(BY_RANK)} are", fix="leave by_rank out")
    return _section(evidence, key, by_rank=True)


@cache
def every_name() -> frozenset[str]:
    """Return the names of all tables that a job can have."""
    from stepscope.api.event_tables import TABLES
    from stepscope.report.views import views

    of_views = {key for key, view in views().items() if view.table or view.tables}
    return frozenset({*FIRST, *SECTIONS, *TABLES, *of_views, "timed_steps"})


def why_missing(name: str, evidence: Evidence, empty: Frame | None = None) -> tuple[str, str | None]:
    """Return why a job has no such table, and the command that records what it takes. empty: the table without rows."""
    if empty is not None and empty.table is not None and empty.table.notes:
        return "; ".join(empty.table.notes), None
    from stepscope.api.event_tables import TABLES

    if name in SECTIONS or name.startswith(TRACE) or name in TABLES:
        return _NOTHING if evidence.traces else NEEDS["traces"]
    need = _NEED.get(name.split("_")[0])
    if need is not None:
        return _NOTHING if getattr(evidence, need) else NEEDS[need]
    if name in ("timed_steps", "step_parts", "ranks", "diary", "steps"):
        return _UNTIMED
    return _NOTHING if evidence.runs else NEEDS["runs"]


def _section(evidence: Evidence, name: str, *, by_rank: bool = False) -> Frame:
    """Return one section of all captures; ``capture`` names them where there are several. by_rank: of each rank alone."""
    made = _of_each_rank if by_rank else _of_all_ranks
    return joined("capture", {trace.name: made(trace.summary, name) for trace in evidence.traces})


def _of_all_ranks(summary: TraceSummary, name: str) -> Frame:
    return frame_of(trace_table(summary, name))


def _of_each_rank(summary: TraceSummary, name: str) -> Frame:
    alone = {rank.facts.rank: _of_all_ranks(replace(summary, ranks=(rank,)), name) for rank in summary.ranks}
    return stacked(
        frame if "rank" in frame.columns else replace(frame, columns={"rank": [rank] * len(frame), **frame.columns})
        for rank, frame in alone.items()
    )


def _timed(evidence: Evidence) -> Iterator[tuple[str, StepTable]]:
    for job in evidence.profiled:
        if job.steps is not None:
            yield job.name, job.steps
    for cell in evidence.cells:
        if (table := cell_table(cell.result)) is not None:
            yield cell.run.run_id, table


def _steps(tables: Mapping[str, StepTable]) -> Frame:
    return joined("job", {name: steps_frame(table) for name, table in tables.items()})


def steps_frame(table: StepTable) -> Frame:
    """Return a table of steps with one row per step and rank: its whole time, the parts of it that were recorded, exposed
    communication and own time (ns)."""
    shape = table.whole_ns.shape
    times = {"step": table.whole_ns, **table.parts_ns, "exposed_communication": table.comm_ns, "own": table.own_ns}
    columns: dict[str, Values] = {
        "rank": np.repeat(table.rank_numbers, shape[1]),
        "host": [host for host in table.hosts for _ in range(shape[1])],
        "number": np.tile(table.numbers, shape[0]),
        "round": np.tile(table.rounds, shape[0]),
    }
    columns |= {f"{name}_ns": np.broadcast_to(values, shape).reshape(-1) for name, values in times.items()}
    return Frame(key="timed_steps", title="Timed steps", columns=columns, units={f"{name}_ns": "ns" for name in times})
