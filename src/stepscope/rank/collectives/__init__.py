"""The implementations of the collectives; same stems as ``stepscope.collectives``. Each file exports ``build``."""

from collections.abc import Callable

from stepscope.core.registry import Registry
from stepscope.rank.collectives._common import REDUCED, Exchange, Issue, Piece, Setup, Waitable, idle

Build = Callable[[Setup], Exchange]

__all__ = ["REDUCED", "REGISTRY", "Build", "Exchange", "Issue", "Piece", "Setup", "Waitable", "idle"]

REGISTRY: Registry[Build] = Registry("stepscope.rank.collectives", "build", "collective", "stepscope.collectives")
