"""The whole backward pass first, then one blocking all-reduce after the other: nothing overlaps."""

from __future__ import annotations

from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, ModelFacts, Setting
from stepscope.strategies._common import Strategy, all_reduce, by_dtype


class NaiveOptions(OptionsModel):
    """flat: all gradients in one all-reduce (per dtype) instead of one for each parameter; they live in the flat tensor."""

    flat: bool = False


def _naive_comm_plan(facts: ModelFacts, setting: Setting, options: NaiveOptions) -> tuple[CommOp, ...]:
    del setting
    groups = by_dtype(facts.parameters) if options.flat else ((p,) for p in facts.parameters)
    return tuple(all_reduce(group, phase="after_backward") for group in groups)


STRATEGY = Strategy(
    key="naive",
    summary="full backward pass, then a blocking all-reduce per gradient",
    options=NaiveOptions,
    comm_plan=_naive_comm_plan,
    variants=({}, {"flat": True}),
)
