"""What the page's timeline draws: traced jobs as spans, cells without a trace as the phases of their median step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.samples import PHASES, StepSample
from stepscope.records.trace_collectives import ClockFit
from stepscope.records.trace_summary import RankPass
from stepscope.records.trace_timeline import KindSpans, NamedSpan, RankSpans
from stepscope.report.views.step_budget import PHASE_NAMES
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence
from stepscope.stats.measured import common_steps
from stepscope.traces.alignment import corrected
from stepscope.traces.timeline_spans import MAX_NAMED, MAX_SPANS, coarser

PAGE_BYTES = 1_600_000
"""For all timelines of one page together: 50 jobs of 8 ranks stay below 3 MB with everything else."""

MAX_ROWS = 64
"""Ranks of one job that are drawn."""

MAX_STRIPS = 100
"""Cells without a trace whose step is drawn."""

_BYTES_PER_SPAN = 4
_BYTES_PER_NAME = 26
_NAMES_SHARE = 0.15

KIND_NAMES = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "copies": "exposed copies",
    "hidden_comm": "hidden communication",
}
"""In the order of the legend; idle time is what is left."""


def timeline(evidence: Evidence) -> dict[str, Any]:
    """The page's timeline data: ``jobs`` in the order of evidence, traces first; empty: nothing to draw."""
    traced = [trace for trace in evidence.traces if any(p.spans for p in trace.summary.ranks)]
    ranks = sum(min(len(trace.summary.ranks), MAX_ROWS) for trace in traced)
    spans = int(PAGE_BYTES * (1 - _NAMES_SHARE) / _BYTES_PER_SPAN / max(ranks, 1))
    names = int(PAGE_BYTES * _NAMES_SHARE / _BYTES_PER_NAME / max(ranks, 1))
    jobs = [_job(trace, limit=min(spans, MAX_SPANS), named=min(names, MAX_NAMED)) for trace in traced]
    seen = {trace.cell_id for trace in traced}
    cells = [cell for cell in evidence.cells if cell.cell_id not in seen]
    strips = [strip for cell in cells[:MAX_STRIPS] if (strip := _strip(cell)) is not None]
    return {"jobs": jobs + strips}


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element whatever the strings in it say."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _job(trace: TraceEvidence, *, limit: int, named: int) -> dict[str, Any]:
    found = [(p, p.spans) for p in trace.summary.ranks if p.spans is not None]
    drawn = [(p, coarser(s, limit=limit, named=named)) for p, s in found[:MAX_ROWS]]
    fits = _fits(trace)
    starts = {s.rank: _start(s, fits.get(s.rank)) for _, s in drawn}
    together = _together(drawn, starts)
    names: dict[str, int] = {}
    rows = [
        _row(p, s, start_ns=starts[s.rank] - min(starts.values()) if together else 0, names=names) for p, s in drawn
    ]
    return {
        "kind": "trace",
        "name": trace.name,
        "kinds": [[key, name] for key, name in KIND_NAMES.items()],
        "rows": rows,
        "names": list(names),
        "notes": _notes(trace, drawn, together=together, left_out=len(found) - len(drawn)),
    }


def _fits(trace: TraceEvidence) -> dict[int, ClockFit]:
    collectives = trace.summary.collectives
    return {} if collectives is None else {fit.rank: fit for fit in collectives.clocks.fits}


def _start(spans: RankSpans, fit: ClockFit | None) -> int:
    """The rank's first event on the reference rank's clock, where clocks could be compared."""
    return spans.start_ns if fit is None else corrected(fit, spans.start_ns)


def _together(drawn: Sequence[tuple[RankPass, RankSpans]], starts: Mapping[int, int]) -> bool:
    """Whether all ranks' windows overlap: files with unrelated clocks are drawn each from its own start."""
    ends = [starts[s.rank] + s.window_ns for _, s in drawn]
    return not drawn or max(starts.values()) < min(ends)


def _row(found: RankPass, spans: RankSpans, *, start_ns: int, names: dict[str, int]) -> dict[str, Any]:
    kinds = {each.kind: each for each in spans.kinds}
    return {
        "label": f"rank {spans.rank}",
        "start": start_ns,
        "window": spans.window_ns,
        "unit": spans.unit_ns,
        "spans": {kind: kinds[kind].packed for kind in KIND_NAMES},
        "totals": {kind: kinds[kind].total_ns for kind in KIND_NAMES},
        "named": [_named(each, spans, names) for each in spans.named],
        "steps": [[step.step, step.start_ns - spans.start_ns] for step in found.steps],
    }


def _named(each: NamedSpan, spans: RankSpans, names: dict[str, int]) -> list[int]:
    return [each.start_ns - spans.start_ns, each.duration_ns, names.setdefault(each.name, len(names))]


def _notes(
    trace: TraceEvidence, drawn: Sequence[tuple[RankPass, RankSpans]], *, together: bool, left_out: int
) -> list[str]:
    notes = []
    merged = max((s.merged_ns for _, s in drawn), default=0)
    if merged:
        kinds: list[KindSpans] = [k for _, s in drawn for k in s.kinds]
        kept, count = sum(k.kept for k in kinds), sum(k.count for k in kinds)
        notes.append(
            f"Gaps up to {format_duration(merged)} are closed in this picture ({kept:,} of {count:,} spans);"
            " totals are exact.".replace(",", " ")
        )
    if any(s.source == "cpu_spans" for _, s in drawn):
        notes.append("No device in this trace: compute is operators, communication the library's own threads.")
    if not together:
        notes.append("The ranks' clocks cannot be compared: each rank is drawn from its own first event.")
    elif trace.summary.collectives is not None and len(drawn) > 1:
        notes.append(f"Clocks: {trace.summary.collectives.clocks.text}.")
    if left_out > 0:
        notes.append(f"{counted(left_out, 'more rank')} not drawn.")
    return notes


def _strip(cell: CellEvidence) -> dict[str, Any] | None:
    """The step whose slowest rank took the median time: its phases on every rank, end to end."""
    step = _median_step(cell)
    if step is None:
        return None
    return {
        "kind": "phases",
        "name": f"{cell.run.group}, {cell.run.label}",
        "kinds": [[phase, name] for phase, name in zip(PHASES, PHASE_NAMES, strict=True)],
        "rows": [
            {"label": f"rank {rank}", "phases": [getattr(sample, f"{phase}_ns") for phase in PHASES]}
            for rank, sample in enumerate(step[:MAX_ROWS])
        ],
        "notes": [
            f"Step {step[0].step}: its slowest rank took the median time of all measured steps. Phases are laid end to"
            " end; a trace (bench --profile) shows what really ran when."
        ],
    }  # fmt: skip


def _median_step(cell: CellEvidence) -> tuple[StepSample, ...] | None:
    steps = common_steps(cell.result.samples, cell.result.spec.world_size).full
    if not steps:
        return None
    ordered = sorted(steps.values(), key=lambda ranks: max(sample.step_ns for sample in ranks))
    return ordered[(len(ordered) - 1) // 2]
