"""The JSON document of ``trace --json`` (schema stepscope.trace/1) and the numbers that ``--fail-if`` knows."""

from __future__ import annotations

from typing import Any

from stepscope import __version__
from stepscope.core.clock import utc_now
from stepscope.records import codec
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


def document(summary: TraceSummary) -> dict[str, Any]:
    """Plain dicts and lists; unknown is null. Sections that were not computed are empty or null."""
    passes = [codec.to_builtins(p) for p in summary.ranks]
    return {
        "schema": "stepscope.trace/1",
        "tool_version": __version__,
        "created": utc_now(),
        "world_size": summary.world_size,
        "metrics": metrics(summary),
        "findings": codec.to_builtins(summary.findings),
        "verdicts": [{"rank": v.rank, **codec.to_builtins(v.verdict)} for v in summary.verdicts],
        "ranks": [_rank(p, raw) for p, raw in zip(summary.ranks, passes, strict=True)],
        "steps": [_step(s) for raw in passes for s in raw["steps"]],
        **{key: [row for raw in passes for row in raw[key]] for key in _LISTS},
        "collectives": [_collective(i) for i in summary.collectives.instances] if summary.collectives else [],
        "clocks": codec.to_builtins(summary.collectives.clocks) if summary.collectives else None,
        "stragglers": [codec.to_builtins(s) for s in summary.stragglers.stragglers]
        if summary.stragglers
        else [],
        "straggler_report": summary.stragglers.text if summary.stragglers else None,
        **{key: [raw[key] for raw in passes if raw[key] is not None] for key in _TABLES},
        "job_path": codec.to_builtins(summary.path) if summary.path else None,
        "unavailable": [{"rank": raw["facts"]["rank"], **m} for raw in passes for m in raw["unavailable"]],
        "notes": [
            *codec.to_builtins(summary.notes),
            *(note for raw in passes for note in raw["notes"]),
            *({"rank": None, "kind": "collectives", "text": t} for t in _collective_notes(summary)),
        ],
    }


_LISTS = ("phases", "idle", "groups", "annotations", "sequences", "buckets", "memory")
"""Fields of RankPass that are lists of rows, each with its rank."""

_TABLES = ("operators", "kernels", "launches", "copies", "utilisation", "path", "conformance")
"""Fields of RankPass that are one record a rank."""


def _collective(instance: MatchedCollective) -> dict[str, Any]:
    raw: dict[str, Any] = codec.to_builtins(instance)
    return {**raw, "group": instance.group.name if instance.group else None}


def _collective_notes(summary: TraceSummary) -> tuple[str, ...]:
    return summary.collectives.notes if summary.collectives else ()


def _rank(each: RankPass, raw: dict[str, Any]) -> dict[str, Any]:
    facts = dict(raw["facts"])
    if each.budget is None:
        return {**facts, "source": None}
    budget = raw["budget"]
    return {
        **facts,
        **budget["parts"],
        "source": budget["source"],
        "start_ns": budget["start_ns"],
        "outside": raw["outside"],
    }


def _step(raw: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in raw.items() if k != "parts"}, **raw["parts"]}
