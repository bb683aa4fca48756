"""Collectives of 64 KiB to 16 MiB, as ``predict --collective`` has them."""

from __future__ import annotations

import re
from collections import Counter

from stepscope.predict.collectives.measured import read_measured_tables
from stepscope.predict.collectives.measured_rows import Given
from stepscope.predict.collectives.validate import SIZE_CLASSES, validate
from stepscope.predict.published.fitted import fitted_on_collectives
from stepscope.predict.published.grade import Answer, Goal, Graded, Question
from stepscope.predict.published.material import Material

MIDDLE = SIZE_CLASSES[1][0]


def ask(material: Material) -> Answer:
    if not list(material.folder.glob("collectives_*.csv")):
        return Answer(rows=())
    rows, unread = read_measured_tables(material.folder, Given())
    compared = validate(rows).compared
    found = [one for one in compared if one.size_class == MIDDLE]
    skipped = Counter({"smaller or larger": len(compared) - len(found)})
    for text in unread:
        reason = re.fullmatch(r"\S+\.csv: (.*) \((\d+)\)", text)
        skipped[reason[1] if reason else text] += int(reason[2]) if reason else 1
    return Answer(
        skipped=+skipped,
        rows=tuple(
            Graded(
                source=one.row.source,
                row_id=f"{one.row.op} {one.row.size_bytes}",
                predicted=one.predicted.time_ns,
                measured=one.row.time_ns,
                error=abs(one.relative_error),
                covered=float(one.covered),
                fitted=fitted_on_collectives(one.row.source),
            )
            for one in found
        ),
    )


QUESTION = Question(
    key="collectives-middle", title="collectives of 64 KiB to 16 MiB", unit="ns", ask=ask,
    bars=(Goal(figure="median_error", most=0.15), Goal(figure="coverage", least=0.75, most=0.90)),
    baseline="15%; 87%",
)  # fmt: skip
