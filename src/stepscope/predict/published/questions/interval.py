"""How often the stated 80% intervals of predicted speeds hold the measured one, over all questions about speed."""

from __future__ import annotations

from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material
from stepscope.predict.published.questions import (
    dense_recipes,
    family_factor,
    moe_one_row,
    new_layout,
    scale_out,
    zero_shot,
)

_OF = (scale_out, dense_recipes, new_layout, zero_shot, family_factor, moe_one_row)


def ask(material: Material) -> Answer:
    return Answer(rows=tuple(row for module in _OF for row in module.ask(material).rows if row.covered is not None))


QUESTION = Question(
    key="interval", title="stated 80% intervals hold the measured speed", unit="tokens/s per GPU", ask=ask,
    bars=(Bar(figure="coverage", least=0.70, most=0.90),),
)  # fmt: skip
