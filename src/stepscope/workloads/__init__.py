"""The specs of the model families: options, FLOP, ordered parameters. No torch.

One file per family; the implementation (the module) lies under ``rank/workloads`` with the same stem.
"""

from stepscope.core.registry import Registry
from stepscope.workloads._common import TransformerOptions, Workload

__all__ = ["REGISTRY", "TransformerOptions", "Workload"]

REGISTRY: Registry[Workload] = Registry("stepscope.workloads", "WORKLOAD", "workload")
