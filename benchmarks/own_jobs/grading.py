"""Holding what `profile` said of a planted job against what is true of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from benchmarks.own_jobs.planted import BASE, NO_DEVICE, Planted
from benchmarks.own_jobs.truth import Truth
from stepscope.core.dataclass import dataclass

RELATIVE, POINTS = 0.20, 0.02
ACCUSING_KINDS = ("straggler", "uneven-work")
ACCUSING_RULES = ("straggler", "clock-skew", "pipeline-imbalance", "expert-skew", "slow-link")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidCost:
    """A cost of the verdict: its share of the step or the wall time, the ranks that cause it, what goes with it."""

    kind: str
    share: float
    ranks: tuple[int, ...] = ()
    stake: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said. kind: None where no verdict was found. findings: rule and title of warnings and problems."""

    kind: str | None
    ranks: tuple[int, ...] = ()
    stake: float | None = None
    headline: str = ""
    costs: tuple[SaidCost, ...] = ()
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
        costs=tuple(
            SaidCost(
                kind=cost["kind"], share=cost["share"]["value"], ranks=tuple(cost.get("ranks") or ()),
                stake=cost.get("stake_fraction"),
            )
            for cost in verdict.get("costs", ())
        ),
        advice=(*(a["text"] for a in verdict.get("advice", ())), *advice),
    )  # fmt: skip


def grade(job: Planted, truth: Truth, said: Said, *, code: int | None, out: str, contended: bool) -> Grade:
    """contended: something else uses the cores, so a contended machine may lead; what is planted then comes next."""
    kind, ranks, stake = said.kind, said.ranks, said.stake
    if led := contended and kind == "contended-machine":
        after = [cost for cost in said.costs if cost.kind != "contended-machine"]
        kind, ranks, stake = (after[0].kind, after[0].ranks, after[0].stake) if after else ("compute-bound", (), None)
    right = kind in job.verdicts and (not job.ranks or set(ranks) == set(job.ranks))
    if led and job.clean:
        right = not _accuses(said)
    return Grade(
        right=right, stake_ok=stake_ok(truth, stake), false=tuple(false_statements(job, said, contended=contended)),
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
    allowed = {*job.verdicts, *job.may_cost, *BASE} | ({"contended-machine"} if contended else set())
    if said.kind is not None and said.kind not in {*allowed, *(cost.kind for cost in said.costs)}:
        yield said.kind
    for cost in said.costs:
        if cost.kind not in allowed:
            yield f"{cost.kind} {cost.share:.0%}"
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
    kinds = {said.kind, *(cost.kind for cost in said.costs)}
    return bool(kinds & set(ACCUSING_KINDS)) or any(rule in ACCUSING_RULES for rule, _ in said.findings)


def as_json(text: str) -> dict[str, Any]:
    """A document, or nothing where a command failed."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
