"""The specs of the data-parallel strategies: options, requirements, communication and memory plan.

One file per strategy; the implementation lies under ``rank/strategies`` with the same stem. No torch here.
"""

from stepscope.core.registry import Registry
from stepscope.strategies._common import (
    MIB,
    NARROW,
    NoOptions,
    ShardedOptions,
    Strategy,
    all_of,
    assign_buckets,
    bucket_bytes,
    memory,
)

__all__ = [
    "MIB",
    "NARROW",
    "REGISTRY",
    "NoOptions",
    "ShardedOptions",
    "Strategy",
    "all_of",
    "assign_buckets",
    "bucket_bytes",
    "memory",
]

REGISTRY: Registry[Strategy] = Registry("stepscope.strategies", "STRATEGY", "strategy")
