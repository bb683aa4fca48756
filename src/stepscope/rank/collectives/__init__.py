"""The implementations of the collectives; same stems as ``stepscope.collectives``. Each file exports ``build``."""

from collections.abc import Callable

from stepscope.core.registry import Registry
from stepscope.rank.collectives._common import Exchange, Setup

Build = Callable[[Setup], Exchange]

REGISTRY: Registry[Build] = Registry("stepscope.rank.collectives", "build", "collective", "stepscope.collectives")
