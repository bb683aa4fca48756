"""JSON documents of ``trace``, ``diagnose``, ``compare``, ``trace --diff``, and the numbers that ``--fail-if`` knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stepscope.diagnose.engine import page_of
from stepscope.diagnose.rule import Rule
from stepscope.records.codec import headed, plain
from stepscope.records.comparison import Comparison
from stepscope.records.finding import Diagnosis, JobVerdict
from stepscope.records.trace_collectives import MatchedCollective
from stepscope.records.trace_summary import DiffRow, RankPass, TraceDiff, TraceSummary
from stepscope.report.conditions import Changed, Condition
from stepscope.results.diary import parts_of, waited_for
from stepscope.results.evidence import Evidence
from stepscope.results.figures import figures_of
from stepscope.results.goodput import goodput_of
from stepscope.stats.compare import SIGNIFICANT

if TYPE_CHECKING:
    from stepscope.results.differences import Conditions
    from stepscope.results.watched import Watched


def trace_figures(summary: TraceSummary) -> dict[str, float | None]:
    """Return the job-wide figures; None where nothing was measured."""
    return {key: figure.read(summary) for key, figure in figures_of("job").items()}


def trace_document(summary: TraceSummary, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the document of a trace as plain dicts and lists; unknown is null.

    Sections that were not computed are empty or null.
    """
    ranks, job, late = summary.ranks, summary.collectives, summary.stragglers
    return {
        **headed("trace/1"),
        "world_size": summary.world_size,
        "metrics": trace_figures(summary),
        "findings": plain(diagnosis.findings),
        "skipped": plain(diagnosis.skipped),
        "verdicts": [{"rank": v.rank, **plain(v.verdict)} for v in summary.verdicts],
        "ranks": [_rank_document(p) for p in ranks],
        "steps": [_step_document(plain(s)) for p in ranks for s in p.steps],
        **{key: [row for p in ranks for row in plain(getattr(p, key))] for key in TRACE_LISTS},
        "collectives": [_collective_document(i) for i in job.instances] if job else [],
        "clocks": plain(job.clocks) if job else None,
        "stragglers": plain(late.stragglers) if late else [],
        "straggler_report": late.text if late else None,
        **{key: [plain(getattr(p, key)) for p in ranks if getattr(p, key) is not None] for key in TRACE_TABLES},
        "job_path": plain(summary.path) if summary.path else None,
        "quality": [{**plain(fact), "text": fact.text, "takes": list(fact.takes)} for fact in summary.quality],
        "unavailable": [{"rank": p.facts.rank, **plain(m)} for p in ranks for m in p.unavailable],
        "notes": [
            *plain(summary.notes),
            *(plain(note) for p in ranks for note in p.notes),
            *({"rank": None, "kind": "collectives", "text": t} for t in (job.notes if job else ())),
        ],
    }


TRACE_LISTS = ("phases", "idle", "long_gaps", "groups", "annotations", "modules", "sequences", "buckets", "memory")
"""Fields of RankPass that are lists of rows, each with its rank."""

TRACE_TABLES = ("operators", "kernels", "launches", "copies", "units", "layers", "utilisation", "path", "conformance")
"""Fields of RankPass that are one record a rank."""


def _collective_document(instance: MatchedCollective) -> dict[str, Any]:
    raw: dict[str, Any] = plain(instance)
    return {**raw, "group": instance.group.name if instance.group else None}


def _rank_document(rank_pass: RankPass) -> dict[str, Any]:
    facts: dict[str, Any] = plain(rank_pass.facts)
    if rank_pass.budget is None:
        return {**facts, "source": None}
    return {
        **facts,
        **plain(rank_pass.budget.parts),
        "source": rank_pass.budget.source,
        "start_ns": rank_pass.budget.start_ns,
        "before_work_ns": rank_pass.budget.before_work_ns,
        "after_work_ns": rank_pass.budget.after_work_ns,
        "outside": plain(rank_pass.outside),
    }


def _step_document(raw: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in raw.items() if k != "parts"}, **raw["parts"]}


def diagnose_figures(evidence: Evidence, diagnosis: Diagnosis) -> dict[str, float | None]:
    """Return the figures that ``--fail-if`` of diagnose knows: counts of findings, the largest stake, the worst scaling.

    None where there is none; of jobs with a diary its figures too, of several the worst of each, of one the parts of its
    wall time.
    """
    facts = SimpleNamespace(evidence=evidence, diagnosis=diagnosis)
    figures = {key: figure.read(facts) for key, figure in figures_of("diagnosis").items()}
    if not evidence.profiled:
        return figures
    from stepscope.results.job_figures import job_figures, worst

    wall = goodput_of(evidence.profiled)
    if wall is not None:
        figures |= {key: figure.read(wall) for key, figure in figures_of("wall").items()}
    return figures | worst([job_figures(job.steps) for job in evidence.profiled if job.steps is not None])


def diagnose_document(evidence: Evidence, diagnosis: Diagnosis, verdict: JobVerdict | None = None) -> dict[str, Any]:
    """Return the document of a diagnosis as plain dicts and lists; unknown is null."""
    from stepscope.diagnose.screen import screen_of

    return {
        **headed("diagnose/1"),
        "sources": [
            {"path": str(source.path), "kind": source.kind, "format": source.format} for source in evidence.sources
        ],
        "files_found": plain(evidence.files_found),
        "metrics": diagnose_figures(evidence, diagnosis),
        "screen": plain(screen_of(evidence, diagnosis, verdict)),
        "verdict": plain(verdict),
        "findings": plain(diagnosis.findings),
        "skipped": plain(diagnosis.skipped),
        "quiet": plain(diagnosis.quiet),
        "scaling": plain(evidence.scaling),
        "notes": list(evidence.all_notes),
    }


