"""The implementations of the strategies; same stems as ``stepscope.strategies``. Each file exports ``open``."""

from typing import Any, Protocol

from torch import nn

from stepscope.core.registry import Registry
from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession, Session
from stepscope.records.plan import ModelFacts


class Open(Protocol):
    """Opens a strategy for a module. facts: the model's spec, for the strategies that divide it."""

    def __call__(self, module: nn.Module, mesh: Mesh, options: Any, facts: ModelFacts | None = None) -> Session: ...


__all__ = ["REGISTRY", "Open", "PlainSession", "Session"]

REGISTRY: Registry[Open] = Registry("stepscope.rank.strategies", "open", "strategy", "stepscope.strategies")
