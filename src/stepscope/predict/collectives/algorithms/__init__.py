"""Algorithms of NCCL and RCCL, one file each: what one call costs on a given machine."""

from stepscope.core.registry import Registry
from stepscope.predict.collectives.algorithms._common import Algorithm, Candidate, collective

__all__ = ["REGISTRY", "Algorithm", "Candidate", "collective"]

REGISTRY: Registry[Algorithm] = Registry("stepscope.predict.collectives.algorithms", "ALGORITHM", "algorithm")
