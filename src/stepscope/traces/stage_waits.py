"""What pipeline stages wait for each other: each rank's waiting in messages, and the bubble that all of them show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from stepscope.records.trace_budget import StepBudget
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_rules import BackwardPasses, MeasuredBubble, StageShare, StageStep, StageWaits
from stepscope.records.trace_summary import RankPass, common_steps
from stepscope.stats import spans
from stepscope.stats.spans import Spans, median
from stepscope.traces.activity import Activity
from stepscope.traces.events import Category, Events, RankTrace

_FORWARD_CHUNK = re.compile(r"^Forward \d+$")
"""How torch.distributed.pipelining marks the forward pass of one micro-batch in one stage."""


def stage_waits(
    trace: RankTrace,
    activity: Activity,
    steps: Sequence[StepBudget],
    collectives: Sequence[RankCollective],
    passes: BackwardPasses | None,
) -> StageWaits | None:
    """A rank's waiting in messages by step; None where it sends and receives none, or no step is marked."""
    messages = [c for c in collectives if c.op == "send_recv"]
    if not messages or not steps:
        return None
    waits = _exposed(messages, activity)
    receives = _exposed([c for c in messages if c.direction == "recv"], activity)
    marked = np.sort(trace.events.ts_ns[_chunks(trace.events)])
    ran = {s.step: s.backward_passes for s in passes.steps} if passes is not None else {}
    found = []
    for step in steps:
        low, high = step.start_ns, step.start_ns + step.parts.window_ns
        chunks = int(np.searchsorted(marked, high) - np.searchsorted(marked, low))
        found.append(
            StageStep(
                step=step.step,
                window_ns=step.parts.window_ns,
                compute_ns=step.parts.compute_ns,
                message_wait_ns=spans.clip(waits, low=low, high=high).measure,
                receive_wait_ns=spans.clip(receives, low=low, high=high).measure,
                chunks=chunks or ran.get(step.step) or None,
            )
        )
    sizes = {c.group.size for c in messages if c.group is not None}
    return StageWaits(rank=trace.rank, group_size=sizes.pop() if len(sizes) == 1 else None, steps=tuple(found))


def measured_bubble(ranks: Sequence[RankPass]) -> MeasuredBubble | None:
    """The bubble over the common steps of all stages; None unless two ranks or more exchange messages and, as in a
    pipeline without data parallelism, all ranks do."""
    stages = [each.stage_waits for each in ranks if each.stage_waits is not None]
    common = set(common_steps(ranks) or ())
    if len(stages) < 2 or len(stages) < len(ranks) or not common:
        return None
    shares, batches = [], set()
    for each in stages:
        mine = [s for s in each.steps if s.step in common]
        shares.append(
            StageShare(
                rank=each.rank,
                bubble=float(median([s.message_wait_ns / max(1, s.window_ns) for s in mine])),
                compute_ns=float(median([s.compute_ns for s in mine])),
            )
        )
        batches |= {s.chunks for s in mine}
    slowest = max(shares, key=lambda s: s.compute_ns)
    mean = fmean(s.compute_ns for s in shares)
    world = ranks[0].facts.world_size
    count = len(stages) if world in (None, len(stages)) else None
    micro = next(iter(batches)) if len(batches) == 1 else None
    return MeasuredBubble(
        stages=count,
        micro_batches=micro,
        ideal=(count - 1) / (micro + count - 1) if count and micro else None,
        bubble=fmean(s.bubble for s in shares),
        shares=tuple(shares),
        limiting_rank=slowest.rank,
        slowest_over_mean=slowest.compute_ns / mean if mean else 1.0,
        steps=len(common),
    )


def _exposed(messages: Sequence[RankCollective], activity: Activity) -> Spans:
    """When one of these runs and nothing is computed."""
    starts = np.array([c.start_ns for c in messages], dtype=np.int64)
    ends = np.array([c.end_ns for c in messages], dtype=np.int64)
    return spans.subtract(spans.union(starts, ends), activity.compute)


def _chunks(events: Events) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The marks of micro-batches that run forward."""
    named = events.named(lambda n: _FORWARD_CHUNK.match(n) is not None)
    return np.flatnonzero(named & (events.category == Category.USER_ANNOTATION))
