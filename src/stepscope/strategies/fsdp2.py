"""torch's ``fully_shard`` over all data parallel ranks: parameters, gradients and optimizer state in shards (ZeRO stage 3).

Without ``reshard_after_forward`` parameters stay whole from forward to backward, the counterpart of ZeRO stage 2.
"""

from __future__ import annotations

from stepscope.records.plan import CommOp, MemoryPlan, ModelFacts, Setting
from stepscope.strategies import _sharded
from stepscope.strategies._common import Strategy
from stepscope.strategies._sharded import ShardedOptions


def _requires(facts: ModelFacts, setting: Setting, options: ShardedOptions) -> str | None:
    return _sharded.requires(facts, setting, options, shards=setting.size("dp"))


def _comm_plan(facts: ModelFacts, setting: Setting, options: ShardedOptions) -> tuple[CommOp, ...]:
    return _sharded.comm_plan(facts, setting, options, shards=setting.size("dp"), group="dp")


def _memory_plan(facts: ModelFacts, setting: Setting, options: ShardedOptions) -> MemoryPlan:
    return _sharded.memory_plan(facts, setting, options, shards=setting.size("dp"))


STRATEGY = Strategy(
    key="fsdp2",
    summary="torch fully_shard: parameters, gradients and optimizer state sharded over all ranks",
    options=ShardedOptions,
    requires=_requires,
    comm_plan=_comm_plan,
    memory_plan=_memory_plan,
    tolerance=_sharded.tolerance,
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
