"""Another layout of the same model on the same GPU: one row calibrates, each row in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material, grouped, release
from stepscope.predict.published.questions._speed import in_turn


def family(asked: Asked) -> Hashable:
    row = asked.row
    return row.source, row.hardware, row.model, row.seq_len, asked.layout.precision, row.n_gpus, release(row)


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.not_whole)
    dense = [asked for asked in material.whole if not asked.model.experts]
    for found in grouped(dense, family).values():
        graded = list(in_turn(material, found, "new-layout", apart=True))
        rows += graded
        skipped["no other layout of its model, GPU and number of GPUs"] += len(found) - len(graded)
    skipped["mixture of experts: a question of its own"] += len(material.whole) - len(dense)
    return Answer(rows=tuple(rows), skipped=skipped)


QUESTION = Question(
    key="new-layout", title="new layout, same model and GPU, one calibration row", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="mean_error", most=0.15),), baseline="27%",
)  # fmt: skip
