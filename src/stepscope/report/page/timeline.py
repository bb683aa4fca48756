"""The page's timeline: traced jobs as spans, cells without a trace as phases of their median step; the merged trace."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.diagnose.commands import trace_command
from stepscope.records.finding import Finding
from stepscope.records.nouns import EXPOSED_COMM
from stepscope.records.parts import SAMPLED, TITLES
from stepscope.records.samples import PHASE_NAMES, PHASES
from stepscope.records.trace_budget import KindSpans, NamedSpan, RankSpans
from stepscope.records.trace_collectives import ClockFit
from stepscope.records.trace_summary import RankPass
from stepscope.report.names import file_part
from stepscope.report.views.trace_budget import CAUSES
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence, in_line
from stepscope.stats.spans import EMPTY, Spans
from stepscope.stats.step_table import cell_table
from stepscope.traces.alignment import corrected
from stepscope.traces.merge import merge_traces
from stepscope.traces.timeline_spans import MAX_GAPS, MAX_NAMED, MAX_SPANS, coarser, waiting_apart
from stepscope.traces.waits import spans_of, waits_of

MOST_BYTES = 32 << 20
"""Bytes of a job's traces, as they lie on disk: more take longer to merge than the rest of a report."""

MOST_JOBS = 4


def merged_files(evidence: Evidence, folder: Path) -> dict[str, Path]:
    """Write each job's ranks into one file in ``folder``; return name of the job -> its file.

    Jobs that are large, that are of one rank, or that come after many others have none. Raises DataError, WriteError.
    """
    written: dict[str, Path] = {}
    jobs = [job for job in evidence.traces if _is_small(job)][:MOST_JOBS]
    for job in jobs:
        name = "merged" if len(evidence.traces) == 1 else f"merged-{file_part(job.name)}"
        path = folder / f"{name}.json.gz"
        if job.name in written or path in written.values():
            continue
        clocks = job.summary.collectives.clocks if job.summary.collectives is not None else None
        merge_traces({p.facts.rank: Path(p.facts.file) for p in job.summary.ranks}, path, clocks=clocks)
        written[job.name] = path
    return written


def _is_small(job: TraceEvidence) -> bool:
    files = [Path(p.facts.file) for p in job.summary.ranks]
    return len(files) > 1 and all(f.is_file() for f in files) and sum(f.stat().st_size for f in files) <= MOST_BYTES


def how_to_get(job: TraceEvidence, file: Path | None) -> str:
    """Say what to open in a viewer."""
    if file is not None:
        return f"{file.name} beside this page: all ranks on one clock"
    if len(job.summary.ranks) == 1:
        return job.summary.ranks[0].facts.file
    return f"merged.json.gz, which this command writes: {trace_command(job, '--merge merged.json.gz')}"


PAGE_BYTES = 1_350_000
"""Bytes of all timelines of one page together: 50 jobs of 8 ranks stay below 2 MB with everything else."""

MAX_ROWS = 64
"""Ranks of one job that are drawn."""

MAX_STRIPS = 100
"""Cells without a trace whose step is drawn."""

_BYTES_PER_SPAN = 4
_BYTES_PER_NAME = 26
_BYTES_PER_GAP = 20
_NAMES_SHARE = 0.1
_GAPS_SHARE = 0.1

KIND_NAMES = {
    "compute": "compute",
    "exposed_wait": TITLES["waiting"],
    "exposed_comm": EXPOSED_COMM,
    "copies": TITLES["copies"],
    "hidden_wait": "hidden waiting",
    "hidden_comm": "hidden communication",
}
"""Names of kinds in the order of the legend; idle time is what is left. Without a comparison of ranks nothing is waiting."""

APART = {"exposed_comm": TITLES["transfer"], "hidden_comm": "hidden transfer"}
"""The names where every collective could be split into waiting and transfer."""

_STRIP = tuple(
    part
    for phase, name in zip(PHASES, PHASE_NAMES, strict=True)
    for part in (
        (("exposed_wait", KIND_NAMES["exposed_wait"]), (phase, APART[phase])) if phase in APART else ((phase, name),)
    )
)


