"""One file per check; each judges one thing from the EnvironmentRecord alone and says how to fix it."""

from stepscope.core.registry import Registry
from stepscope.environment.checks._common import Check

REGISTRY: Registry[Check] = Registry("stepscope.environment.checks", "CHECK", "check")
