"""More GPUs: the smallest run of a family and layout calibrates, the larger ones are predicted."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material, grouped, layout_of, release
from stepscope.predict.published.questions._speed import doublings, judge, taught


def family(asked: Asked) -> Hashable:
    """The same job on other numbers of GPUs: model, machine, precision, parallel sizes except dp, micro-batch."""
    row = asked.row
    return (
        row.source, row.hardware, row.model, row.seq_len, row.precision, release(row), asked.model.layers,
        layout_of(asked),
    )  # fmt: skip


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.not_near)
    for found in grouped(material.near, family).values():
        least = min(asked.layout.gpus for asked in found)
        small = [asked for asked in found if asked.layout.gpus == least]
        factor = statistics.median(taught(material, asked) for asked in small)
        larger = [asked for asked in found if asked.layout.gpus > least]
        rows += [judge(material, asked, factor, "scale-out", doublings=doublings(asked, small[0])) for asked in larger]
        skipped["calibrates, or nothing larger of its family"] += len(found) - len(larger)
    return Answer(rows=tuple(rows), skipped=skipped)


QUESTION = Question(
    key="scale-out", title="scale-out from the smallest run of a family and layout", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="mean_error", most=0.09), Bar(figure="median_error", most=0.03)), baseline="17% / 4%",
)  # fmt: skip
