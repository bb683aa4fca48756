"""Algorithms of NCCL and RCCL, one file each: what one call costs on a given machine."""

from stepscope.core.registry import Registry
from stepscope.predict.collectives.algorithms._common import Algorithm

REGISTRY: Registry[Algorithm] = Registry("stepscope.predict.collectives.algorithms", "ALGORITHM", "algorithm")
