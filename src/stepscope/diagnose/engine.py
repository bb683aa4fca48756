"""All rules on one body of evidence: which are asked, what they say together, and in which order it is told.

A trace may be cut: a killed profiler or a full disk leaves the first part of a file, and how much lay behind is unknown.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from stepscope.core.dataclass import record
from stepscope.core.units import format_percent
from stepscope.core.words import listed, plural
from stepscope.diagnose.commands import own_command
from stepscope.diagnose.job_facts import applicable
from stepscope.diagnose.rule import Declared, Outcome, Rule
from stepscope.diagnose.rules import REGISTRY, declared
from stepscope.diagnose.trace_facts import reads_traces
from stepscope.records.finding import Diagnosis, Doubt, Finding, Priority, Quiet, Skipped
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import NEEDS, Evidence, Source, TraceEvidence

NO_MATTER_OF_TIME = 0.2
"""Rank of a problem without a stake among shares of the step: a full device matters more than 4% of the time."""

SAME_TIME = 0.5
"""From this share of a symptom's stake on, its causes explain it: it is not told beside them."""

TOLD_APART = 0.005
"""Of the step: what is left of a stake below it, after larger ones of the same job, is not told as a stake."""

Rules = Mapping[str, Declared]
"""By name: what each claims of the step decides what is told of it."""

_PRIORITY = get_args(Priority)
_SEVERITY = {"problem": 0, "warning": 1, "info": 2}


def all_rules() -> tuple[Rule, ...]:
    """Every registered rule, by name."""
    return tuple(REGISTRY.load(key) for key in REGISTRY.names())


def rule_names() -> dict[str, str]:
    """Name of every registered rule -> its key; imports none that this package ships."""
    return {declared(key).name: key for key in REGISTRY.names()}


