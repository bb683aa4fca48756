"""One file per check; each judges one thing from the EnvironmentRecord alone and says how to fix it."""

from stepscope.core.registry import Registry
from stepscope.environment.checks._common import Check, Outcome, Status, listed, no_gpu_reason, topology_of

__all__ = ["REGISTRY", "Check", "Outcome", "Status", "listed", "no_gpu_reason", "topology_of"]

REGISTRY: Registry[Check] = Registry("stepscope.environment.checks", "CHECK", "check")
