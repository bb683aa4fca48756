"""Holding what `profile` said of a planted job against what is true of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from benchmarks.own_jobs.planted import NO_DEVICE, Planted
from benchmarks.own_jobs.truth import Truth
from stepscope.core.dataclass import dataclass

RELATIVE, POINTS = 0.20, 0.02
ACCUSING_KINDS = ("straggler", "uneven-work")
ACCUSING_RULES = ("straggler", "clock-skew", "pipeline-imbalance", "expert-skew", "slow-link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said. kind: None where no verdict was found. costs: kind and share. findings: rule and title of warnings and
    problems. text: everything a person reads, advice in particular."""

    kind: str | None
    ranks: tuple[int, ...] = ()
    stake: float | None = None
    headline: str = ""
    costs: tuple[tuple[str, float], ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    advice: tuple[str, ...] = ()
    steps_timed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """right: the first verdict. stake_ok: None where no stake is graded. false: what was said that is not so.

    accused: a straggler, clock or imbalance finding on a clean job. job_equal: exit code and stdout as of the job alone.
    """

    right: bool
    stake_ok: bool | None
    false: tuple[str, ...]
    accused: bool
    job_equal: bool


def read_said(verdict: dict[str, Any] | None, diagnosis: dict[str, Any]) -> Said:
    """From the documents of `profile` and of `diagnose --json`; without a verdict the first finding stands for it."""
    findings = [f for f in diagnosis.get("findings", ()) if f["severity"] in ("warning", "problem")]
    advice = [a["text"] for f in findings for a in f.get("advice", ())]
    named = tuple((f["rule"], f["title"]) for f in findings)
    if verdict is None:
        first: dict[str, Any] = findings[0] if findings else {}
        return Said(
            kind=None, ranks=tuple(first.get("ranks") or ()), stake=first.get("stake_fraction"),
            headline=first.get("title", ""), findings=named, advice=tuple(advice),
        )  # fmt: skip
    return Said(
        kind=verdict["kind"], ranks=tuple(verdict.get("ranks") or ()), stake=verdict.get("stake_fraction"),
        headline=verdict["headline"], steps_timed=verdict.get("steps_timed", 0), findings=named,
        costs=tuple((cost["kind"], cost["share"]["value"]) for cost in verdict.get("costs", ())),
        advice=(*(a["text"] for a in verdict.get("advice", ())), *advice),
    )  # fmt: skip


def grade(job: Planted, truth: Truth, said: Said, *, code: int | None, out: str, contended: bool) -> Grade:
    """contended: something else keeps a core busy, so a contended machine may lead; what is planted then comes next."""
    follows = said.costs[1][0] if len(said.costs) > 1 else "compute-bound"
    led = said.kind == "contended-machine" and contended
    right = (follows if led else said.kind) in job.verdicts and (
        led or not job.ranks or set(said.ranks) == set(job.ranks)
    )
    return Grade(
        right=right, stake_ok=stake_ok(truth, said.stake) if not led else None,
        false=tuple(false_statements(job, said, contended=contended)),
        accused=job.clean and _accuses(said),
        job_equal=code == truth.code and sorted(out.splitlines()) == sorted(truth.out.splitlines()),
    )  # fmt: skip


def stake_ok(truth: Truth, stake: float | None) -> bool | None:
    """Within 20 % of the truth, or two points."""
    if truth.low is None or truth.high is None:
        return None
    if stake is None:
        return False
    return truth.low - max(RELATIVE * truth.low, POINTS) <= stake <= truth.high + max(RELATIVE * truth.high, POINTS)


def false_statements(job: Planted, said: Said, *, contended: bool) -> Iterator[str]:
    """Costs, findings and advice that are not true of the job, in words."""
    allowed = {*job.verdicts, *job.may_cost, "undecided", "compute-bound"} | (
        {"contended-machine"} if contended else set()
    )
    for kind in dict.fromkeys([said.kind or "", *(kind for kind, _ in said.costs)]):
        if kind and kind not in allowed:
            share = dict(said.costs).get(kind)
            yield f"{kind}{'' if share is None else f' {share:.0%}'}"
    for rule, title in said.findings:
        if rule not in job.may_say and not (contended and rule == "oversubscription"):
            yield f"{rule}: {title}"
    for pattern in (*job.must_not_say, *NO_DEVICE):
        for text in said.advice:
            if found := re.search(pattern, text, re.IGNORECASE):
                yield f"advice: {found.group()}"
                break
    for percent in re.findall(r"(\d+)(?:\.\d+)? ?%", said.headline):
        if int(percent) > 100:
            yield f"headline: {percent} %"


def _accuses(said: Said) -> bool:
    kinds = {said.kind, *(kind for kind, _ in said.costs)}
    return bool(kinds & set(ACCUSING_KINDS)) or any(rule in ACCUSING_RULES for rule, _ in said.findings)


def as_json(text: str) -> dict[str, Any]:
    """A document, or nothing where a command failed."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
