"""The implementations of the collectives of ``stepscope.collectives``."""

from stepscope.core.registry import Registry
from stepscope.rank.collectives.exchange import REDUCED, Exchange, Issue, Setup, Stretch, Waitable, idle
from stepscope.rank.collectives.table import TABLE, Build

__all__ = ["REDUCED", "REGISTRY", "Build", "Exchange", "Issue", "Setup", "Stretch", "Waitable", "idle"]

REGISTRY: Registry[Build] = Registry(
    "stepscope.rank.collectives", "build", "collective", "stepscope.collectives", TABLE
)
