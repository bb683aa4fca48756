"""Speed with one more factor per GPU family, fitted on the development rows of that family."""

from __future__ import annotations

from collections import Counter

from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material
from stepscope.predict.published.questions._speed import judge, kind_of
from stepscope.predict.step.fitted import FAMILY_FACTOR, gpu_family


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.not_whole)
    for asked in material.whole:
        factor = FAMILY_FACTOR.get(gpu_family(asked.gpu))
        if factor is None:
            skipped[f"no development row of {gpu_family(asked.gpu)}"] += 1
        else:
            rows.append(judge(material, asked, 1 / factor, kind_of(asked, "family"), alone=True))
    return Answer(rows=tuple(rows), skipped=skipped)


QUESTION = Question(
    key="family-factor", title="one factor per GPU family, fitted on development rows only", unit="tokens/s per GPU",
    ask=ask, bars=(Bar(figure="mean_error", most=0.17),), baseline="33%",
)  # fmt: skip
