"""What a rule is, what it states of its evidence, and how several statements become one outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar, Unpack

from stepscope.core.dataclass import record
from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted, listed
from stepscope.diagnose.advised import ADVICE, Condition
from stepscope.diagnose.commands import trace_command
from stepscope.records.finding import Advice, Doubt, Priority, Quiet, Severity, Skipped, VerdictKind
from stepscope.records.finding import Finding as Finding  # what a rule's file needs of findings, it takes from here
from stepscope.results.evidence import NEEDS, name_of

if TYPE_CHECKING:
    from stepscope.records.trace_quality import Figure
    from stepscope.records.training import TrainingRun
    from stepscope.results.evidence import Evidence, TraceEvidence


Statement = Finding | Iterable[Finding] | str | Quiet | Skipped
"""As rules return it. A text is a rule that looked and found nothing: at what, and what decided."""

Outcome = tuple[Finding, ...] | Quiet | Skipped
"""The same as everybody else reads it; findings are never an empty tuple."""

JOBS_NAMED = 3

IN_FULL = 4
"""Findings of one rule that a reader gets in full."""

WORTH = 0.1
GRAVE = 0.2
"""Shares of the step, from which on a part of it is worth a finding, and from which on that is grave."""

_LINES = 12

T = TypeVar("T")


def outcome_of(statement: Statement) -> Outcome:
    if isinstance(statement, str):
        return Quiet(looked_at=statement)
    if isinstance(statement, Finding):
        return (statement,)
    return statement if isinstance(statement, (Quiet, Skipped)) else tuple(statement)


def named(rule: str, outcome: Outcome) -> Outcome:
    """Return ``outcome`` as this rule's."""
    if isinstance(outcome, tuple):
        return tuple(replace(finding, rule=rule) for finding in outcome)
    return replace(outcome, rule=rule)


def together(statements: Iterable[Statement]) -> Outcome:
    """Make one outcome of several of one rule, at least one: findings win over quiet, quiet over skipped."""
    outcomes = [outcome_of(statement) for statement in statements]
    findings = tuple(f for outcome in outcomes if isinstance(outcome, tuple) for f in outcome)
    if findings:
        return findings
    quiet = [outcome.looked_at for outcome in outcomes if isinstance(outcome, Quiet)]
    return Quiet(looked_at="; ".join(quiet)) if quiet else outcomes[0]


def each_job(
    jobs: Sequence[TraceEvidence], look: Callable[[TraceEvidence], Statement], *, earlier: Outcome = ()
) -> Outcome:
    """Ask ``look`` of every traced job: all findings, else what was quiet, else why none could be looked at.

    earlier: what the rule found already; the jobs that these findings are of are left out.

    With several jobs a finding's subject says which. Of more than ``JOBS_NAMED`` jobs with findings the one with most at
    stake speaks for all.
    """
    reported = {finding.job for finding in earlier} if isinstance(earlier, tuple) else set()
    outcomes = [(job.name, _shown_by(job, outcome_of(look(job)))) for job in jobs if job.name not in reported]
    several = len(jobs) > 1
    of_jobs = [job.job for job in jobs if job.job is not None]
    what = "captures" if len(set(of_jobs)) < len(of_jobs) else "traced jobs"
    firing = [(name, outcome) for name, outcome in outcomes if isinstance(outcome, tuple)]
    if firing:
        shown = firing if len(firing) <= JOBS_NAMED else [_worst_job(firing, what)]
        return tuple(
            replace(f, job=name, subject=", ".join(filter(None, (name, f.subject))) if several else f.subject)
            for name, findings in shown
            for f in findings
        )
    quiet = [(name, o) for name, o in outcomes if isinstance(o, Quiet)]
    if quiet:
        looked = [f"{name}: {o.looked_at}" if several else o.looked_at for name, o in quiet[:JOBS_NAMED]]
        more = [f"and {len(quiet) - JOBS_NAMED} more {what.removeprefix('traced ')}"] if quiet[JOBS_NAMED:] else []
        return Quiet(looked_at="; ".join([*looked, *more]))
    return next(
        (o for _, o in outcomes if isinstance(o, Skipped)), Skipped(reason="every traced job was timed as well")
    )


def _shown_by(job: TraceEvidence, outcome: Outcome) -> Outcome:
    """Return ``outcome``, options alone in place of a command as the ``stepscope trace`` of the job."""
    if not isinstance(outcome, tuple):
        return outcome
    return tuple(
        replace(
            finding,
            advice=tuple(
                replace(advice, command=trace_command(job, advice.command))
                if advice.command is not None and advice.command.startswith("--")
                else advice
                for advice in finding.advice
            ),
        )
        for finding in outcome
    )


