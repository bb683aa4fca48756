"""The questions that published rows answer, in the order of the printed table."""

from __future__ import annotations

from stepscope.predict.published.grade import Question
from stepscope.predict.published.questions import collectives_middle, memory, mfu_convention, speeds, sweeps

QUESTIONS: tuple[Question, ...] = (
    speeds.SCALE_OUT,
    speeds.DENSE_RECIPES,
    speeds.NEW_LAYOUT,
    speeds.ZERO_SHOT,
    speeds.FAMILY_FACTOR,
    speeds.MOE_ONE_ROW,
    sweeps.REGRET,
    sweeps.PATHOLOGICAL,
    memory.QUESTION,
    mfu_convention.QUESTION,
    speeds.INTERVAL,
    collectives_middle.QUESTION,
)
