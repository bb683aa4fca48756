"""The checks, a file for each section; each judges one thing from the EnvironmentRecord alone and says how to fix it."""

from stepscope.core.registry import Registry
from stepscope.machine.checks import environment, gpus, launcher, links, network  # noqa: F401 - fill the table
from stepscope.machine.judging import CHECKS, Check

REGISTRY: Registry[Check] = Registry("stepscope.machine.checks", "CHECK", "check", table=CHECKS)