def folded(findings: Iterable[Finding], repeats: Mapping[str, object] | None = None) -> tuple[Finding, ...]:
    """Return ``findings`` of one rule, largest stake first; from the fifth on as lines of one finding without a stake.

    repeats: run_id -> what the run repeats (:func:`results.days.repeated`): the same on such runs is one finding.
    """
    ranked = sorted(_merged_over_time(findings, repeats or {}), key=lambda finding: -(finding.stake_fraction or 0.0))
    rest = ranked[IN_FULL:]
    if len(rest) < 2:
        return tuple(ranked)
    lines = [f"{finding.subject}: {finding.title}" for finding in rest[:_LINES]]
    if len(rest) > _LINES:
        lines.append(f"and {len(rest) - _LINES} more")
    others = replace(
        rest[0],
        severity="problem" if any(finding.severity == "problem" for finding in rest) else rest[0].severity,
        runs=_all_run_ids(rest, lambda finding: finding.runs),
        case=None,
        wrong_runs=_all_run_ids(rest, lambda finding: finding.wrong_runs),
        title=f"{rest[0].rule}: {counted(len(rest), 'more case')} of the same kind",
        evidence=tuple(lines),
        stake_fraction=None,
        advice=(),
        subject=None,
        job=None,
        ranks=(),
        at_ns=None,
    )
    return (*ranked[:IN_FULL], others)


def _merged_over_time(findings: Iterable[Finding], repeats: Mapping[str, object]) -> list[Finding]:
    """Merge those ``findings`` that are on runs that repeat each other: the one with most at stake names the others."""
    alike: dict[object, list[Finding]] = {}
    for finding in findings:
        kinds = tuple(repeats.get(run_id) for run_id in finding.runs)
        comparable = bool(kinds) and None not in kinds
        alike.setdefault((finding.case, kinds) if comparable else id(finding), []).append(finding)
    merged = []
    for same_kind in alike.values():
        first = max(same_kind, key=lambda finding: finding.stake_fraction or 0.0)
        others = [f.subject or "" for f in same_kind if f is not first]
        if others:
            first = replace(
                first,
                evidence=(*first.evidence, f"the same on {counted(len(others), 'other run')}: {listed(others)}"),
                runs=_all_run_ids(same_kind, lambda f: f.runs),
                wrong_runs=_all_run_ids(same_kind, lambda f: f.wrong_runs),
            )
        merged.append(first)
    return merged


def _all_run_ids(findings: Iterable[Finding], runs: Callable[[Finding], tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run_id for finding in findings for run_id in runs(finding)))


def _worst_job(firing: Sequence[tuple[str, tuple[Finding, ...]]], what: str) -> tuple[str, tuple[Finding, ...]]:
    """Return the job with most at stake; its first finding says how many others there are and how bad. what: their noun."""
    stakes = [max(f.stake_fraction or 0.0 for f in findings) for _, findings in firing]
    name, findings = firing[stakes.index(max(stakes))]
    low = f", from {format_percent(min(stakes))} of the time" if min(stakes) > 0 else ""
    others = f"the same in {len(firing) - 1} more of the {what}{low}"
    first = replace(findings[0], evidence=(*findings[0].evidence, others))
    return name, (first, *findings[1:])


def severity_of(stake: float) -> Severity:
    return "problem" if stake >= GRAVE else "warning"


class FindingFacts(TypedDict, total=False):
    """What a finding has beside words, as of :class:`Finding`."""

    cause: str
    stake_on_host: float
    share: float | None
    casts_doubt: Mapping[str, Doubt]
    priority: Priority
    runs: tuple[str, ...]
    case: str
    wrong_runs: tuple[str, ...]
    job: str | None
    ranks: tuple[int, ...]
    at_ns: tuple[int, int] | None


Claim = Literal["step", "communication", "waiting", "computation", "idle", "copies"]
"""Parts of a step that findings want: of timed steps and of windows of traces."""

PARTS_OF_CLAIM: Mapping[Claim, tuple[str, ...]] = {
    "step": (),
    "communication": ("communication",),
    "waiting": ("communication",),
    "computation": ("computation",),
    "idle": ("data", "computation", "other"),
    "copies": ("computation", "other"),
}
"""Claim -> keys of ``records/parts.py`` that hold it. On CPUs the host's own time lies in the parts that it is spent in."""

Lines = str | Iterable[str] | Literal[False] | None
Advices = Advice | str | tuple[str, str | None] | Iterable[Advice] | Literal[False] | None
"""What a finding may be given as lines, and as advice: a text, or one with its command, is advice without conditions."""


