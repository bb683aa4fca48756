"""The JSON document of ``trace --json`` (schema stepscope.trace/1) and the numbers that ``--fail-if`` knows."""

from __future__ import annotations

from typing import Any

from stepscope.records.codec import headed, plain
from stepscope.records.finding import Diagnosis
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_summary import RankPass, TraceSummary

METRICS = (
    "window_ns",
    "compute_fraction",
    "exposed_comm_fraction",
    "exposed_memory_fraction",
    "idle_fraction",
    "hidden_fraction",
    "comm_ns",
    "straggler_count",
)


def metrics(summary: TraceSummary) -> dict[str, float | None]:
    """Job-wide numbers: sums over ranks before any ratio; None where nothing was measured.

    ``window_ns`` is the longest rank's; ``hidden_fraction`` the share of all communication under computation.
    """
    parts = [p.budget.parts for p in summary.ranks if p.budget is not None]
    window = sum(p.window_ns for p in parts)
    comm = sum(p.comm_ns for p in parts)

    def share(total: int, of: int) -> float | None:
        return total / of if of else None

    return {
        "window_ns": max((p.window_ns for p in parts), default=None),
        "compute_fraction": share(sum(p.compute_ns for p in parts), window),
        "exposed_comm_fraction": share(sum(p.exposed_comm_ns for p in parts), window),
        "exposed_memory_fraction": share(sum(p.exposed_memory_ns for p in parts), window),
        "idle_fraction": share(sum(p.idle_ns for p in parts), window),
        "hidden_fraction": share(sum(p.overlap_ns for p in parts), comm),
        "comm_ns": comm,
        "straggler_count": None if summary.stragglers is None else len(summary.stragglers.stragglers),
    }


def document(summary: TraceSummary, diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dicts and lists; unknown is null. Sections that were not computed are empty or null."""
    ranks, job, late = summary.ranks, summary.collectives, summary.stragglers
    return {
        **headed("trace/1"),
        "world_size": summary.world_size,
        "metrics": metrics(summary),
        "findings": plain(diagnosis.findings),
        "skipped": plain(diagnosis.skipped),
        "verdicts": [{"rank": v.rank, **plain(v.verdict)} for v in summary.verdicts],
        "ranks": [_rank(p) for p in ranks],
        "steps": [_step(plain(s)) for p in ranks for s in p.steps],
        **{key: [row for p in ranks for row in plain(getattr(p, key))] for key in LISTS},
        "collectives": [_collective(i) for i in job.instances] if job else [],
        "clocks": plain(job.clocks) if job else None,
        "stragglers": plain(late.stragglers) if late else [],
        "straggler_report": late.text if late else None,
        **{key: [plain(getattr(p, key)) for p in ranks if getattr(p, key) is not None] for key in TABLES},
        "job_path": plain(summary.path) if summary.path else None,
        "unavailable": [{"rank": p.facts.rank, **plain(m)} for p in ranks for m in p.unavailable],
        "notes": [
            *plain(summary.notes),
            *(plain(note) for p in ranks for note in p.notes),
            *({"rank": None, "kind": "collectives", "text": t} for t in (job.notes if job else ())),
        ],
    }


LISTS = ("phases", "idle", "long_gaps", "groups", "annotations", "modules", "sequences", "buckets", "memory")
"""Fields of RankPass that are lists of rows, each with its rank."""

TABLES = ("operators", "kernels", "launches", "copies", "units", "layers", "utilisation", "path", "conformance")
"""Fields of RankPass that are one record a rank."""


def _collective(instance: MatchedCollective) -> dict[str, Any]:
    raw: dict[str, Any] = plain(instance)
    return {**raw, "group": instance.group.name if instance.group else None}


def _rank(each: RankPass) -> dict[str, Any]:
    facts: dict[str, Any] = plain(each.facts)
    if each.budget is None:
        return {**facts, "source": None}
    return {
        **facts,
        **plain(each.budget.parts),
        "source": each.budget.source,
        "start_ns": each.budget.start_ns,
        "outside": plain(each.outside),
    }


def _step(raw: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in raw.items() if k != "parts"}, **raw["parts"]}
