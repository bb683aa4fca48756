"""The specs of the collectives, one file each: payload, wire bytes, bus factor, steps. No torch here."""

from stepscope.collectives._common import Collective
from stepscope.core.registry import Registry

REGISTRY: Registry[Collective] = Registry("stepscope.collectives", "COLLECTIVE", "collective")