def finding(
    title: str,
    *evidence: Lines,
    of: str | TrainingRun | tuple[TrainingRun, ...] | None = None,
    stake: float | None = None,
    severity: Severity | None = None,
    confidence: str = "measured",
    advice: Iterable[Advices] = (),
    **facts: Unpack[FindingFacts],
) -> Finding:
    """Make a finding of its words: of lines and advice, what is empty, False or None is left out.

    of: what it is about, or whose it is: of a run, or of several, that are its ``runs``. severity: unless given, as grave
    as its stake.
    """
    if not isinstance(of, str | None):
        runs = of if isinstance(of, tuple) else (of,)
        facts.setdefault("runs", tuple(run.run_id for run in runs))
        of = name_of(runs[0])
    return Finding(
        title=title,
        evidence=_given_items(evidence, str),
        stake_fraction=stake,
        severity=severity or severity_of(stake or 0.0),
        confidence=confidence,
        advice=_given_items(map(_unconditional_advice, advice), Advice),
        subject=of,
        **facts,
    )


def _unconditional_advice(advice: Advices) -> Advice | Iterable[Advice] | Literal[False] | None:
    words = (advice,) if isinstance(advice, str) else advice
    is_text = isinstance(words, tuple) and words and isinstance(words[0], str)
    return inspect(*words) if is_text else words  # type: ignore[misc, return-value]


def _given_items(items: Iterable[T | Iterable[T] | Literal[False] | None], kind: type[T]) -> tuple[T, ...]:
    several: Iterable[Iterable[T]] = ((item,) if isinstance(item, kind) else item for item in items if item)  # type: ignore[misc]
    return tuple(item for some in several for item in some if item)


def skipped(reason: str, command: str | None = None) -> Skipped:
    return Skipped(reason=reason, command=command)


@record
class AdviceFor(Advice):
    """Advice for jobs of which all of ``applies_to`` may hold. The engine makes it plain advice, or drops it."""

    applies_to: tuple[Condition, ...]


def advise(
    text: str, command: str | None = None, *, key: str | None = None, only_for: tuple[Condition, ...] = ()
) -> Advice:
    """Advise one change, and how to make it. key: of ``advised.ADVICE``, whose conditions it has, too; None: of cells and
    runs alone, whose command tries it. only_for: what has to hold of the job, as far as its facts say."""
    conditions = (*(ADVICE[key] if key is not None else ()), *only_for)
    return (
        AdviceFor(text=text, command=command, applies_to=tuple(dict.fromkeys(conditions)))
        if conditions
        else Advice(text=text, command=command)
    )


def inspect(text: str, command: str | None = None, *, only_for: tuple[Condition, ...] = ()) -> Advice:
    """Advise one thing to look at: it changes nothing of the job. only_for: as of ``advise``."""
    return advise(text, command, only_for=only_for)


class Limit(float):
    """A number that decides, with its unit and where it comes from (a paper, a measurement with its date).

    The rule compares with it, its texts print it, and its row in the documents is made of it: it is written once.
    """

    value: float
    unit: str
    source: str

    def __new__(cls, value: float, *, unit: str, source: str) -> Limit:
        limit = super().__new__(cls, value)
        limit.value, limit.unit, limit.source = value, unit, source
        return limit

    def __str__(self) -> str:
        """``10% of the step``, ``256 MiB inactive split``, ``20 us``, ``4 units``."""
        unit = self.unit.removeprefix("share ")
        if unit.startswith("of ") and self <= 1:
            return self.of(self)
        words = unit.split()
        if "bytes" in words and self >= 1024:
            return " ".join([format_bytes_binary(int(self)), *(word for word in words if word != "bytes")])
        if words[0] == "ns" and len(words) == 1:
            return format_duration(self)
        return f"{unit} = {self:g}" if "/" in unit else f"{self:g} {unit}"

    def of(self, share: float) -> str:
        """A share of the same whole: ``52% of the step``."""
        return f"{format_percent(share)} {self.unit.removeprefix('share ')}"


