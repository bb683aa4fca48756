"""Mixtures of experts: one row of the model on the GPU calibrates the others, each row in turn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material, grouped
from stepscope.predict.published.questions._speed import in_turn


def family(asked: Asked) -> Hashable:
    row = asked.row
    return row.source, row.accelerator, re.sub(r"\s*[(\[].*", "", row.model)


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.not_near)
    mixtures = [asked for asked in material.near if asked.model.experts]
    skipped["dense"] += len(material.near) - len(mixtures)
    for found in grouped(mixtures, family).values():
        graded = list(in_turn(material, found, "one-row", apart=False))
        rows += graded
        skipped["no other row of its model and GPU"] += len(found) - len(graded)
    return Answer(rows=tuple(rows), skipped=skipped)


QUESTION = Question(
    key="moe-one-row", title="mixture of experts, one calibration row", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="mean_error", most=0.18),), baseline="26-31%",
)  # fmt: skip
