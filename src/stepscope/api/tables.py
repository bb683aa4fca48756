"""The tables of a job by name: those of its report, the sections of its traces, its timed steps, its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from stepscope.report.contents import every_table
from stepscope.report.frame import Frame, Values, frame_of
from stepscope.report.trace_sections import SECTIONS
from stepscope.report.trace_sections import table as trace_table
from stepscope.report.views.findings import findings_table
from stepscope.results.evidence import NEEDS, Evidence
from stepscope.stats.step_table import StepTable, cell_table
from stepscope.traces.events import Category, Events

if TYPE_CHECKING:
    from stepscope.records.finding import Diagnosis

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


def tables_of(evidence: Evidence, diagnosis: Diagnosis, *, drop_epochs: int) -> Mapping[str, Callable[[], Frame]]:
    """Return the tables that a job's data may fill by name; each is made when it is called."""
    made = {"findings": lambda: frame_of(findings_table(diagnosis.findings))}
    if evidence.traces:
        made |= {f"{TRACE}{name}": partial(_section, evidence, name) for name in SECTIONS}
        made |= {name: made[f"{TRACE}{name}"] for name in SECTIONS}
        made["events"] = partial(_events, evidence)
    made |= {t.key: partial(frame_of, t) for t in every_table(evidence, drop_epochs=drop_epochs)}
    if tables := dict(_timed(evidence)):
        made["timed_steps"] = partial(_steps, tables)
    for name, choices in FIRST.items():
        if (chosen := next((key for key in choices if key in made), None)) is not None:
            made[name] = made[chosen]
    return made


@cache
def every_name() -> frozenset[str]:
    """Return the names of all tables that a job can have."""
    from stepscope.report.views import views

    of_views = {key for key, view in views().items() if view.table or view.tables}
    return frozenset({*FIRST, *SECTIONS, *of_views, "events", "timed_steps"})


def why_missing(name: str, evidence: Evidence, empty: Frame | None = None) -> tuple[str, str | None]:
    """Return why a job has no such table, and the command that records what it takes. empty: the table without rows."""
    if empty is not None and empty.table is not None and empty.table.notes:
        return "; ".join(empty.table.notes), None
    if name in SECTIONS or name.startswith(TRACE) or name == "events":
        return _NOTHING if evidence.traces else NEEDS["traces"]
    need = _NEED.get(name.split("_")[0])
    if need is not None:
        return _NOTHING if getattr(evidence, need) else NEEDS[need]
    if name in ("timed_steps", "step_parts", "ranks", "diary", "steps"):
        return _UNTIMED
    return _NOTHING if evidence.runs else NEEDS["runs"]


def _section(evidence: Evidence, name: str) -> Frame:
    """Return one section of all captures; ``capture`` names them where there are several."""
    frames = {trace.name: frame_of(trace_table(trace.summary, name)) for trace in evidence.traces}
    return joined("capture", frames)


def stacked(frames: Iterable[Frame]) -> Frame:
    """Return the rows of frames of one kind below each other; what one of them lacks is None there."""
    every = tuple(frames)
    if len(every) == 1:
        return every[0]
    columns: dict[str, Values] = {}
    for name in dict.fromkeys(name for frame in every for name in frame.columns):
        parts = [frame.columns.get(name, [None] * len(frame)) for frame in every]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        columns[name] = np.concatenate(arrays) if len(arrays) == len(parts) else [value for p in parts for value in p]
    units = {name: unit for frame in every for name, unit in frame.units.items()}
    return Frame(key=every[0].key, title=every[0].title, columns=columns, units=units)


def joined(key: str, frames: Mapping[str, Frame]) -> Frame:
    """Return the rows of all frames; where there are several, a first column names each."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    return stacked(replace(f, columns={key: [name] * len(f), **f.columns}, table=None) for name, f in frames.items())


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
    """Return a table of steps with a row a step of each rank: its whole time, the parts of it that were recorded, exposed
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


EVENT_TIMES = ("ts_ns", "dur_ns")
EVENT_NUMBERS = ("stream", "device", "correlation", "external_id")


def _events(evidence: Evidence) -> Frame:
    """Return all events of the traces, in the order of the files."""
    from stepscope.traces.load import load_traces

    frames: dict[str, Frame] = {}
    for trace in evidence.traces:
        files = tuple(dict.fromkeys(rank.facts.file for rank in trace.summary.ranks))
        frames[trace.name] = stacked(_events_of(rank.rank, rank.events) for rank in load_traces(files).ranks)
    return joined("capture", frames)


def _events_of(rank: int, events: Events) -> Frame:
    kinds = [category.name.lower() for category in Category]
    threads = [" ".join(thread) for thread in events.threads]
    columns: dict[str, Values] = {
        "rank": np.full(len(events), rank),
        "category": [kinds[code] for code in events.category.tolist()],
        "name": [events.names[code] for code in events.name.tolist()],
        "thread": [threads[code] for code in events.thread.tolist()],
        **{name: getattr(events, name) for name in (*EVENT_TIMES, *EVENT_NUMBERS)},
    }
    return Frame(key="events", title="Events", columns=columns, units=dict.fromkeys(EVENT_TIMES, "ns"))
