"""torch's ``fully_shard`` over all data parallel ranks: parameters, gradients and optimizer state in shards (ZeRO stage 3).

Without ``reshard_after_forward`` parameters stay whole from forward to backward, the counterpart of ZeRO stage 2.
"""

from __future__ import annotations

from functools import partial

from stepscope.strategies import _common
from stepscope.strategies._common import ShardedOptions, Strategy

STRATEGY = Strategy(
    key="fsdp2",
    summary="torch fully_shard: parameters, gradients and optimizer state sharded over all ranks",
    options=ShardedOptions,
    requires=partial(_common.requires, group="dp"),
    comm_plan=partial(_common.comm_plan, group="dp"),
    memory_plan=partial(_common.memory_plan, group="dp"),
    tolerance=_common.tolerance,
    sharded=True,
    torch="2.6",  # torch.distributed.fsdp.fully_shard
    variants=(
        {},
        {"reshard_after_forward": False},
        {"reshard_after_forward": 2},
        {"blocks_per_unit": 2},
        {"blocks_per_unit": 0},
        {"forward_prefetch": 1, "backward_prefetch": 2},
        {"param_dtype": "bf16", "reduce_dtype": "fp32"},
    ),
)
