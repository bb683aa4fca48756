"""The questions that published rows answer, in the order of the printed table. One file each: ``QUESTION``."""

from __future__ import annotations

from stepscope.predict.published.grade import Question
from stepscope.predict.published.questions import (
    collectives_middle,
    dense_recipes,
    family_factor,
    interval,
    memory,
    mfu_convention,
    moe_one_row,
    new_layout,
    pathological,
    regret,
    scale_out,
    zero_shot,
)

QUESTIONS: tuple[Question, ...] = (
    scale_out.QUESTION,
    dense_recipes.QUESTION,
    new_layout.QUESTION,
    zero_shot.QUESTION,
    family_factor.QUESTION,
    moe_one_row.QUESTION,
    regret.QUESTION,
    pathological.QUESTION,
    memory.QUESTION,
    mfu_convention.QUESTION,
    interval.QUESTION,
    collectives_middle.QUESTION,
)
