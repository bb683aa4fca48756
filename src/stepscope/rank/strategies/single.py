"""One rank, no communication."""

from __future__ import annotations

from torch import nn

from stepscope.rank.mesh import Mesh
from stepscope.rank.strategies._common import PlainSession, Session
from stepscope.strategies import NoOptions


def open(module: nn.Module, mesh: Mesh, options: NoOptions) -> Session:  # noqa: A001
    """Train ``module`` alone."""
    del mesh, options
    return PlainSession(module)
