"""MFU or TFLOP/s of a row, recomputed from its speed in the convention that its source names. No model of time in it."""

from __future__ import annotations

from collections import Counter

from stepscope.predict.published.conventions import recomputed
from stepscope.predict.published.grade import Answer, Goal, Question, graded
from stepscope.predict.published.material import FAILED, Material

WITHIN = 0.01


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.unread)
    for row in material.rows:
        if row.failed:
            skipped[FAILED] += 1
            continue
        pair = recomputed(row)
        if isinstance(pair, str):
            skipped[pair] += 1
        else:
            rows.append(graded(row, *pair, fits=False))
    share = {"within_1_percent": sum(row.error <= WITHIN for row in rows) / len(rows)} if rows else {}
    return Answer(rows=tuple(rows), skipped=skipped, extra=share)


QUESTION = Question(
    key="mfu-convention", title="MFU recomputed in the source's own convention", unit="FLOP/s per GPU", ask=ask,
    bars=(Goal(figure="within_1_percent", least=0.95),),
)  # fmt: skip
