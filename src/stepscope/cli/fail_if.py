"""``--fail-if``: conditions are read before anything else is done, and checked after all is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stepscope.cli.console import log
from stepscope.core.errors import StepscopeError
from stepscope.store.layout import ProfileLayout

if TYPE_CHECKING:
    from stepscope.records.finding import Diagnosis
    from stepscope.report.conditions import Condition
    from stepscope.results.evidence import Evidence
    from stepscope.results.figures import Figure


def _figures() -> Mapping[str, Figure]:
    """Return the figures of diagnose, run and profile."""
    from stepscope.results.figures import figures_of

    return figures_of("diagnosis") | figures_of("steps", "shares", "memory", "hardware", "wall")


def read_conditions(texts: Sequence[str]) -> Sequence[Condition]:
    """Read conditions on figures of diagnose, run and profile, or names of rules. Raises UsageError."""
    if not texts:
        return ()
    from stepscope.diagnose.engine import rule_names
    from stepscope.report.conditions import parse_condition

    figures, names = _figures(), sorted(rule_names())
    return [parse_condition(text, figures=figures, rules=names) for text in texts]


def check(conditions: Sequence[Condition], values: Mapping[str, float | None], diagnosis: Diagnosis) -> None:
    """Check the conditions; one that nobody could look at passes, but not in silence. Raises CheckFailed."""
    from stepscope.report.conditions import refuse_failed

    skipped = {skip.rule: skip.reason for skip in diagnosis.skipped}
    for condition in conditions:
        unknown_number = condition.op is not None and values[condition.key] is None
        reason = "this figure is unknown here" if unknown_number else skipped.get(condition.key)
        if reason is not None:
            say_not_checked(condition, reason)
    refuse_failed(conditions, values, diagnosis)


def check_evidence(conditions: Sequence[Condition], evidence: Evidence, diagnosis: Diagnosis) -> None:
    """Check the conditions with the figures of diagnose. Raises CheckFailed."""
    from stepscope.report.documents import diagnose_figures

    check(conditions, dict.fromkeys(_figures()) | diagnose_figures(evidence, diagnosis), diagnosis)


def check_job(conditions: Sequence[Condition], layout: ProfileLayout, code: int) -> None:
    """Check as ``diagnose`` does the folder of a job that ended with ``code``; one that failed is not checked."""
    if not conditions:
        return
    from stepscope.cli.commands.diagnose import Diagnose
    from stepscope.cli.evidence import read_evidence
    from stepscope.diagnose.engine import diagnose
    from stepscope.diagnose.verdict import judge

    reason = f"the job ended with exit code {code}"
    if code == 0:
        try:
            evidence = read_evidence(Diagnose(paths=(layout.root,)))
            diagnosis = diagnose(evidence)
            judged = judge(evidence, diagnosis)
        except (OSError, StepscopeError) as error:
            reason = f"{layout.root}: {error}"
        else:
            check_evidence(conditions, evidence, diagnosis if judged is None else judged.diagnosis)
            return
    for condition in conditions:
        say_not_checked(condition, reason)


def say_not_checked(condition: Condition, reason: str) -> None:
    """Name one condition that could not fail, and why."""
    log(f"! --fail-if {condition.text!r} was not checked: {reason}", "yellow")
