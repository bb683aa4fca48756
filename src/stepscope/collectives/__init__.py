"""The specs of the collectives, one file each: payload, wire bytes, bus factor, steps. No torch here."""

from stepscope.collectives._common import REDUCE_OPS, Collective
from stepscope.core.registry import Registry

__all__ = ["REDUCE_OPS", "REGISTRY", "Collective"]

REGISTRY: Registry[Collective] = Registry("stepscope.collectives", "COLLECTIVE", "collective")
