"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from stepscope.core.dataclass import dataclass
from stepscope.diagnose.outcome import Outcome, Statement, each_job, folded, named, outcome_of, together

if TYPE_CHECKING:
    from stepscope.results.evidence import Evidence, TraceEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that decides, with its unit and where it comes from (a paper, METRICS, a measurement with its date)."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A registered rule; the file's docstring is its page: what it sees, why that is bad, known problems, references.

    name: as users write it; unless given, the file's stem with hyphens (``launch-bound``). symptom: one line for tables of
    rules. needs: attributes of :class:`Evidence` that must be there (not None, not empty), else it is skipped with the
    reason and the command of ``evidence.NEEDS``; traces, where it only looks at traced jobs. any_of: attributes of which at
    least one must be there (a rule that reads steps as well as traces). protocol: the step of the investigation (1 to 5,
    ``diagnose/protocol.py``) it serves.
    look, or look_at_job for one traced job after the other: pure. A finding or several (never none), a text with the number
    that decided where there is nothing to say, or Skipped for data that ``needs`` cannot name. A symptom that shows in
    traces and elsewhere has both: ``look`` is asked where something of ``any_of`` beside traces is there, and a traced job
    that its findings name (``Finding.job``) is not asked again.
    explained_by: rules that name the cause of this symptom: where one of them finds as much at stake in the same job, the
    symptom is not told again; good news is not told where one of them finds anything. folded: from the fifth finding on a
    line each. good_news: it fires for what is well, so that its silence is no praise.
    """

    name: str = ""
    symptom: str
    needs: tuple[str, ...] = ()
    look: Callable[[Evidence], Statement] | None = None
    look_at_job: Callable[[TraceEvidence], Statement] | None = None
    protocol: int
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    any_of: tuple[str, ...] = ()
    good_news: bool = False
    folded: bool = False
    explained_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.module.rpartition(".")[2].replace("_", "-"))
        if self.look is None and not self.any_of:
            object.__setattr__(self, "needs", self.needs or ("traces",))

    def check(self, evidence: Evidence) -> Outcome:
        """What the rule says of evidence that has what it needs."""
        outcomes: list[Outcome] = []
        elsewhere = any(getattr(evidence, name) for name in self.any_of if name != "traces")
        if self.look is not None and (self.look_at_job is None or elsewhere):
            outcomes.append(outcome_of(self.look(evidence)))
        if self.look_at_job is not None and evidence.traces:
            outcomes.append(each_job(evidence.traces, self.look_at_job, found=outcomes[0] if outcomes else ()))
        outcome = named(self.name, together(outcomes))
        if not self.folded or not isinstance(outcome, tuple):
            return outcome
        from stepscope.results.history import repeated

        return folded(outcome, repeated(evidence))

    @property
    def rates(self) -> bool:
        """Whether it rates runs: it is asked last, and only of runs that no finding declares wrong."""
        return self.good_news or "scaling_budgets" in self.needs

    @property
    def module(self) -> str:
        """Where it is written; the docstring there is its page."""
        look = self.look or self.look_at_job
        assert look is not None
        return look.__module__
