"""The fastest layout by prediction among those of a sweep: how much slower it is than the one measured fastest."""

from __future__ import annotations

from stepscope.predict.published.fitted import fitted_on
from stepscope.predict.published.grade import Answer, Bar, Graded, Question
from stepscope.predict.published.material import Material, speed


def ask(material: Material) -> Answer:
    rows = []
    for key, found in material.sweeps.items():
        if len({asked.layout for asked in found}) == len({asked.layout.gpus for asked in found}):
            continue
        chosen = max(found, key=material.speed)
        best = material.best[key]
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
    return Answer(rows=tuple(rows))


QUESTION = Question(
    key="regret", title="recommended layout's regret on the sweeps", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="mean_error", most=0.08),), baseline="29%",
)  # fmt: skip
