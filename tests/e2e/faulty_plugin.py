"""A third-party workload, registered through entry points, that fails on demand. The spec half: no torch.

It is ``mlp`` in every other respect, so that nothing in stepscope itself knows about faults.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepscope.records.options import OptionsModel
from stepscope.workloads import Workload, mlp

Kind = Literal[
    "none",
    "raise",
    "exit",
    "quiet_exit",
    "hang",
    "kill",
    "host_oom",
    "watchdog",
    "diverge",
    "cuda_oom",
    "slow",
    "other_size",
    "other_op",
]
MLP = mlp.Options(size="tiny")


class Options(OptionsModel):
    """What goes wrong, on which rank, at which forward pass. width: grows the claimed memory need."""

    kind: Kind = Field(default="none")
    rank: int = Field(default=1, ge=0)
    at: int = Field(default=12, ge=0)
    width: int = Field(default=64, ge=1)


def as_mlp(options: Options) -> mlp.Options:
    return mlp.Options(layers=[options.width])


WORKLOAD = Workload(
    key="faulty",
    summary="fails on demand",
    options=Options,
    needs=lambda options: mlp.needs(as_mlp(options)),
    facts=lambda options, needs, dtype: mlp.facts(as_mlp(options), needs, dtype),
    label=lambda options: f"faulty {options.kind}",
)
