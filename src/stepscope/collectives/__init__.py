"""The specs of the collectives: payload, wire bytes, bus factor, steps. No torch here."""

from stepscope.collectives.table import REDUCE_OPS, TABLE, Collective
from stepscope.core.registry import Registry

__all__ = ["REDUCE_OPS", "REGISTRY", "Collective"]

REGISTRY: Registry[Collective] = Registry("stepscope.collectives", "COLLECTIVE", "collective", table=TABLE)
