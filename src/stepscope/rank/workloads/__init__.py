"""The modules of the workloads; same stems as ``stepscope.workloads``. Each file exports ``build``.

A key ``python:MODULE:FUNCTION`` is built by that function of the user's.
"""

from stepscope.core.registry import Registry
from stepscope.rank.workloads._common import (
    Build,
    Cuttable,
    Piece,
    Task,
    class_targets,
    class_task,
    default_loss,
    logits_of,
    own_build,
)
from stepscope.workloads import PREFIX

__all__ = ["REGISTRY", "Build", "Cuttable", "Piece", "Task", "class_targets", "class_task", "default_loss", "logits_of"]


class _Modules(Registry[Build]):
    __slots__ = ()

    def load(self, key: str) -> Build:
        return own_build(key) if key.startswith(PREFIX) else Registry.load(self, key)


REGISTRY = _Modules("stepscope.rank.workloads", "build", "workload", "stepscope.workloads")
