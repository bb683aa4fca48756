"""``--fail-if``: conditions on the numbers of a command's JSON, and whether they hold."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import CheckFailed, UsageError
from stepscope.core.words import unknown
from stepscope.records.finding import Diagnosis
from stepscope.results.figures import Figure

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip

_CONDITION = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(>=|<=|==|!=|>|<)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(%?)\s*\Z")


@record
class Condition:
    """``key op number``; ``op`` None: a rule's name alone, which holds when the rule fires.

    percent: the number is a change in per cent against the first run.
    """

    text: str
    key: str
    op: str | None = None
    number: float = 0.0
    percent: bool = False

    def holds(self, metrics: Mapping[str, float | None], fired: Collection[str]) -> bool:
        """Return whether the condition holds, and so the check fails. A number that is unknown holds nothing."""
        if self.op is None:
            return self.key in fired
        value = metrics[self.key]
        return value is not None and OPERATORS[self.op](value, self.number)


MOST_NAMED = 8


def _first_figures_text(figures: Iterable[str]) -> str:
    """Name the first figures, and say where the others are."""
    named = list(figures)
    more = ", ... (docs/reference/metrics.md)" if len(named) > MOST_NAMED else ""
    return ", ".join(named[:MOST_NAMED]) + more


def refuse_failed(conditions: Sequence[Condition], metrics: Mapping[str, float | None], diagnosis: Diagnosis) -> None:
    """Raises CheckFailed where a condition holds, with the numbers that it is about."""
    fired = {finding.rule for finding in diagnosis.findings}
    failed = [c.text for c in conditions if c.holds(metrics, fired)]
    if failed:
        asked = {c.key for c in conditions if c.text in failed}
        figures = [f"{k} = {v:.4g}" for k, v in metrics.items() if v is not None and k in asked]
        raise CheckFailed(f"failed: {'; '.join(failed)}", why=", ".join(figures) or "the rule fires")


@record
class Changed:
    """A figure beside the first run's. what: it is of. change: in per cent; None: unknown, or no significant difference."""

    key: str
    what: str
    value: float
    change: float | None


def parse_changes(texts: Iterable[str], figures: Mapping[str, Figure]) -> tuple[Condition, ...]:
    """Read ``KEY OP NUMBER[%]``; % is the change against the first run. Raises UsageError."""
    return tuple(parse_condition(text, figures=figures, rules=(), percent=True) for text in texts)


def changed_too_far(conditions: Iterable[Condition], figures: Sequence[Changed]) -> list[tuple[str, str]]:
    """Return each condition that holds, and a figure that it holds for in words: once for every such figure."""
    return [
        (
            condition.text,
            f"{figure.what}, {condition.key}: " + (f"{value:+.1f}%" if condition.percent else f"{value:.4g}"),
        )
        for condition in conditions
        for figure in figures
        if figure.key == condition.key
        and (value := figure.change if condition.percent else figure.value) is not None
        and condition.holds({condition.key: value}, ())
    ]


def refuse_changed(conditions: Iterable[Condition], figures: Sequence[Changed]) -> None:
    """Raises CheckFailed with the conditions that hold, and the first three figures that they hold for."""
    if failed := changed_too_far(conditions, figures):
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        why = "; ".join(sentence for _, sentence in failed[:3]) + more
        raise CheckFailed("failed: " + "; ".join(dict.fromkeys(text for text, _ in failed)), why=why)


def parse_condition(
    text: str, *, figures: Mapping[str, Figure], rules: Collection[str], percent: bool = False
) -> Condition:
    """Read one condition. Raises UsageError for what is neither ``KEY OP NUMBER`` nor a rule's name.

    ``input > 20 %`` is ``input_fraction > 0.2``. percent: ``NUMBER%`` is a change against a first run.
    """
    if text.strip() in rules:
        return Condition(text=text, key=text.strip())
    match = _CONDITION.match(text)
    if match is None:
        if rules and re.fullmatch(r"[\w-]+", text.strip()):
            raise UsageError(
                unknown("rule", text.strip(), sorted(rules)),
                fix=f"a rule (`stepscope diagnose --rules list`), or a condition on {_first_figures_text(figures)}",
            )
        raise UsageError(
            f"--fail-if {text!r}: not a condition",
            why="expected KEY OP NUMBER with OP one of >, >=, <, <=, ==, !="
            + (", or the name of a rule" if rules else f", and KEY one of {', '.join(figures)}"),
            fix=f"for example --fail-if '{next(iter(figures), 'exposed_comm_fraction')} > 0'",
        )
    key, op, number, sign = match.groups()
    key = key if key in figures else f"{key}_fraction" if f"{key}_fraction" in figures else key
    if key not in figures:
        raise UsageError(unknown("number", key, sorted(figures)))
    share = bool(sign) and not percent and figures[key].unit == "fraction"
    if sign and not percent and not share:
        raise UsageError(
            f"--fail-if {text!r}: % is a change against a first run, and there is one run here",
            fix="give the number itself (a fraction for shares: 0.2), or use `stepscope compare`",
        )
    try:
        value = float(number) / 100 if share else float(number)
        condition = Condition(text=text, key=key, op=op, number=value, percent=bool(sign) and percent)
    except ValueError as error:
        raise UsageError(f"--fail-if {text!r}: {number!r} is not a number") from error
    _require_open(condition, figures[key], percent_known=percent)
    return condition


def _require_open(condition: Condition, figure: Figure, *, percent_known: bool) -> None:
    """Raises UsageError for a condition that holds for every value, or for none: with what was probably meant."""
    low, high = (-100.0, math.inf) if condition.percent else figure.range
    number, op = condition.number, condition.op
    never = {
        ">": number >= high, ">=": number > high, "<": number <= low, "<=": number < low,
        "==": not low <= number <= high, "!=": False,
    }[op or "!="]  # fmt: skip
    always = {
        ">": number < low, ">=": number <= low, "<": number > high, "<=": number >= high, "==": False,
        "!=": not low <= number <= high,
    }[op or "=="]  # fmt: skip
    if not never and not always:
        return
    span = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
    meant = None
    if number < low and percent_known and not condition.percent:
        meant = f"{condition.key} {op} {number:g}%"
    elif high == 1.0 and 1.0 < number <= 100.0:
        meant = f"{condition.key} {op} {number / 100:g}"
    raise UsageError(
        f"--fail-if {condition.text!r} is {'never' if never else 'always'} true: "
        f"{'a change in per cent' if condition.percent else condition.key} is {span}",
        fix=f"did you mean {meant!r}?" if meant else None,
    )