def watch_document(seen: Watched, verdict: JobVerdict | None) -> dict[str, Any]:
    """Return a job at one moment, with every rank of it: times are ns a step, means of the steps looked at."""
    job, steps = seen.job, seen.job.steps
    parts = {} if steps is None else {key: values.mean(axis=1) for key, values in parts_of(steps).items()}
    late = frozenset() if steps is None else waited_for(steps)
    ranks = [
        {
            "rank": diary.rank,
            "host": diary.header.host,
            "step": diary.made,
            "step_ns": float(steps.whole_ns[at].mean()),
            "own_ns": float(own) if isfinite(own := steps.own_ns[at].mean()) else None,
            "parts_ns": {key: float(values[at]) for key, values in parts.items()},
            "late": at in late,
        }
        for at, diary in enumerate(steps.diaries if steps is not None else ())
        if steps is not None
    ]
    return {
        **headed("watch/1"),
        "run": str(job.folder),
        "state": seen.state,
        "said": seen.ended_as,
        "silent_s": seen.silent_s,
        "step": seen.step,
        "steps_looked_at": 0 if steps is None else steps.steps,
        "ranks_seen": seen.ranks_seen,
        "world_size": seen.world_size,
        "hosts": seen.hosts,
        "verdict": plain(verdict),
        "throughput": None
        if job.pace is None
        else {
            "begin_unix_ns": int(job.pace.begin_unix_ns),
            "end_unix_ns": int(job.pace.end_unix_ns),
            "steps_per_s": job.pace.steps_per_s.tolist(),
            "now": job.pace.now,
        },
        "ranks": ranks,
        "events": plain(seen.happened),
    }


def rules_document(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return rules as `diagnose --rules list --json` and `--explain RULE --json` print them."""
    return {
        **headed("rules/1"),
        "rules": [
            {
                "name": rule.name,
                "symptom": rule.symptom,
                "needs": list(rule.needs),
                "any_of": list(rule.any_of),
                "protocol": rule.protocol,
                "good_news": rule.good_news,
                "thresholds": {
                    name: {"value": limit.value, "unit": limit.unit, "source": limit.source}
                    for name, limit in rule.thresholds.items()
                },
                "page": page_of(rule),
            }
            for rule in rules
        ],
    }


def compare_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain dicts and lists; unknown is null. ``change`` is relative to the first side."""
    from stepscope.results.comparing import lacking

    return {
        **headed("compare/1"),
        "sides": list(comparison.sides),
        "scaling": plain(comparison.scaling),
        "differences": plain(comparison.differences),
        "same": plain(comparison.same),
        "unknown": plain(comparison.unknown),
        "figures": [
            {**plain(figure), "change": figure.change, "lacking": lacking(figure)} for figure in comparison.figures
        ],
        "unmatched": list(comparison.unmatched),
        "notes": list(comparison.notes),
    }


UNCHANGED = ("no significant difference", "not clear")
"""Verdicts of a change that may be none."""


def compare_changes(comparison: Comparison) -> tuple[Changed, ...]:
    """Return the changes that conditions are about; a change that may be none is none."""
    return tuple(
        Changed(
            key=row.metric,
            what=row.what,
            value=row.second.value,
            change=None if row.verdict in UNCHANGED else row.change * 100,
        )
        for row in comparison.figures
    )


def compare_unchecked(conditions: Iterable[Condition], comparison: Comparison) -> tuple[Condition, ...]:
    """Return the conditions on a figure that the comparison does not have: they can never hold."""
    there = {figure.metric for figure in comparison.figures}
    return tuple(condition for condition in conditions if condition.key not in there)


_ROWS = {key: figure.value for key, figure in figures_of("rank").items()}


def diff_document(
    diffs: Iterable[TraceDiff], conditions: Conditions | None, *, notes: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a trace diff as plain dicts and lists; values of differences: before, after.

    conditions None: one and the same job.
    """
    return {
        **headed("trace_diff/1"),
        "differences": plain(conditions.differ if conditions else ()),
        "same": plain(conditions.same if conditions else ()),
        "unknown": plain(conditions.unknown if conditions else ()),
        "diffs": [plain(diff) for diff in diffs],
        "notes": list(notes),
    }


def diff_changes(diffs: Sequence[TraceDiff]) -> tuple[Changed, ...]:
    """Return the changes that conditions are about, of every rank; one that its test calls not significant is none."""
    return tuple(
        Changed(key=key, what=f"rank {diff.rank_after}", value=row.after_ns, change=_diff_change(row))
        for diff in diffs
        for key, part in _ROWS.items()
        for row in diff.parts
        if row.name == part
    )


def diff_unchecked(conditions: Sequence[Condition], diffs: Sequence[TraceDiff]) -> tuple[Condition, ...]:
    """Return the conditions on changes against nothing: the older trace has no time in that part, on any rank."""
    compared = {row.name for diff in diffs for row in diff.parts if row.ratio is not None}
    return tuple(condition for condition in conditions if condition.percent and _ROWS[condition.key] not in compared)


def _diff_change(row: DiffRow) -> float | None:
    if row.ratio is None or (row.p_value is not None and row.p_value >= SIGNIFICANT):
        return None
    return (row.ratio - 1) * 100
