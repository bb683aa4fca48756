"""Advice that applies to some jobs only: each names its conditions, and the engine asks the job's facts once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from stepscope.core.dataclass import dataclass
from stepscope.diagnose.job_facts import JobFacts, facts_of, facts_of_run
from stepscope.diagnose.outcome import Outcome
from stepscope.records.finding import Advice, Finding
from stepscope.results.evidence import Evidence

Condition = Literal[
    "gpu",
    "eager",
    "replicated",
    "no pipeline",
    "no split sequence",
    "several hosts",
    "trains",
    "micro-steps",
    "room for workers",
    "workers that end",
    "pageable batches",
]

HOLDS: Mapping[Condition, Callable[[JobFacts], bool]] = {
    "gpu": lambda job: not job.on_cpu,
    "eager": lambda job: job.compiled is not True,
    "replicated": lambda job: job.replicated and job.ranks != 1 and job.trains is not False,
    "no pipeline": lambda job: "pp" not in job.parallel,
    "no split sequence": lambda job: "sp" not in job.parallel,
    "several hosts": lambda job: job.hosts != 1,
    "trains": lambda job: job.trains is not False,
    "micro-steps": lambda job: job.micro_steps != 1,
    "room for workers": lambda job: job.workers_fit,
    "workers that end": lambda job: (
        job.loader is None or (bool(job.loader.workers) and job.loader.persistent is not True)
    ),
    "pageable batches": lambda job: not job.on_cpu and (job.loader is None or job.loader.pinned is not True),
}
"""Condition -> whether it may hold: true where the facts do not say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceFor(Advice):
    """Advice for jobs of which all of ``applies_to`` may hold. The engine makes it plain advice, or drops it."""

    applies_to: tuple[Condition, ...]


def applies(advice: Advice, job: JobFacts | None) -> bool:
    """Whether advice can help this job; None: a job of which nothing is known."""
    if job is None or not isinstance(advice, AdviceFor):
        return True
    return all(HOLDS[condition](job) for condition in advice.applies_to)


def applicable(outcome: Outcome, evidence: Evidence) -> Outcome:
    """``outcome`` with only the advice that can apply to the job of each finding, as plain advice."""
    if not isinstance(outcome, tuple) or not any(isinstance(a, AdviceFor) for f in outcome for a in f.advice):
        return outcome
    jobs = {finding.job for finding in outcome}
    known = {job.name: facts_of(job.summary) for job in evidence.traces if job.name in jobs}
    runs = {run.run_id: run for run in evidence.runs}

    def facts(finding: Finding) -> JobFacts | None:
        if finding.runs:
            return facts_of_run(runs[finding.runs[0]]) if finding.runs[0] in runs else None
        return known.get(finding.job or "")

    return tuple(_with_applicable(finding, facts(finding)) for finding in outcome)


def _with_applicable(finding: Finding, job: JobFacts | None) -> Finding:
    kept = tuple(Advice(text=a.text, command=a.command) for a in finding.advice if applies(a, job))
    return replace(finding, advice=kept)
