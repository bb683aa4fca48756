"""The implementations of the strategies; same stems as ``stepscope.strategies``. Each file exports ``open``."""

from collections.abc import Callable
from typing import Any

from torch import nn

from stepscope.core.registry import Registry
from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession, Session

Open = Callable[[nn.Module, Mesh, Any], Session]

__all__ = ["REGISTRY", "Open", "PlainSession", "Session"]

REGISTRY: Registry[Open] = Registry("stepscope.rank.strategies", "open", "strategy", "stepscope.strategies")
