"""Hybrid sharding: torch's ``fully_shard`` within groups of ranks, and replicas of the groups.

``mesh: {dp_replicate: 2, dp_shard: 4}``: a gather stays within a group, such as the GPUs of a host; what crosses the
groups is one all-reduce of the reduced shards.
"""

from __future__ import annotations

from functools import partial

from stepscope.records.plan import ModelFacts, Setting
from stepscope.strategies import _common
from stepscope.strategies._common import ShardedOptions, Strategy


def _why_no_hsdp(facts: ModelFacts, setting: Setting, options: ShardedOptions) -> str | None:
    if min(setting.size("dp_replicate"), setting.size("dp_shard")) < 2:
        fits = [
            f"{{dp_replicate: {n}, dp_shard: {setting.world_size // n}}}" for n in _proper_factors(setting.world_size)
        ]
        return f"hsdp needs a mesh of dp_replicate x dp_shard: {' or '.join(fits) or 'at least 4 ranks'}"
    return _common.requires(facts, setting, options, group="dp_shard")


def _proper_factors(world_size: int) -> list[int]:
    return [n for n in range(2, world_size // 2 + 1) if world_size % n == 0]


STRATEGY = Strategy(
    key="hsdp",
    summary="torch fully_shard within groups of ranks, replicated over the groups",
    options=ShardedOptions,
    requires=_why_no_hsdp,
    comm_plan=partial(_common.comm_plan, group="dp_shard", replicated="dp_replicate"),
    memory_plan=partial(_common.memory_plan, group="dp_shard"),
    tolerance=_common.tolerance,
    sharded=True,
    torch="2.6",  # torch.distributed.fsdp.fully_shard
    dimensions=frozenset({"dp_replicate", "dp_shard"}),
    variants=({}, {"reshard_after_forward": False}),
)