@record
class Declared:
    """What a rule asks for, as its file declares it: read from there without importing what it works with.

    sees: attributes of :class:`Evidence` of which at least one must be there, of a rule that says itself what it lacks:
    ``unseen`` (empty: as ``evidence.NEEDS`` says of the first), and the command that gets it.
    """

    name: str = ""
    needs: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    sees: tuple[str, ...] = ()
    unseen: str = ""
    unseen_command: str | None = None
    good_news: bool = False
    kind: VerdictKind | None = None
    names_cause: bool = False
    claims: tuple[Claim, ...] = ()
    whole: bool = False
    within: tuple[str, ...] = ()

    def holds(self, other: Declared) -> bool:
        """Whether the time that its findings are about holds what those of another rule want."""
        if self.name in other.within:
            return True
        if "step" in self.claims:
            return bool(other.claims) and "step" not in other.claims
        return self.whole and not other.whole and not set(self.claims).isdisjoint(other.claims)

    def is_about(self, other: Declared) -> bool:
        """Whether it is about the very time of another rule, or of itself."""
        both = not set(self.claims).isdisjoint(other.claims)
        return both and (self.name == other.name or (self.whole and other.whole))

    @property
    def rates(self) -> bool:
        """Whether it rates runs: it is asked last, and only of runs that no finding declares wrong."""
        return self.good_news or "scaling_budgets" in self.needs

    @property
    def blind(self) -> Skipped:
        """Return the outcome where nothing of what the rule sees is there."""
        reason, command = (self.unseen, self.unseen_command) if self.unseen else NEEDS[self.sees[0]]
        return Skipped(rule=self.name, reason=reason, command=command)

    def is_blind(self, evidence: Evidence) -> bool:
        return bool(self.sees) and not any(getattr(evidence, name) for name in self.sees)


@record
class Rule(Declared):
    """A registered rule; the file's docstring is its page: what it sees, why that is bad, known problems, references.

    name: as users write it; unless given, the file's stem with hyphens (``launch-bound``). symptom: one line for tables of
    rules. needs: attributes of :class:`Evidence` that must be there (not None, not empty), else it is skipped with the
    reason and the command of ``evidence.NEEDS``; traces, where it only looks at traced jobs. any_of: attributes of which at
    least one must be there (a rule that reads steps as well as traces). protocol: the step of the investigation (1 to 5,
    ``engine.STEPS``) it serves.
    look, or look_at_job for one traced job after the other: pure. A finding or several (never none), a text with the number
    that decided where there is nothing to say, or Skipped for data that ``needs`` cannot name. A symptom that shows in
    traces and elsewhere has both: ``look`` is asked where something of ``any_of`` beside traces is there, and a traced job
    that its findings name (``Finding.job``) is not asked again.
    rests_on: figures of a trace without which ``look_at_job`` is not asked (``records/trace_quality.py``).
    looks_at, decided_by: its row in the documents, where neither evidence by name nor a limit says it.
    claims: the parts of the step that its findings want: all of them where ``whole``, else some of their own, which is part
    of what the rules named by ``within`` claim. A finding on a part explains one on the whole that holds it: where it has as
    much at stake in the same job, that one is not told again; good news of a part is not told where a finding wants any of
    it. folded: from the fifth finding on a line each. good_news: it fires for what is well, so that its silence is no
    praise.
    kind: what its findings are about in the terms of the verdict on one's own job; None: nothing that a verdict is on.
    names_cause: they say why time of that kind is spent and what would change it, not only how much it is.
    """

    symptom: str
    look: Callable[[Evidence], Statement] | None = None
    look_at_job: Callable[[TraceEvidence], Statement] | None = None
    rests_on: tuple[Figure, ...] = ()
    protocol: int
    thresholds: Mapping[str, Limit] = field(default_factory=dict)
    looks_at: str = ""
    decided_by: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.module.rpartition(".")[2].replace("_", "-"))
        if self.look is None and not self.any_of:
            object.__setattr__(self, "needs", self.needs or ("traces",))

    def check(self, evidence: Evidence) -> Outcome:
        """Return what the rule says of evidence that has what it needs."""
        if self.is_blind(evidence):
            return self.blind
        outcomes: list[Outcome] = []
        elsewhere = any(getattr(evidence, name) for name in self.any_of if name != "traces")
        if self.look is not None and (self.look_at_job is None or elsewhere):
            outcomes.append(outcome_of(self.look(evidence)))
        if self.look_at_job is not None and evidence.traces:
            outcomes.append(each_job(evidence.traces, self._judge_job, earlier=outcomes[0] if outcomes else ()))
        outcome = named(self.name, together(outcomes))
        if not self.folded or not isinstance(outcome, tuple):
            return outcome
        from stepscope.results.history import repeated

        return folded(outcome, repeated(evidence))

    def _judge_job(self, job: TraceEvidence) -> Statement:
        """Ask of a traced job, unless its traces lack what the rule rests on."""
        assert self.look_at_job is not None
        lacking = job.summary.without(self.rests_on)
        return self.look_at_job(job) if lacking is None else Skipped(reason=lacking.text)

    @property
    def module(self) -> str:
        """The module that it is written in; the docstring there is its page."""
        look = self.look or self.look_at_job
        assert look is not None
        return look.__module__
