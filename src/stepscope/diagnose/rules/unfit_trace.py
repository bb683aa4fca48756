"""The trace lacks what would answer why the job is slow, or holds what cannot be.

What
----
Reports what the quality check of a trace found and what it takes away: launches without kernels, device activity that was
not recorded, impossible times, several devices in one file, kernels of unknown kind, captures that begin apart. Rules
that rest on what is lacking stay silent.

Why
---
A gap in the recording looks like an idle device, and an unknown kernel like computation. A cause that is read from such a
gap is an invention.

Known problems
--------------
What the profiler dropped without a trace of its own (no launch and no kernel) cannot be seen.

References
----------
docs/reference/trace.md, Quality: what is checked and what it takes away.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from stepscope.core.words import in_words, listed
from stepscope.diagnose.rule import Rule, Statement, finding
from stepscope.diagnose.trace_facts import unread
from stepscope.records.finding import Finding
from stepscope.records.trace_quality import FIGURES, KINDS, QualityFact
from stepscope.results.evidence import TraceEvidence


def _unfit_trace_of_job(job: TraceEvidence) -> Statement:
    """Look in one traced job for: a trace lacks what would answer, or holds what cannot be."""
    facts = job.summary.quality
    grave = [fact for fact in facts if fact.matters]
    if not facts and not any(p.budget for p in job.summary.ranks):
        return unread(job.summary, "")
    if not grave:
        return "; ".join(fact.text for fact in facts) or "nothing is lacking, unknown or impossible"
    return list(_quality_findings(sorted(grave, key=lambda fact: tuple(KINDS).index(fact.kind))))


def _quality_findings(facts: list[QualityFact]) -> Iterator[Finding]:
    """Yield one finding a kind: the rank with most of it, and the others."""
    for kind, same in groupby(facts, key=lambda fact: fact.kind):
        ordered = sorted(same, key=lambda fact: -(fact.share or fact.count or 0))
        worst, declared = ordered[0], KINDS[kind]
        ranks = tuple(sorted(fact.rank for fact in ordered if fact.rank is not None))
        yield finding(
            worst.text,
            len(ranks) > 1
            and f"rank {worst.rank}; the same on {listed([f'rank {r}' for r in ranks if r != worst.rank])}",
            bool(declared.takes)
            and not declared.unread
            and f"not said of this trace, as it rests on that: {in_words(FIGURES[figure] for figure in declared.takes)}",
            advice=[declared.better],
            priority="doubt",
            ranks=ranks,
        )


RULE = Rule(
    symptom="a trace lacks what would answer, or holds what cannot be",
    look_at_job=_unfit_trace_of_job,
    decided_by="facts of the quality check that change what is said",
    protocol=1,
)
