"""An asynchronous all-reduce for each parameter, launched the moment its gradient is ready."""

from __future__ import annotations

from stepscope.records.plan import CommOp, ModelFacts, Setting
from stepscope.strategies._common import NoOptions, Strategy, all_reduce, ready_order


def _interleaved_comm_plan(facts: ModelFacts, setting: Setting, options: NoOptions) -> tuple[CommOp, ...]:
    del options
    order = ready_order(facts, setting)
    return tuple(all_reduce((facts.parameters[i],), phase="backward") for i in order)


STRATEGY = Strategy(
    key="interleaved",
    summary="asynchronous all-reduce per parameter, launched during the backward pass",
    options=NoOptions,
    comm_plan=_interleaved_comm_plan,
)