def diagnose(evidence: Evidence, *, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """Return what the rules say (None: all of them), findings as :class:`Diagnosis` orders them.

    Rules for good news run last, without the runs that another rule declares wrong.
    """
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    quiet: list[Quiet] = []
    looked: dict[str, Declared] = {}
    asked = {rule.name: rule for rule in rules} if rules is not None else {k: declared(k) for k in REGISTRY.names()}
    for key, asks in sorted(asked.items(), key=lambda item: item[1].rates):
        trusted = believable(evidence, findings) if asks.rates else evidence
        outcome: Outcome | None = lacking(asks, trusted)
        if outcome is None:
            rule = asks if isinstance(asks, Rule) else REGISTRY.load(key)
            looked[rule.name] = rule
            outcome = _asked(rule, trusted)
        if isinstance(outcome, Skipped) and trusted is not evidence:
            outcome = replace(
                outcome, reason="another finding says that these runs are wrong or doubtful", command=None
            )
        if isinstance(outcome, Skipped):
            skipped.append(outcome)
        elif isinstance(outcome, Quiet):
            quiet.append(outcome)
        else:
            findings += doubted(outcome, evidence)
    kept, folded = _with_folded(_with_doubts(findings, looked), looked)
    return Diagnosis(
        findings=_with_capped_stakes(_causes_first(sorted(kept, key=_order_key), looked)),
        skipped=tuple(sorted(skipped, key=lambda skip: skip.rule)),
        quiet=tuple(sorted((*quiet, *folded), key=lambda quiet_rule: quiet_rule.rule)),
    )


def _with_doubts(findings: Sequence[Finding], rules: Rules) -> list[Finding]:
    """Return ``findings``, those on times with the doubts that others cast on these. Such others come before the problems
    and warnings that they qualify: an observation in doubt is no reason to begin with the noise."""
    doubts = {about: doubt for finding in findings for about, doubt in finding.casts_doubt.items()}
    touched: set[str] = set()
    qualified = []
    for finding in findings:
        about = (finding.job,) if not finding.runs and finding.job is not None else finding.runs
        on_times = finding.stake_fraction is not None or rules[finding.rule].rates
        if on_times and finding.priority == "performance" and not finding.casts_doubt:
            reaching = {
                subject: doubts[subject]
                for subject in about
                if subject in doubts and _doubt_reaches(doubts[subject], finding)
            }
            touched |= reaching.keys() if finding.severity != "info" else set()
            finding = replace(
                finding, doubts=tuple(dict.fromkeys((*finding.doubts, *(d.why for d in reaching.values()))))
            )
        qualified.append(finding)
    raised = (f.priority != "wrong" and bool(f.casts_doubt.keys() & touched) for f in qualified)
    return [replace(f, priority="doubt") if doubt else f for f, doubt in zip(qualified, raised, strict=True)]


def _doubt_reaches(doubt: Doubt, finding: Finding) -> bool:
    return doubt.reach is None or finding.stake_fraction is None or finding.stake_fraction <= doubt.reach


def _with_folded(findings: Iterable[Finding], rules: Rules) -> tuple[list[Finding], list[Quiet]]:
    """Return (``findings``, those folded: symptoms that their causes explain, and praise of time that another finding
    wants); the others lose of their stake what causes have of it."""
    kept, folded = [], []
    for finding in findings:
        causes = [f for f in findings if _explains_symptom(f, finding, rules)]
        wholes = [f for f in causes if not any(_explains_symptom(f, other, rules) for other in causes)]
        explained = sum(f.stake_fraction or 0.0 for f in wholes)
        praised = finding.severity == "info" and bool(causes)
        if not praised and (not explained or (finding.stake_fraction is None and explained < SAME_TIME)):
            kept.append(finding)
        elif praised or explained >= SAME_TIME * (finding.stake_fraction or 1.0):
            cause = max(causes, key=lambda f: f.stake_fraction or 0.0)
            folded.append(Quiet(rule=finding.rule, looked_at=f"{finding.title}: {cause.rule} names the cause"))
        else:
            kept.append(_with_less_stake(finding, (finding.stake_fraction or 0.0) - explained))
    return kept, folded


def _explains_symptom(cause: Finding, symptom: Finding, rules: Rules) -> bool:
    """Whether ``cause`` wants a part of the time that ``symptom`` is about; of the same time, the larger one explains."""
    if cause is symptom or cause.severity == "info" or not _of_one_job(cause, symptom):
        return False
    wants, about = rules[cause.rule], rules[symptom.rule]
    if symptom.severity == "info" and (wants.holds(about) or wants.is_about(about)):
        return True
    same = cause.rule != symptom.rule and wants.is_about(about)
    return about.holds(wants) or (same and _size_key(cause) > _size_key(symptom))


def _size_key(finding: Finding) -> tuple[float, str]:
    return finding.stake_fraction or 0.0, finding.rule


def _of_one_job(a: Finding, b: Finding) -> bool:
    if a.job != b.job or a.job is not None:
        return a.job == b.job
    return not a.runs or not b.runs or not set(a.runs).isdisjoint(b.runs)


def _with_less_stake(finding: Finding, stake: float) -> Finding:
    """Return the finding with a smaller stake, and no graver than that stake makes it."""
    if finding.severity == "problem" and finding.priority == "performance" and stake < NO_MATTER_OF_TIME:
        finding = replace(finding, severity="warning")
    share = finding.stake_fraction if finding.share is None else finding.share
    return replace(finding, stake_fraction=stake, share=share)


def _causes_first(ranked: Sequence[Finding], rules: Rules) -> list[Finding]:
    """Return ``ranked`` with every symptom directly after those of its causes that stood behind it."""
    left, ordered = list(ranked), list[Finding]()
    while left:
        first = left.pop(0)
        ahead = [f for f in left if f.priority == first.priority and _explains_symptom(f, first, rules)]
        ordered += [*ahead, first]
        left = [f for f in left if f not in ahead]
    return ordered


def _with_capped_stakes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return ``findings`` with stakes of one traced job that sum to at most its step: the first ones keep theirs."""
    left: dict[str, float] = {}
    capped = []
    for finding in findings:
        stake, job = finding.stake_fraction, finding.job
        if stake is not None and job is not None:
            room = left.get(job, 1.0)
            if stake > room:
                finding = (
                    _with_less_stake(finding, room)
                    if room >= TOLD_APART
                    else replace(_with_less_stake(finding, 0.0), stake_fraction=None)
                )
            left[job] = max(0.0, room - (finding.stake_fraction or 0.0))
        capped.append(finding)
    return tuple(capped)


def believable(evidence: Evidence, findings: Iterable[Finding]) -> Evidence:
    """Return ``evidence`` without the runs that ``findings`` declare wrong, and without speed-ups against them."""
    wrong = {run_id for finding in findings for run_id in finding.wrong_runs}
    if not wrong:
        return evidence
    return replace(
        evidence,
        runs=tuple(run for run in evidence.runs if run.run_id not in wrong),
        scaling=tuple(row for row in evidence.scaling if wrong.isdisjoint((row.run_id, row.baseline_id))),
        scaling_budgets=tuple(
            scaling_budget for scaling_budget in evidence.scaling_budgets if wrong.isdisjoint(scaling_budget.run_ids)
        ),
        cells=tuple(cell for cell in evidence.cells if cell.run.run_id not in wrong),
    )


def check(rule: Rule, evidence: Evidence) -> Outcome:
    """Check one rule; the outcome is Skipped with the reason where what it needs is not there."""
    return lacking(rule, evidence) or _asked(rule, evidence)


def _asked(rule: Rule, evidence: Evidence) -> Outcome:
    """Return the outcome of a rule that lacks nothing."""
    whole = without_fragments(evidence)
    outcome = _each_log(rule, whole) if "signs" in rule.needs else rule.check(whole)
    return concrete(applicable(outcome, whole), evidence)


def concrete(outcome: Outcome, evidence: Evidence) -> Outcome:
    """Return ``outcome`` with the command of the one run that there is where a rule names any matrix."""
    if isinstance(outcome, Skipped):
        return replace(outcome, command=own_command(outcome.command, evidence))
    if isinstance(outcome, Quiet):
        return outcome
    return tuple(
        replace(f, advice=tuple(replace(a, command=own_command(a.command, evidence)) for a in f.advice))
        for f in outcome
    )


def _each_log(rule: Rule, evidence: Evidence) -> Outcome:
    """Check a rule on the logs of each job, where they prove that they are of several: they are not compared."""
    from stepscope.results.text_jobs import text_jobs  # only logs with lines on an end need it

    jobs = text_jobs(evidence.signs)
    if not jobs:
        return rule.check(evidence)
    names = listed(f"{job.name} ({job.proof})" if job.proof else job.name for job in jobs)
    apart = f"these logs are of {len(jobs)} jobs, each judged alone: {names}"
    outcomes = [(job, rule.check(replace(evidence, signs=job.signs))) for job in jobs]
    findings = [
        replace(
            finding,
            title=f"{job.name}: {finding.title}",
            evidence=(*finding.evidence, apart),
            subject=finding.subject or job.name,
        )
        for job, outcome in outcomes
        if isinstance(outcome, tuple)
        for finding in outcome
    ]
    return tuple(findings) or outcomes[0][1]


def lacking(rule: Declared, given: Evidence) -> Skipped | None:
    """Return why a rule cannot look at this evidence, or None where all that it needs is there."""
    evidence = without_fragments(given)
    missing = [need for need in rule.needs if not getattr(evidence, need)]
    if rule.any_of and not any(getattr(evidence, name) for name in rule.any_of):
        missing.append("traces" if "traces" in rule.any_of and given.traces else rule.any_of[0])
    if not missing:
        if not rule.is_blind(evidence):
            return None
        return replace(rule.blind, command=own_command(rule.blind.command, given))
    reason, command = NEEDS[missing[0]]
    if missing[0] == "traces" and given.traces:
        named = _ranks_text(rank for job in given.traces for rank in _cut_ranks(job.summary))
        reason, command = f"the trace of {named} is truncated, and no step in it is known to be whole", None
    return Skipped(rule=rule.name, reason=reason, command=own_command(command, given))


def page_of(rule: Rule) -> str:
    """Return the rule's page: what its file says of it. A limit there is ``{name}``, its percentage ``{name%}``, its number
    ``{name#}``."""
    page = (importlib.import_module(rule.module).__doc__ or "").strip()
    for name, limit in rule.thresholds.items():
        for sign, text in (("", str(limit)), ("%", format_percent(limit)), ("#", f"{limit:g}")):
            page = page.replace(f"{{{name}{sign}}}", text)
    return page


def _order_key(finding: Finding) -> tuple[bool, int, bool, float, int, bool]:
    """Sort good news last; the rest by priority, stake and severity, of equals one with a subject first. A problem without a
    stake stands with large ones; of wrong figures, what makes others wrong comes first."""
    stake = finding.stake_fraction
    if stake is None:
        stake = NO_MATTER_OF_TIME if finding.severity == "problem" else 0.0
    kind, grave = _PRIORITY.index(finding.priority), _SEVERITY[finding.severity]
    cause = finding.priority == "wrong" and bool(finding.casts_doubt)
    return finding.severity == "info", kind, not cause, -round(stake, 3), grave, finding.subject is None


def without_fragments(evidence: Evidence) -> Evidence:
    """Return ``evidence`` without jobs whose traces hold no step that is known to be whole."""
    whole = tuple(job for job in evidence.traces if not _is_fragment(job.summary))
    return evidence if len(whole) == len(evidence.traces) else replace(evidence, traces=whole)


def doubted(findings: Iterable[Finding], evidence: Evidence) -> list[Finding]:
    """Return ``findings``; those of jobs with truncated traces have that among their doubts."""
    why = {
        job.name: f"the trace of {_ranks_text(ranks)} is truncated, how much is lost is unknown"
        for job in evidence.traces
        if (ranks := _cut_ranks(job.summary))
    }
    return [replace(f, doubts=(*f.doubts, why[f.job])) if f.job in why else f for f in findings]


def _is_fragment(summary: TraceSummary) -> bool:
    return bool(summary.ranks) and all(_is_cut_pass(rank) and not rank.steps for rank in summary.ranks)


def _cut_ranks(summary: TraceSummary) -> list[int]:
    return [rank.facts.rank for rank in summary.ranks if _is_cut_pass(rank)]


def _is_cut_pass(rank: RankPass) -> bool:
    return any(note.kind == "truncated" for note in rank.notes)


def _ranks_text(ranks: Iterable[int]) -> str:
    numbers = sorted(set(ranks))
    return f"{plural(len(numbers), 'rank')} {listed([str(rank) for rank in numbers], at_most=5)}"


def trace_rules() -> tuple[Rule, ...]:
    """Return the rules that have something to say of nothing but traces, by name; those of third parties are among them."""
    return tuple(REGISTRY.load(key) for key in REGISTRY.names() if reads_traces(declared(key)))


def diagnose_traces(summary: TraceSummary, *, name: str = "trace") -> Diagnosis:
    """Return what the traces of one job alone say: findings by stake, rules that were quiet, rules that had no data."""
    evidence = Evidence(
        sources=(Source(path=Path(name), kind="trace"),), traces=(TraceEvidence(name=name, summary=summary),)
    )
    return diagnose(evidence, rules=trace_rules())


# The investigation in five steps


class Step(NamedTuple):
    """One step. needs: attributes of Evidence, any of which is evidence for it, with what they are called."""

    question: str
    needs: tuple[tuple[str, str], ...]
    command: str


STEPS = (
    Step(
        "How long is a step, how far is it from the hardware's limits, and is the measurement sound?",
        (("runs", "training runs"), ("traces", "traces")),
        "stepscope bench --preset strong-scaling -o RUN",
    ),
    Step(
        "Where is time lost: computation, communication, waiting for data or a peer, memory?",
        (("scaling", "runs with a baseline"), ("cells", "steps by phase"), ("traces", "traces")),
        "stepscope bench MATRIX.yaml --profile -o RUN && stepscope diagnose RUN",
    ),
    Step(
        "Which collective, link, kernel, phase or allocation is the cause?",
        (
            ("traces", "traces"),
            ("comm", "measured collectives"),
            ("nccl", "NCCL's log"),
            ("memory", "memory snapshots"),
        ),
        "stepscope comm --ops all --sizes 1K:64M:4 --ranks 2 -o COMM && stepscope diagnose RUN COMM",
    ),
    Step(
        "What would the step cost without that cause?",
        (("calibration", "a calibration"), ("traces", "traces"), ("cells", "steps by phase")),
        "stepscope calibrate COMM && stepscope predict --buckets RUN --calib COMM/calib.json",
    ),
    Step(
        "Did the change help by more than the noise, and did anything else get worse?",
        (),
        "stepscope compare --run BEFORE.yaml AFTER.yaml --rounds 6",
    ),
)


@record
class StepState:
    """A step and how far it is answered. have: evidence for it, in words. fired, quiet, skipped: names of its rules; one
    for good news is never among the quiet, which are in order.

    next_commands: what to run for what is missing; the step's own command when there is nothing at all.
    """

    number: int
    question: str
    have: tuple[str, ...]
    fired: tuple[str, ...]
    quiet: tuple[str, ...]
    skipped: tuple[str, ...]
    next_commands: tuple[str, ...]


def investigate(evidence: Evidence, diagnosis: Diagnosis) -> Iterator[StepState]:
    """Say how far each of the five steps is answered."""
    for number, step in enumerate(STEPS, 1):
        rules = [rule for rule in all_rules() if rule.protocol == number]
        names = {rule.name for rule in rules}
        have = tuple(text for need, text in step.needs if getattr(evidence, need))
        if not step.needs and len(evidence.sources) > 1:
            have = (f"{len(evidence.sources)} sources to compare",)
        missing = [NEEDS[need][1] for need, _ in step.needs if not getattr(evidence, need)]
        commands = [own_command(c, evidence) for c in ([step.command] if not have else missing)]
        yield StepState(
            number=number,
            question=step.question,
            have=have,
            fired=tuple(dict.fromkeys(f.rule for f in diagnosis.findings if f.rule in names)),
            quiet=tuple(q.rule for q in diagnosis.quiet if q.rule in names - {r.name for r in rules if r.good_news}),
            skipped=tuple(skip.rule for skip in diagnosis.skipped if skip.rule in names),
            next_commands=tuple(dict.fromkeys(c for c in commands if c)),
        )
