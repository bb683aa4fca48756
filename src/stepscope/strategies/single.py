"""One rank, no communication: the baseline that speed-up is measured against."""

from __future__ import annotations

from stepscope.records.plan import CommOp, ModelFacts, Setting
from stepscope.strategies._common import NoOptions, Strategy


def _why_not_single(facts: ModelFacts, setting: Setting, options: NoOptions) -> str | None:
    del facts, options
    if setting.world_size != 1:
        return f"single runs on one rank, not on {setting.world_size}: it does not communicate"
    return None


def _single_comm_plan(facts: ModelFacts, setting: Setting, options: NoOptions) -> tuple[CommOp, ...]:
    del facts, setting, options
    return ()


STRATEGY = Strategy(
    key="single",
    summary="one rank, no communication",
    options=NoOptions,
    requires=_why_not_single,
    comm_plan=_single_comm_plan,
    collective=False,
)
