"""What every strategy promises, and the plans that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.config.options import OptionsModel
from stepscope.records.plan import CommOp, MemoryPlan, ModelFacts, Setting


class NoOptions(OptionsModel):
    """A strategy without options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy's promise.

    requires(facts, setting, options): None when it can run there, else the reason it cannot.
    comm_plan(facts, setting, options): the collectives of one optimizer step in steady state, in launch order.
    memory_plan(facts, setting, options): bytes per rank.
    tolerance(options): largest norm-wise relative error of the gradients it may make (0: exact arithmetic
    up to the order of additions).
    min_warmup_steps(options): steps that must pass before a step is typical (bucket rebuild, PowerSGD start).
    """

    key: str
    summary: str
    options: type[OptionsModel]
    requires: Callable[[ModelFacts, Setting, Any], str | None]
    comm_plan: Callable[[ModelFacts, Setting, Any], tuple[CommOp, ...]]
    memory_plan: Callable[[ModelFacts, Setting, Any], MemoryPlan]
    tolerance: Callable[[Any], float] = lambda options: 0.0
    min_warmup_steps: Callable[[Any], int] = lambda options: 1
    collective: bool = True  # False: runs on one rank only
