"""The fastest layout by prediction among those of a sweep with one global batch: how far from the one measured fastest."""

from __future__ import annotations

from collections import Counter

from stepscope.predict.published.fitted import fitted_on
from stepscope.predict.published.grade import Answer, Bar, Graded, Question
from stepscope.predict.published.material import Material, speed


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.unasked)
    skipped["not of a sweep"] += len(material.timed) - sum(len(sweep) for sweep in material.sweeps.values())
    for sweep in material.sweeps.values():
        batch = Counter(asked.layout.global_batch for asked in sweep).most_common(1)[0][0]
        found = [asked for asked in sweep if asked.layout.global_batch == batch]
        skipped["another global batch than most of its sweep"] += len(sweep) - len(found)
        chosen = max(found, key=material.speed)
        best = max(speed(asked) for asked in found)
        rows.append(
            Graded(
                source=chosen.row.source,
                row_id=chosen.row.row_id,
                predicted=speed(chosen),
                measured=best,
                error=1 - speed(chosen) / best,
                fitted=fitted_on(chosen.row),
            )
        )
    return Answer(rows=tuple(rows), skipped=skipped)


QUESTION = Question(
    key="regret", title="recommended layout's regret on the sweeps", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="mean_error", most=0.08),), baseline="29%",
)  # fmt: skip
