"""One file per check; each judges one thing from the EnvironmentRecord alone and says how to fix it."""

from stepscope.core.registry import Registry
from stepscope.environment.checks._common import (
    Check,
    Outcome,
    Status,
    failed,
    listed,
    no_gpu_reason,
    passed,
    skipped,
    topology_of,
    warned,
)

__all__ = [
    "REGISTRY",
    "Check",
    "Outcome",
    "Status",
    "failed",
    "listed",
    "no_gpu_reason",
    "passed",
    "skipped",
    "topology_of",
    "warned",
]

REGISTRY: Registry[Check] = Registry("stepscope.environment.checks", "CHECK", "check")
