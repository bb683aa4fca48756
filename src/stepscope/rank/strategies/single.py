"""One rank, no communication."""

from __future__ import annotations

from torch import nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession, Session
from stepscope.records.plan import ModelFacts
from stepscope.strategies import NoOptions


def open(module: nn.Module, mesh: Mesh, options: NoOptions, facts: ModelFacts | None = None) -> Session:  # noqa: A001, ARG001
    """Train ``module`` alone."""
    return PlainSession(module)
