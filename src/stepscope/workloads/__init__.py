"""The specs of the model families: options, FLOP, ordered parameters. No torch.

One file per family; the implementation (the module) lies under ``rank/workloads`` with the same stem. A key
``python:MODULE:FUNCTION`` is a model of the user's.
"""

from stepscope.workloads._common import (
    IMPLIED,
    PREFIX,
    Arguments,
    TransformerOptions,
    Workload,
    Workloads,
    linear,
    model_facts,
    own_names,
    piece,
)

__all__ = [
    "IMPLIED",
    "PREFIX",
    "REGISTRY",
    "Arguments",
    "TransformerOptions",
    "Workload",
    "linear",
    "model_facts",
    "own_names",
    "piece",
]

REGISTRY = Workloads("stepscope.workloads", "WORKLOAD", "workload")