def timeline(
    evidence: Evidence, findings: Sequence[Finding] = (), merged: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """Return the page's timeline data: ``jobs``, empty where there is nothing to draw.

    Traces come first, the one of the first finding before the others, those without a finding last; then cells without a
    trace, by what they do not compute.

    merged: files as of ``merged_files``.
    """
    traced = [trace for trace in evidence.traces if any(p.spans for p in trace.summary.ranks)]
    ranks = sum(min(len(trace.summary.ranks), MAX_ROWS) for trace in traced)
    spans = int(PAGE_BYTES * (1 - _NAMES_SHARE - _GAPS_SHARE) / _BYTES_PER_SPAN / max(ranks, 1))
    names = int(PAGE_BYTES * _NAMES_SHARE / _BYTES_PER_NAME / max(ranks, 1))
    gaps = int(PAGE_BYTES * _GAPS_SHARE / _BYTES_PER_GAP / max(ranks, 1))
    with_finding = [finding.job for finding in findings if finding.severity != "info"]
    traced.sort(
        key=lambda trace: (
            with_finding.index(trace.name) if trace.name in with_finding else len(with_finding),
            -_most_lost(trace),
        )
    )
    limits = {"limit": min(spans, MAX_SPANS), "named": min(names, MAX_NAMED), "gaps": min(gaps, MAX_GAPS)}
    jobs = [
        _job_timeline(trace, {r for f in findings if f.job == trace.name for r in f.ranks}, limits) for trace in traced
    ]
    for trace, job in zip(traced, jobs, strict=True):
        job["merged"] = how_to_get(trace, (merged or {}).get(trace.name))
    seen = {trace.cell_id for trace in traced}
    cells = [cell for cell in evidence.cells if cell.cell_id not in seen]
    strips = [strip for cell in cells[:MAX_STRIPS] if (strip := _median_step_strip(cell)) is not None]
    strips.sort(key=_least_computing)
    return {"jobs": jobs + strips}


@record
class TimelinePlace:
    """Where a finding is in the timeline: indices of job and row (None: of no rank), and a stretch in ns of the picture."""

    job: int
    row: int | None
    name: str
    at: tuple[int, int] | None


def place(data: Mapping[str, Any], finding: Finding) -> TimelinePlace | None:
    """Return the place of a finding of a job that is drawn."""
    candidates = (
        (n, job) for n, job in enumerate(data["jobs"]) if job["name"] == finding.job and job["kind"] == "trace"
    )
    number, job = next(candidates, (0, None))
    if job is None:
        return None
    names = [row["label"] for row in job["rows"]]
    row = next((names.index(name) for rank in finding.ranks if (name := f"rank {rank}") in names), None)
    at = None
    if row is not None and finding.at_ns is not None:
        zero = job["zeros"][row]
        at = (finding.at_ns[0] - zero, finding.at_ns[1] - zero)
    return TimelinePlace(job=number, row=row, name="" if row is None else names[row], at=at)


def _least_computing(strip: Mapping[str, Any]) -> float:
    """Return the smallest share of a rank's step in which it neither communicates nor waits."""
    idle = [n for n, (kind, _) in enumerate(strip["kinds"]) if kind in ("data_wait", "exposed_wait", "exposed_comm")]
    shares: list[float] = [
        1 - sum(row["phases"][n] for n in idle) / max(1, sum(row["phases"])) for row in strip["rows"]
    ]
    return min(shares)


def _most_lost(trace: TraceEvidence) -> float:
    """Return the largest share of a rank's window without computation."""
    parts = [p.budget.parts for p in trace.summary.ranks if p.budget is not None]
    return max((1 - p.compute_ns / max(1, p.window_ns) for p in parts), default=0.0)


def drawn(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the script needs of ``data``: without the ranks' own clocks, whose numbers are too large for it."""
    return {"jobs": [{key: value for key, value in job.items() if key != "zeros"} for job in data["jobs"]]}


def embedded(data: Mapping[str, Any]) -> str:
    """Write JSON that may stand inside a script element whatever the strings in it say."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _job_timeline(trace: TraceEvidence, named: Collection[int], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return what the timeline draws of one trace. named: ranks that findings are about, drawn whatever is left out."""
    spanned = [(p, p.spans) for p in trace.summary.ranks if p.spans is not None]
    kept = sorted(spanned, key=lambda pair: pair[1].rank not in named)[:MAX_ROWS]
    waits, complete = _rank_waits(trace)
    drawn = [
        (p, coarser(waiting_apart(s, waits[s.rank]) if s.rank in waits else s, **limits))
        for p, s in sorted(kept, key=lambda pair: pair[1].rank)
    ]
    kinds = {"compute", *(kind.kind for _, s in drawn for kind in s.kinds if kind.total_ns)}
    fits = _fits_by_rank(trace)
    starts = {s.rank: _start_ns(s, fits.get(s.rank)) for _, s in drawn}
    together = _windows_overlap(drawn, starts)
    names: dict[str, int] = {}
    zero = min(starts.values(), default=0) if together else 0
    rows = [_rank_row(p, s, start_ns=starts[s.rank] - zero if together else 0, names=names) for p, s in drawn]
    return {
        "kind": "trace",
        "name": trace.name,
        "kinds": [[k, APART.get(k, name) if complete else name] for k, name in KIND_NAMES.items() if k in kinds],
        "rows": rows,
        "zeros": [s.start_ns - row["start"] for (_, s), row in zip(drawn, rows, strict=True)],
        "names": list(names),
        "causes": CAUSES,
        "notes": _timeline_notes(trace, drawn, together=together, left_out=len(spanned) - len(drawn)),
    }


def _rank_waits(trace: TraceEvidence) -> tuple[dict[int, Spans], bool]:
    """Return when each rank waited in collectives and nothing transferred, on its own clock; whether that is known of all.

    Empty: of no collective.
    """
    instances = trace.summary.collectives.instances if trace.summary.collectives is not None else ()
    split = [i for i in instances if i.transfer_ns is not None]
    waits: dict[int, Spans] = {p.facts.rank: EMPTY for p in trace.summary.ranks} if split else {}
    waits |= {rank: spans_of(total.alone) for rank, total in waits_of(trace.summary.collectives).items()}
    return waits, bool(split) and len(split) == len(instances)


def _fits_by_rank(trace: TraceEvidence) -> dict[int, ClockFit]:
    collectives = trace.summary.collectives
    return {} if collectives is None else {fit.rank: fit for fit in collectives.clocks.fits}


def _start_ns(spans: RankSpans, fit: ClockFit | None) -> int:
    """Return the rank's first event on the reference rank's clock, where clocks could be compared."""
    return spans.start_ns if fit is None else corrected(fit, spans.start_ns)


def _windows_overlap(drawn: Sequence[tuple[RankPass, RankSpans]], starts: Mapping[int, int]) -> bool:
    """Return whether all ranks' windows overlap: files with unrelated clocks are drawn each from its own start."""
    ends = [starts[s.rank] + s.window_ns for _, s in drawn]
    return not drawn or max(starts.values()) < min(ends)


def _rank_row(rank_pass: RankPass, spans: RankSpans, *, start_ns: int, names: dict[str, int]) -> dict[str, Any]:
    """Return one rank's lanes from ``start_ns`` on. names: the number of each name."""
    kinds = {kind.kind: kind for kind in spans.kinds}
    return {
        "label": f"rank {spans.rank}",
        "start": start_ns,
        "window": spans.window_ns,
        "unit": spans.unit_ns,
        "spans": {kind: kind_spans.packed for kind, kind_spans in kinds.items()},
        "totals": {kind: kind_spans.total_ns for kind, kind_spans in kinds.items()},
        "named": [_named_span(span, spans, names) for span in spans.named],
        "gaps": [[gap.start_ns - spans.start_ns, gap.duration_ns, gap.cause] for gap in spans.gaps],
        "steps": [[step.step, step.start_ns - spans.start_ns] for step in rank_pass.steps],
    }


def _named_span(span: NamedSpan, spans: RankSpans, names: dict[str, int]) -> list[int]:
    return [span.start_ns - spans.start_ns, span.duration_ns, names.setdefault(span.name, len(names))]


def _timeline_notes(
    trace: TraceEvidence, drawn: Sequence[tuple[RankPass, RankSpans]], *, together: bool, left_out: int
) -> list[str]:
    """Return notes on gaps that are closed, clocks that are apart and ranks that are left out."""
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


def _median_step_strip(cell: CellEvidence) -> dict[str, Any] | None:
    """Return the step whose slowest rank took the median time: its phases on every rank, end to end."""
    table = cell_table(cell.result)
    if table is None:
        return None
    at = int(np.argsort(table.step_ns, kind="stable")[(table.steps - 1) // 2])
    times = {phase: table.parts_ns[part][:, at] for phase, part in SAMPLED.items() if part != "communication"}
    transfer = np.full(table.ranks, table.transfer_ns[at])
    times |= {"exposed_comm": transfer, "exposed_wait": table.comm_ns[:, at] - transfer}
    return {
        "kind": "phases",
        "name": in_line(cell.run),
        "kinds": [list(part) for part in _STRIP],
        "rows": [
            {"label": f"rank {rank}", "phases": [int(times[key][rank]) for key, _ in _STRIP]}
            for rank in range(min(table.ranks, MAX_ROWS))
        ],
        "notes": [
            f"Step {table.numbers[at]}: its slowest rank took the median time of all measured steps. Phases are laid end to"
            " end; a trace (bench --profile) shows what really ran when. Transfer: what the rank that waits least has"
            " exposed; the rest of it is waiting."
        ],
    }  # fmt: skip
