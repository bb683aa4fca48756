"""What rules make of traces whose files are cut.

A killed profiler or a full disk leaves the first part of a file. How much lay behind the cut is unknown: a missing
communication, copy or kernel may be there. A part of a step is none of the rank's steps (``traces.steps``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stepscope.core.words import listed, plural
from stepscope.records.finding import Finding
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import Evidence


def without_fragments(evidence: Evidence) -> Evidence:
    """``evidence`` without jobs whose traces hold no step that is known to be whole."""
    whole = tuple(job for job in evidence.traces if not _is_fragment(job.summary))
    return evidence if len(whole) == len(evidence.traces) else replace(evidence, traces=whole)


def why_no_traces(evidence: Evidence) -> str:
    """Why rules get none of the jobs of ``evidence``, whose traces are cut."""
    named = _ranks(rank for job in evidence.traces for rank in _cut(job.summary))
    return f"the trace of {named} is truncated, and no step in it is known to be whole"


def doubted(findings: Iterable[Finding], evidence: Evidence) -> list[Finding]:
    """``findings``, those of jobs with truncated traces with that among their doubts."""
    cut = {job.name: ranks for job in evidence.traces if (ranks := _cut(job.summary))}
    return [_doubted(finding, cut) for finding in findings]


def _doubted(finding: Finding, cut: Mapping[str, list[int]]) -> Finding:
    ranks = cut.get(finding.job or "")
    if not ranks:
        return finding
    why = f"the trace of {_ranks(ranks)} is truncated, how much is lost is unknown"
    return replace(finding, doubts=(*finding.doubts, why))


def _is_fragment(summary: TraceSummary) -> bool:
    return bool(summary.ranks) and all(_is_cut(each) and not each.steps for each in summary.ranks)


def _cut(summary: TraceSummary) -> list[int]:
    return [each.facts.rank for each in summary.ranks if _is_cut(each)]


def _is_cut(each: RankPass) -> bool:
    return any(note.kind == "truncated" for note in each.notes)


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(set(ranks))
    return f"{plural(len(numbers), 'rank')} {listed([str(rank) for rank in numbers], at_most=5)}"
