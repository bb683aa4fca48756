"""Speed with the shipped constants alone: no row of the model, layout or cluster is given."""

from __future__ import annotations

from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material
from stepscope.predict.published.questions._speed import judge, kind_of


def ask(material: Material) -> Answer:
    rows = tuple(judge(material, asked, 1.0, kind_of(asked, "zero-shot"), alone=True) for asked in material.whole)
    return Answer(rows=rows, skipped=material.not_whole)


QUESTION = Question(
    key="zero-shot", title="zero-shot, rows with a full configuration", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="mean_error", most=0.22), Bar(figure="median_error", most=0.14)), baseline="50% / 32%",
)  # fmt: skip
