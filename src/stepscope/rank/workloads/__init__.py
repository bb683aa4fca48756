"""The modules of the workloads; same stems as ``stepscope.workloads``. Each file exports ``build``."""

from collections.abc import Callable
from typing import Any

from stepscope.core.registry import Registry
from stepscope.rank.workloads._common import Task
from stepscope.records.plan import InputNeeds

Build = Callable[[Any, InputNeeds, str], Task]  # options, resolved needs, loss (ce | mse)

__all__ = ["REGISTRY", "Build", "Task"]

REGISTRY: Registry[Build] = Registry("stepscope.rank.workloads", "build", "workload", "stepscope.workloads")
