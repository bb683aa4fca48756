"""Why the first cost of a verdict is what it is: in names and counts, from the window and from what ranks recorded.

Sizes are those of timed steps (``verdict.py``); the window knows which operators, collectives, units and buckets there are.
A share is given of a part alone, and only where the profiler slows steps little (``JobVerdict.window_sized``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median

from stepscope.core.units import format_bytes, format_percent
from stepscope.core.words import counted, listed
from stepscope.diagnose.costs import Causes
from stepscope.diagnose.narrator import by_group
from stepscope.records.finding import JobVerdict
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.diary import EVENT_WORDS, KIND_OF_EVENT, Between
from stepscope.results.profiled_job import ProfiledJob

MOST_LINES = 5
"""On the first screen."""

MOST_NAMED = 3
"""Collectives or operators."""

_SENDS = ("c10d::", "gloo:", "nccl:")
"""Names of spans that are communication."""

_COMMUNICATES = ("communication-bound", "pipeline-bubble")
_COMPUTES = ("compute-bound", "memory-bound", "optimizer-bound", "host-bound")


def why_of(verdict: JobVerdict, causes: Causes) -> tuple[str, ...]:
    """Return at most ``MOST_LINES`` reasons."""
    job, summary = causes.job, causes.window
    cost, kind = verdict.part_cost, verdict.marked
    lines = list(verdict.evidence)
    lines += [
        finding.cause
        for finding in causes.diagnosis.findings
        if finding.cause and cost is not None and finding.rule in cost.rules
    ]
    if kind in _COMMUNICATES:
        lines += by_group(verdict)
        lines += [] if summary is None else _collective_lines(summary)
    elif kind in KIND_OF_EVENT.values():
        lines += _event_lines(verdict, causes.events)
    elif kind == "undecided" and summary is not None:
        lines += [*_collective_lines(summary), *_operator_lines(summary, sized=verdict.window_sized)]
    elif kind == "input-bound":
        lines += _loader_lines(job)
    elif kind in _COMPUTES and summary is not None:
        lines += _operator_lines(summary, sized=verdict.window_sized)
    return tuple(dict.fromkeys(lines))[:MOST_LINES]


def _collective_lines(summary: TraceSummary) -> Iterator[str]:
    """Say what a step of a rank sends, mean over ranks, by operation and size, the most exposed first."""
    ranks = [p for p in summary.ranks if p.communication is not None and p.steps]
    calls = Counter[tuple[str, int | None]]()
    exposed = Counter[tuple[str, int | None]]()
    for rank in ranks:
        assert rank.communication is not None
        marked = {step.step for step in rank.steps}
        for call in rank.communication.collectives:
            if call.step in marked:
                calls[call.op, call.size_bytes] += 1
                exposed[call.op, call.size_bytes] += call.exposed_ns
    steps = sum(len(rank.steps) for rank in ranks)
    if not calls:
        return
    first = [key for key, _ in exposed.most_common(MOST_NAMED)]
    named = [
        f"{calls[op, size] / steps:.3g} {op}" + ("" if size is None else f" of {format_bytes(size)}")
        for op, size in first
    ]
    rest = sum(calls.values()) - sum(calls[key] for key in first)
    more = f", and {rest / steps:.3g} more" if rest else ""
    yield f"a step of a rank makes {', '.join(named)}{more}"


def _operator_lines(summary: TraceSummary, *, sized: bool) -> Iterator[str]:
    """Say which operators (on devices, kernels) computation is made of, and how many of them a step calls."""
    totals = Counter[str]()
    for rank in summary.ranks:
        if rank.budget is not None and rank.budget.source == "device":
            for kernel in rank.kernels.rows if rank.kernels is not None else ():
                if kernel.work == "compute":
                    totals[kernel.name] += kernel.total_ns
        elif rank.operators is not None:
            for row in rank.operators.rows:
                if not row.name.startswith(_SENDS):
                    totals[row.name] += row.host_self_ns
    whole = sum(totals.values())
    if not whole:
        return
    named = [name + (f" {format_percent(ns / whole)}" if sized else "") for name, ns in totals.most_common(MOST_NAMED)]
    of = "of the time inside operators" if sized else "take most time inside operators"
    yield f"{listed(named, at_most=MOST_NAMED)} {of}"
    if counts := [rank.step_operators for rank in summary.ranks if rank.step_operators]:
        yield f"a step calls {median(counts):,.0f} operators"


def _event_lines(verdict: JobVerdict, events: Iterable[Between]) -> Iterator[str]:
    """Say which call it is, and how often it was seen."""
    for event in events:
        if KIND_OF_EVENT.get(event.kind) == verdict.marked:
            what = event.what or EVENT_WORDS[event.kind]
            yield f"{what}: {counted(event.count, 'time')} in {counted(verdict.steps_made or 0, 'step')}"


def _loader_lines(job: ProfiledJob) -> Iterator[str]:
    """Say how many workers the training loader has, as advice and stake count them."""
    workers = job.loader_workers
    if workers == 0:
        yield "the DataLoader has no workers: the training process makes each batch itself"
    elif workers is not None:
        yield f"the DataLoader has {counted(workers, 'worker')} a rank"
