"""What grading a question gives: rows with their errors, and the figures that stand for them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.validate.fitted import fitted_on
from stepscope.predict.step.run_rows import TrainingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One row. predicted, measured: in the question's unit. error: its relative error, or a mean of several (one for each
    row that calibrated). covered: share of its 80% intervals that hold the measured value, None: no interval.
    fitted: the shipped constants were fitted on this row."""

    source: str
    row_id: str
    predicted: float
    measured: float
    error: float
    covered: float | None = None
    fitted: bool = False


def graded(
    row: TrainingRow,
    predicted: float,
    measured: float,
    *,
    error: float | None = None,
    reach: tuple[float, float] | None = None,
    fits: bool = True,
) -> Graded:
    """error: None: the relative one. reach: factors on ``predicted`` that give its 80% interval. fits: constants that were
    fitted have a part in ``predicted``."""
    covered = None if reach is None else float(predicted * reach[0] <= measured <= predicted * reach[1])
    return Graded(
        source=row.source,
        row_id=row.row_id,
        predicted=predicted,
        measured=measured,
        error=abs(predicted / measured - 1) if error is None else error,
        covered=covered,
        fitted=fits and fitted_on(row),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure of an answer and what it should be."""

    figure: str
    most: float | None = None
    least: float | None = None

    def met(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    @property
    def text(self) -> str:
        def side(sign: str, value: float | None) -> list[str]:
            return [] if value is None else [f"{sign} {value:.0%}"]

        return " and ".join(side(">=", self.least) + side("<=", self.most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question's rows and figures. extra: figures that are no error of a row (recall, regret). skipped: by reason."""

    rows: tuple[Graded, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """key: as in ``--json``. title: one line. unit: of what is compared. ask: gives the answer from the material.
    bars: what to reach; baseline: what a simple model reaches, in words."""

    key: str
    title: str
    unit: str
    ask: Callable[[Any], Answer]
    bars: tuple[Goal, ...]
    baseline: str = ""


def summary(rows: Iterable[Graded]) -> dict[str, float | int | None]:
    """rows, mean_error, median_error, coverage; None where there is nothing to say."""
    found = list(rows)
    errors = [row.error for row in found]
    covered = [row.covered for row in found if row.covered is not None]
    return {
        "rows": len(found),
        "mean_error": statistics.fmean(errors) if errors else None,
        "median_error": statistics.median(errors) if errors else None,
        "coverage": statistics.fmean(covered) if covered else None,
    }


def figures(answer: Answer, *, held_out: bool = False) -> dict[str, float]:
    """Every figure a bar can name. held_out: of rows that nothing was fitted on."""
    rows = [row for row in answer.rows if not (held_out and row.fitted)]
    found = {name: value for name, value in summary(rows).items() if value is not None}
    return {**found, **answer.extra}


def document(question: Question, answer: Answer) -> dict[str, Any]:
    """The entry of ``--json``."""
    values = figures(answer)
    sources = Counter(row.source for row in answer.rows)
    return {
        "key": question.key,
        "title": question.title,
        "unit": question.unit,
        **summary(answer.rows),
        "figures": dict(answer.extra),
        "bars": [
            {"figure": b.figure, "least": b.least, "most": b.most, "met": b.met(values[b.figure])}
            for b in question.bars
            if b.figure in values
        ],
        "fitted_on": summary(row for row in answer.rows if row.fitted),
        "not_fitted_on": summary(row for row in answer.rows if not row.fitted),
        "sources": [
            {"source": name, **summary(r for r in answer.rows if r.source == name)} for name in sorted(sources)
        ],
        "skipped": [{"reason": reason, "rows": n} for reason, n in sorted(answer.skipped.items()) if n],
    }


def met(question: Question, answer: Answer) -> bool | None:
    """Whether every bar is met; None: nothing of it could be graded."""
    values = figures(answer)
    named = [bar for bar in question.bars if bar.figure in values]
    return all(bar.met(values[bar.figure]) for bar in named) if answer.rows and named else None
