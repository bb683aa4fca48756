"""An asynchronous all-reduce for each parameter, launched the moment its gradient is ready."""

from __future__ import annotations

from stepscope.records.plan import CommOp, MemoryPlan, ModelFacts, Setting
from stepscope.strategies._common import NoOptions, Strategy, all_reduce, memory, ready_order, runs_anywhere


def _comm_plan(facts: ModelFacts, setting: Setting, options: NoOptions) -> tuple[CommOp, ...]:
    del options
    order = ready_order(facts, setting)
    return tuple(all_reduce((facts.parameters[i],), phase="backward") for i in order)


def _memory_plan(facts: ModelFacts, setting: Setting, options: NoOptions) -> MemoryPlan:
    del options
    return memory(facts, setting)


STRATEGY = Strategy(
    key="interleaved",
    summary="asynchronous all-reduce per parameter, launched during the backward pass",
    options=NoOptions,
    requires=runs_anywhere,
    comm_plan=_comm_plan,
    memory_plan=_memory_plan,
)
