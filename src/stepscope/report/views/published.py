"""The step model against published training runs: one row a question, one a source, and predicted over measured speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.words import counted
from stepscope.predict.published.grade import Answer, Question, figures, met, summary
from stepscope.report.table import Column, Format, Table, Value, percent, said, tabled, whole
from stepscope.report.vega import COLUMN, FAINT, Spec, by_series, chart, layer, log_axis, shape_by_series, sig
from stepscope.report.view import Figures, View

Asked = tuple[Question, Answer]

_SHARE = Format("{:.1%}".format)
_FEW = 3
_DRAWN = "zero-shot"
_PLOT = COLUMN - 60
"""Height of the plot: with it, it is about square."""


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
        return said(text or None, tone="plain" if good is None else "good" if good else "bad")

    return tabled(
        "published_questions",
        "Predicted against published training runs",
        (
            Column("key", "question", lambda item: item[0].key, role="identity", lead=True),
            Column("rows", "rows", of("rows"), whole),
            Column("bars", "reached (bar)", reached),
            Column("baseline", "simple model", lambda item: item[0].baseline or None, drop=3),
            Column("mean", "mean error", of("mean_error"), _SHARE, drop=2),
            Column("median", "median", of("median_error"), _SHARE, drop=2),
            Column("fitted", "fitted rows", of("mean_error", fitted=True), _SHARE, drop=1),
            Column("unseen", "other rows", of("mean_error", fitted=False), _SHARE, drop=1),
            Column("coverage", "in 80% interval", of("coverage"), percent),
        ),
        asked,
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
        (
            Column("key", "question", lambda item: item[0], role="identity", lead=True),
            Column("source", "source", lambda item: item[1], role="identity", lead=True),
            Column("rows", "rows", lambda item: item[2]["rows"], whole),
            Column("mean", "mean error", lambda item: item[2]["mean_error"], _SHARE),
            Column("median", "median", lambda item: item[2]["median_error"], _SHARE),
            Column("coverage", "in 80% interval", lambda item: item[2]["coverage"], percent),
        ),
        found,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChart:
    """points: (source, measured, predicted), tokens/s per GPU."""

    key: str
    title: str
    points: tuple[tuple[str, float, float], ...]
    mean: float
    median: float


def prepare(published: Sequence[Asked]) -> tuple[SpeedChart, ...]:
    """Of rows predicted without any of their own."""
    return tuple(
        SpeedChart(
            key=question.key,
            title=f"Predicted and measured speed, {question.key}",
            points=tuple((row.source, row.measured, row.predicted) for row in answer.rows),
            mean=float(found["mean_error"] or 0.0),
            median=float(found["median_error"] or 0.0),
        )
        for question, answer in published
        if question.key == _DRAWN and answer.rows
        for found in (summary(answer.rows),)
    )


def draw(data: SpeedChart) -> Spec:
    names = sorted({source for source, _, _ in data.points})
    rows = [
        {
            "measured": sig(measured),
            "predicted": sig(predicted),
            "series": source,
            "said": f"{source}: {predicted:.4g} predicted, {measured:.4g} measured",
        }
        for source, measured, predicted in data.points
    ]
    every = [value for _, *pair in data.points for value in pair]
    ends = [sig(min(every) / 1.2), sig(max(every) * 1.2)]
    same = [{"measured": end, "predicted": end} for end in ends]
    told = {"color": by_series(names, width=_PLOT), "shape": shape_by_series(names)}
    along = {"y": {"field": "predicted", "type": "quantitative"}}
    return chart(
        data.title,
        [
            layer("line", same, along, color=FAINT, strokeWidth=0.9),
            layer("point", rows, {**along, **told}, filled=True, size=10, opacity=0.7),
        ],
        width=COLUMN,
        height=_PLOT,
        x=log_axis("measured", "measured speed (tokens/s per GPU)", ends),
        y=log_axis("predicted", "predicted speed (tokens/s per GPU)", ends),
    )


def caption(data: SpeedChart) -> str:
    return (
        f"Predicted over measured speed of {counted(len(data.points), 'published run')} by the shipped constants alone; on "
        f"the line the two are equal. Mean error {data.mean:.1%}, median {data.median:.1%}."
    )


VIEW = View(
    key="published",
    title="Published training runs",
    needs=("published",),
    tables=build,
    figures=Figures(needs=("published",), prepare=prepare, chart=draw, caption=caption),
)
