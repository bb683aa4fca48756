"""The checks, a file for each section; each judges one thing from the EnvironmentRecord alone and says how to fix it."""

from stepscope.core.registry import Registry
from stepscope.environment.checks import environment, gpus, launcher, links, network  # noqa: F401 - fill the table
from stepscope.environment.judging import CHECKS, Check

REGISTRY: Registry[Check] = Registry("stepscope.environment.checks", "CHECK", "check", table=CHECKS)
