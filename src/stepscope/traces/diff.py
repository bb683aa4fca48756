"""What changed between two traces or two steps: parts of the budget, kernels, operators; and whether it is noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import Unavailable, UsageError
from stepscope.records.trace_summary import DiffRow, StepSeries, TraceDiff, WorkProfile
from stepscope.stats.compare import MOST_BLOCKS, Change, block_medians, change, row_p_values, step_blocks
from stepscope.traces.activity import activity_of, parts_within
from stepscope.traces.events import Category, Events, Ints, RankView
from stepscope.traces.nesting import nest_events
from stepscope.traces.steps import windows_of

OTHERS = "all others"
NAMES = 300
"""Kernels and operators kept by name, those with most time."""

PARTS = ("window", "compute", "exposed_comm", "exposed_memory", "idle", "comm", "memory", "overlap")
STEP = PARTS[0]


def work_profile(view: RankView) -> WorkProfile | Unavailable:
    """Every quantity of the rank by step; Unavailable when nothing ran.

    Device work counts in the step in whose window it starts (see ``step_windows``), operators in the step that calls
    them. Work outside all steps is left out, as the step budgets leave it out.
    """
    events, activity = view.events, activity_of(view)
    marks, edges = windows_of(view).marks, windows_of(view).edges
    window = activity.window
    if window is None:
        return Unavailable("nothing ran on the device, and no operator on the host")
    marked = len(edges) > 0
    if marked:
        numbers, host = tuple(marks.numbers.tolist()), np.append(marks.starts, marks.ends[-1])
    else:
        edges = np.array(window, dtype=np.int64)
        low, high = int(events.ts_ns.min()), int(events.end_ns.max())
        numbers, host = (0,), np.array([low, high + 1], dtype=np.int64)
    parts = [parts_within(activity, low=low, high=high) for low, high in pairwise(edges.tolist())]
    series = [
        StepSeries(kind="part", name=name, calls=None, per_step_ns=tuple(getattr(p, f"{name}_ns") for p in parts))
        for name in PARTS
    ]
    kernels = events.where(Category.KERNEL)
    series += _step_series(events, "kernel", kernels, events.ts_ns[kernels], events.dur_ns[kernels], edges)
    chosen = events.where(Category.CPU_OP)
    tree = nest_events(events, chosen)
    series += _step_series(events, "operator", tree.index, tree.starts, tree.self_ns, host)
    return WorkProfile(rank=view.rank, marked=marked, source=activity.source, steps=numbers, series=tuple(series))


def _step_series(
    events: Events, kind: str, indices: NDArray[np.integer[Any]], starts: Ints, spent: Ints, edges: Ints
) -> list[StepSeries]:
    """Return the longest names of one kind: their ns in each step, and their calls. edges: of the steps."""
    steps = len(edges) - 1
    step = np.searchsorted(edges, starts, side="right") - 1
    inside = (step >= 0) & (step < steps)
    indices, step, spent = indices[inside], step[inside], spent[inside]
    if not len(indices):
        return []
    used, inverse = np.unique(events.name[indices], return_inverse=True)
    totals = np.bincount(inverse, weights=spent)
    kept = np.argsort(-totals, kind="stable")[:NAMES]
    row = np.full(len(used), len(kept), dtype=np.int64)
    row[kept] = np.arange(len(kept))
    table = np.zeros((len(kept) + 1, steps), dtype=np.int64)
    np.add.at(table, (row[inverse], step), spent)
    calls = np.bincount(row[inverse], minlength=len(kept) + 1)
    labels = [events.names[int(used[k])] for k in kept] + [OTHERS]
    return [
        StepSeries(kind=kind, name=label, calls=int(calls[i]), per_step_ns=tuple(table[i].tolist()))
        for i, label in enumerate(labels)
        if calls[i]
    ]


def only_steps(profile: WorkProfile, steps: Collection[int]) -> WorkProfile:
    """The profile of these steps alone, by their numbers. Raises UsageError for a step that is not in the trace.

    Calls are those of all steps, shared out evenly.
    """
    missing = sorted(set(steps) - set(profile.steps))
    if missing:
        has = ", ".join(map(str, profile.steps)) if profile.marked else "none: it marks no steps"
        raise UsageError(
            f"step {missing[0]} is not in the trace of rank {profile.rank}",
            why=f"its steps are {has}",
            fix="name steps that it has",
        )
    kept = [i for i, s in enumerate(profile.steps) if s in set(steps)]
    return replace(
        profile,
        steps=tuple(profile.steps[i] for i in kept),
        series=tuple(
            replace(
                s,
                calls=None if s.calls is None else round(s.calls * len(kept) / len(profile.steps)),
                per_step_ns=tuple(s.per_step_ns[i] for i in kept),
            )
            for s in profile.series
        ),
    )


def diff_profiles(before: WorkProfile, after: WorkProfile, *, limit: int | None = 30) -> TraceDiff:
    """Compare per step; rows by how much they changed. Kernels and operators beyond ``limit`` are only counted.

    The verdict is of the step time alone and needs 4 steps on each side. Raises UsageError when one is a CPU trace and
    the other is not: their parts do not mean the same.
    """
    if before.source != after.source:
        raise UsageError(
            "the two traces cannot be compared",
            why=f"times of one are from {_source_words(before)}, of the other from {_source_words(after)}",
            fix="compare two captures of the same kind of device",
        )
    a, b = (_series_by_name(profile, "part")[STEP].per_step_ns for profile in (before, after))
    blocks = step_blocks(a, least=MOST_BLOCKS), step_blocks(b, least=MOST_BLOCKS)
    step = change(block_medians(a, blocks[0]), block_medians(b, blocks[1]))
    p_value = None if step is None else step.p_value
    rows = {kind: _tested_rows(before, after, kind, blocks) for kind in ("part", "kernel", "operator")}
    rows["part"] = [replace(row, p_value=p_value) if row.name == STEP else row for row in rows["part"]]
    shown = {kind: every if kind == "part" else every[:limit] for kind, every in rows.items()}
    verdict, why = _change_verdict(len(a), len(b), step)
    return TraceDiff(
        rank_before=before.rank,
        rank_after=after.rank,
        verdict=verdict,
        why=why,
        ratio=step.ratio.value if step else None,
        ratio_low=step.ratio.low if step else None,
        ratio_high=step.ratio.high if step else None,
        p_value=p_value,
        steps_before=len(before.steps),
        steps_after=len(after.steps),
        parts=tuple(shown["part"]),
        kernels=tuple(shown["kernel"]),
        operators=tuple(shown["operator"]),
        left_out_rows=sum(len(rows[k]) - len(shown[k]) for k in rows),
    )


CAUTION = "steps of one capture depend on each other: repeat both runs to confirm"
"""Beside every test over the steps of traces."""


def _change_verdict(before: int, after: int, step: Change | None) -> tuple[str, str]:
    if step is None:
        return "not tested", "a step on one side takes no time"
    verdict, why = step_verdict(step, f"over {before} + {after} steps")
    if step.untested:
        why += "; profile more steps"
    elif verdict in _DIFFERENT.values():
        why += f"; {CAUTION}"
    return verdict, why


_DIFFERENT = {"less": "faster", "more": "slower"}


def step_verdict(step: Change, over: str) -> tuple[str, str]:
    """Return faster | slower | not clear | no significant difference | not tested, and what that rests on, with the name of
    a test or interval that is lacking. over: what was tested, in words."""
    if step.untested is not None:
        return "not tested", step.untested
    rests = f"Mann-Whitney {over}, p = {step.p_value:.2g}"
    if step.outcome == "not clear":
        lacks = (
            ": the interval leaves out no change, the test does not"
            if step.apart
            else ", but the interval holds no change"
        )
        return "not clear", rests + lacks
    return _DIFFERENT.get(step.outcome, step.outcome), rests


def _untested_rows(before: WorkProfile, after: WorkProfile, kind: str) -> list[DiffRow]:
    """Every quantity of one kind, without a test; the parts in their order, names by how much they changed."""
    old, new = _series_by_name(before, kind), _series_by_name(after, kind)
    rows = []
    for name in dict.fromkeys([*old, *new]):
        was, now = (float(np.median(_per_step(s.get(name), p))) for s, p in ((old, before), (new, after)))
        if name in old and name in new:
            presence = "both"
        elif OTHERS in (new if name in old else old):
            presence = "unlisted"
        else:
            presence = "gone" if name in old else "new"
        rows.append(
            DiffRow(
                kind=kind,
                name=name,
                presence=presence,
                before_ns=was,
                after_ns=now,
                delta_ns=now - was,
                ratio=now / was if was else None,
                before_calls=_calls_per_step(old.get(name), before, kind),
                after_calls=_calls_per_step(new.get(name), after, kind),
                p_value=None,
            )
        )
    return rows if kind == "part" else sorted(rows, key=lambda r: (-abs(r.delta_ns), r.name))


def _tested_rows(before: WorkProfile, after: WorkProfile, kind: str, blocks: tuple[int, int]) -> list[DiffRow]:
    """The rows of one kind with their p values, corrected for all of them; a row of one side only has none."""
    rows = _untested_rows(before, after, kind)
    tested = [row.name for row in rows if row.presence == "both"]
    if not tested:
        return rows
    sides = zip((before, after), blocks, strict=True)
    tables = [
        block_medians(np.array([_series_by_name(side, kind)[name].per_step_ns for name in tested]).T, length)
        for side, length in sides
    ]
    outcome = row_p_values(*tables)
    if isinstance(outcome, Unavailable):
        return rows
    p_values = dict(zip(tested, outcome.tolist(), strict=True))
    return [replace(row, p_value=p_values.get(row.name)) for row in rows]


def _series_by_name(profile: WorkProfile, kind: str) -> dict[str, StepSeries]:
    return {s.name: s for s in profile.series if s.kind == kind}


def _per_step(series: StepSeries | None, profile: WorkProfile) -> Sequence[int]:
    """Return the values per step, zeros where the trace does not have the series."""
    return (0,) * len(profile.steps) if series is None else series.per_step_ns


def _calls_per_step(series: StepSeries | None, profile: WorkProfile, kind: str) -> float | None:
    if kind == "part":
        return None
    return 0.0 if series is None or series.calls is None else series.calls / len(profile.steps)


def _source_words(profile: WorkProfile) -> str:
    return "the device" if profile.source == "device" else "the CPU's operators"
