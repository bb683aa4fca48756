"""Tables of what predictions reach: one row a question, one a source, and errors of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.validate.collectives import ALL, ErrorGroup, ValidationReport
from benchmarks.validate.grade import Answer, Question, figures, met, summary
from stepscope.core.words import counted
from stepscope.report.table import Column, Format, Table, Value, judged, percent, tabled, whole, wording

Asked = tuple[Question, Answer]

_SHARE = Format("{:.1%}".format)
_FEW = 3


def verdict(asked: Sequence[Asked]) -> str:
    """How many bars are met, and which are not."""
    found = {question.key: met(question, answer) for question, answer in asked}
    failed = [key for key, good in found.items() if good is False]
    unasked = [key for key, good in found.items() if good is None]
    reached = sum(good is True for good in found.values())
    text = f"{reached} of {counted(len(found) - len(unasked), 'question')} reach their bar"
    text += f"; not: {', '.join(failed)}" if failed else ""
    return text + (f"; nothing to grade: {', '.join(unasked)}" if unasked else "")


def build_questions(asked: Sequence[Asked]) -> Table:
    """One row a question; rows that the constants were fitted on stand beside those that they were not."""

    def of(name: str, *, fitted: bool | None = None) -> Any:
        def value(item: Asked) -> Any:
            rows = [row for row in item[1].rows if fitted is None or row.fitted is fitted]
            return summary(rows)[name]

        return value

    def reached(item: Asked) -> Value:
        values = figures(item[1])
        parts = [(bar, values[bar.figure]) for bar in item[0].bars if bar.figure in values]
        text = ", ".join(f"{_short(bar.figure)} {value:.1%} ({bar.text})" for bar, value in parts)
        good = met(*item)
        return wording(text or None, tone="plain" if good is None else "good" if good else "bad")

    return tabled(
        "published_questions",
        "Predicted against published training runs",
        asked,
        Column("key", "question", lambda item: item[0].key, role="lead"),
        Column("rows", "rows", of("rows"), whole),
        Column("bars", "reached (bar)", reached),
        Column("baseline", "simple model", lambda item: item[0].baseline or None, drop=3),
        Column("mean", "mean error", of("mean_error"), _SHARE, drop=2),
        Column("median", "median", of("median_error"), _SHARE, drop=2),
        Column("fitted", "fitted rows", of("mean_error", fitted=True), _SHARE, drop=1),
        Column("unseen", "other rows", of("mean_error", fitted=False), _SHARE, drop=1),
        Column("coverage", "in 80% interval", of("coverage"), percent),
        footnotes=(
            "error: |predicted - measured| / measured; fitted rows, other rows: mean error of rows that the shipped "
            "constants were fitted on, and of all others",
        ),
    )


def _short(figure: str) -> str:
    return figure.removesuffix("_error").replace("_", " ")


def build_sources(asked: Sequence[Asked]) -> Table:
    """One row a question and source."""
    found = [
        (question.key, source, summary(row for row in answer.rows if row.source == source))
        for question, answer in asked
        for source in sorted({row.source for row in answer.rows})
    ]
    return tabled(
        "published_sources",
        "By source",
        found,
        Column("key", "question", lambda item: item[0], role="lead"),
        Column("source", "source", lambda item: item[1], role="lead"),
        Column("rows", "rows", lambda item: item[2]["rows"], whole),
        Column("mean", "mean error", lambda item: item[2]["mean_error"], _SHARE),
        Column("median", "median", lambda item: item[2]["median_error"], _SHARE),
        Column("coverage", "in 80% interval", lambda item: item[2]["coverage"], percent),
        notes=tuple(_left_out(asked)),
    )


def _left_out(asked: Sequence[Asked]) -> Iterator[str]:
    """Each reason once, most rows first, with the questions that name it."""
    found: dict[str, dict[str, int]] = {}
    for question, answer in asked:
        for reason, n in answer.skipped.items():
            if n:
                found.setdefault(reason, {})[question.key] = n
    for reason, by_question in sorted(found.items(), key=lambda item: -max(item[1].values())):
        keys = f"{len(by_question)} questions" if len(by_question) > _FEW else ", ".join(by_question)
        yield f"{max(by_question.values())} left out by {keys}: {reason}"


def build(asked: Sequence[Asked]) -> tuple[Table, ...]:
    return build_questions(asked), build_sources(asked)


_WORRY = (0.3, 0.6)
"""Median relative error from which on a group is shown in yellow, and in red."""


def build_validation(report: ValidationReport, *, title: str) -> Table:
    """All rows together by size class, then every source."""
    groups: Sequence[ErrorGroup] = (*report.overall, *report.groups)
    coverage = report.sources_coverage
    signed = Format("{:+.1%}".format)
    share = Format("{:.1%}".format)

    return tabled(
        "predicted_validation",
        title,
        groups,
        Column("source", "source", lambda g: "all sources" if g.source == ALL else g.source, role="lead"),
        Column("op", "collective", lambda g: "all" if g.op == ALL else g.op, role="lead"),
        Column("size_class", "size", lambda g: g.size_class, role="identity"),
        Column("rows", "rows", lambda g: g.rows, whole),
        Column(
            "median_error", "median error", lambda g: share(g.median_error, tone=judged(g.median_error, *_WORRY)), whole
        ),
        Column("p90_error", "90% error", lambda g: g.p90_error, share),
        Column("bias", "bias", lambda g: g.bias, signed),
        Column("coverage", "in 80% interval", lambda g: g.coverage, percent),
        footnotes=(
            "error: |predicted - measured| / measured time; bias: median of the signed error, below 0: predicted too fast",
            *((f"80% interval: {coverage:.0%} with every source weighing the same",) if coverage is not None else ()),
        ),
        notes=tuple(f"not compared: {text}" for text in report.skipped),
    )
