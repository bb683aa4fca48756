"""Flat buckets of gradients, reduced while the backward pass still runs; gradients live in the buckets alone."""

from __future__ import annotations

from pydantic import Field

from stepscope.records.options import OptionsModel
from stepscope.records.plan import CommOp, ModelFacts, Setting
from stepscope.strategies._common import Strategy, all_reduce, bucket_bytes, plan_buckets


class BucketedOptions(OptionsModel):
    """bucket_cap_mb: a bucket closes when it holds this many MiB (2^20 bytes), for every bucket alike."""

    bucket_cap_mb: float = Field(default=25.0, gt=0, allow_inf_nan=False)


def _bucketed_comm_plan(facts: ModelFacts, setting: Setting, options: BucketedOptions) -> tuple[CommOp, ...]:
    buckets = plan_buckets(facts, setting, caps_bytes=[bucket_bytes(options.bucket_cap_mb)])
    return tuple(all_reduce(bucket, phase="backward") for bucket in buckets)


STRATEGY = Strategy(
    key="bucketed",
    summary="our own overlapped flat buckets in reverse order of use, no copy of the gradients",
    options=BucketedOptions,
    comm_plan=_bucketed_comm_plan,
    min_warmup_steps=lambda _: 1,  # the first step learns the order in which gradients become ready
    # several buckets, one parameter each, everything in one bucket (for a conformance model of a few KiB)
    variants=({"bucket_cap_mb": 0.002}, {"bucket_cap_mb": 1e-6}, {}),
)
