"""Each collective of a job split into transfer and waiting, on aligned clocks, with its bandwidth.

What pipeline stages wait for each other: each rank's waiting in messages, and the bubble that all of them show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from stepscope.core.bus_factor import OF_WHOLE_BUFFERS, one
from stepscope.records.trace_collectives import (
    CollectiveGroup,
    Instance,
    JobCollectives,
    MatchedCollective,
    RankCollective,
    RankCommunication,
    RankWaiting,
)
from stepscope.records.trace_rules import BackwardPasses, MeasuredBubble, StageShare, StageStep, StageWaits
from stepscope.records.trace_summary import RankPass, common_steps
from stepscope.stats import spans
from stepscope.stats.spans import median
from stepscope.traces.activity import activity_of
from stepscope.traces.alignment import AGREE_NS, align_clocks, corrected
from stepscope.traces.collective_calls import TOGETHER
from stepscope.traces.collectives import communication
from stepscope.traces.events import Category, RankView, column
from stepscope.traces.matching import match_collectives
from stepscope.traces.steps import step_budgets
from stepscope.traces.waits import wait_totals

IMPOSSIBLE = 0.3
"""What is left of a match's confidence when one rank left before another entered, beyond the clocks' residual."""

SPLIT_FROM = 0.25
"""Matches less certain than this say nothing about who waited for whom."""


APART = "a rank left it before another entered: the calls are not one, or the clocks do not agree"

MESSAGE = "ranks do not leave send_recv together"
"""Why a message is not split whose sender or receiver is not recorded."""


def job_collectives(ranks: Sequence[RankCommunication]) -> JobCollectives:
    """Match, align and measure the collectives of all ranks whose traces were given: every instance with its split, in order
    of time on the reference clock."""
    instances = match_collectives(ranks)
    clocks = align_clocks(ranks, instances)
    look = {r.rank: r for r in ranks}
    fits = {f.rank: f for f in clocks.fits}
    residual = max((f.residual_ns or 0.0 for f in clocks.fits), default=0.0)

    def on_reference(rank: int, time_ns: int) -> int:
        return corrected(fits[rank], time_ns)

    matched = [_measured_match(i, look, on_reference, tolerance_ns=3 * residual) for i in instances]
    matched.sort(key=lambda m: (m.start_ns, m.ranks[0].rank))
    if 2 * sum(m.unsplit == APART for m in matched) > sum(m.op in TOGETHER and len(m.ranks) > 1 for m in matched):
        clocks = replace(clocks, text="clocks do not agree, or the calls were matched wrongly")
    return JobCollectives(
        instances=tuple(matched),
        clocks=clocks,
        totals=wait_totals(matched, look),
        notes=tuple(_matching_notes(matched, ranks)),
    )


def _measured_match(
    instance: Instance,
    look: Mapping[int, RankCommunication],
    on_reference: Callable[[int, int], int],
    *,
    tolerance_ns: float,
) -> MatchedCollective:
    """Return a matched collective with its waiting, transfer and skew, ns, on the reference's clock, or why they are not
    split."""
    members = instance.members
    parts = [(m.rank, look[m.rank].collectives[m.position]) for m in members]
    calls = [c for _, c in parts]
    starts = [on_reference(r, c.start_ns) for r, c in parts]
    ends = [on_reference(r, c.end_ns) for r, c in parts]
    op = next((c.op for c in calls if c.op != "unknown"), "unknown")

    def first_of(name: str) -> Any:
        return next((value for c in calls if (value := getattr(c, name)) is not None), None)

    group: CollectiveGroup | None = first_of("group")
    world = next((look[r].world_size for r, _ in parts), None)
    group_size = first_of("group_size") or (group.size if group else None)
    if group is None and group_size is None and world == len(parts):
        group_size = world  # nothing names the group, and all ranks were seen to take part
    last, first = max(starts), min(starts)
    between = min(ends) - last
    confidence = instance.confidence
    # Clocks that differ by more than a whole call do not tell who waited in it, however well their mean is known.
    tolerance_ns = min(tolerance_ns, max(AGREE_NS, *(c.duration_ns for c in calls)))
    impossible = op in TOGETHER and between < -tolerance_ns
    if confidence is not None and impossible:
        confidence *= IMPOSSIBLE
    unsplit = _why_unsplit(op, len(parts), confidence, impossible=impossible)
    split = unsplit is None
    waits = [min(last, e) - s for s, e in zip(starts, ends, strict=True)]  # no longer than it was inside
    lasts = tuple(r for (r, _), w in zip(parts, waits, strict=True) if w == 0) if last > first else ()
    transfer = max(between, 0) if split else None
    message = _message_waits_and_transfer_ns(calls, starts, ends) if unsplit == MESSAGE else None
    if message is not None:
        waits, transfer, unsplit = *message, None
    size = max((c.size_bytes for c in calls if c.size_bytes is not None), default=None)
    # Where waiting is not known, the longest duration holds it: a lower bound.
    basis, took = ("duration", max(c.duration_ns for c in calls)) if transfer is None else ("transfer", transfer)
    algbw = size / (took / 1e9) if size and took else None
    factor = _bus_factor(op, group_size)
    return MatchedCollective(
        op=op,
        size_bytes=size,
        dtype=first_of("dtype"),
        group=group,
        group_size=group_size,
        sequence=first_of("sequence"),
        step=first_of("step"),
        start_ns=first,
        ranks=tuple(
            RankWaiting(
                rank=m.rank,
                position=m.position,
                start_ns=s,
                end_ns=e,
                waiting_ns=w if transfer is not None else None,
                exposed_ns=c.exposed_ns,
            )
            for m, c, s, e, w in zip(members, calls, starts, ends, waits, strict=True)
        ),
        complete=message is not None or group_size == len(parts),
        transfer_ns=transfer,
        waiting_ns=sum(waits) if transfer is not None else None,
        skew_ns=last - first if split else None,
        end_skew_ns=max(ends) - min(ends) if split else None,
        last_rank=lasts[0] if split and lasts else None,
        last_ranks=lasts if split else (),
        lead_ns=last - sorted(starts)[-2] if split else None,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=None if algbw is None or factor is None else algbw * factor,
        bandwidth_basis=basis if algbw is not None else None,
        exposed_ns=sum(c.exposed_ns for c in calls),
        match_method=instance.method,
        match_confidence=confidence,
        unsplit=unsplit,
    )


def _message_waits_and_transfer_ns(
    calls: Sequence[RankCollective], starts: Sequence[int], ends: Sequence[int]
) -> tuple[list[int], int] | None:
    """Return how long each side of a message waits for the other, and the transfer, ns; None where a side is missing.

    The receiver waits until the sender begins. The sender waits for the receiver only where it cannot leave without it: it
    is still there when the receiver begins.
    """
    sides = [c.direction for c in calls]
    if sorted(str(side) for side in sides) != ["recv", "send"] or calls[0].peers is None:
        return None
    to, of = sides.index("recv"), sides.index("send")
    met = max(starts)
    waits = [0, 0]
    waits[to] = min(max(starts[of] - starts[to], 0), ends[to] - starts[to])
    waits[of] = max(starts[to] - starts[of], 0) if ends[of] > starts[to] else 0
    return waits, max(ends[to] - met, 0)


def _bus_factor(op: str, ranks: int | None) -> float | None:
    """busbw / algbw; None for an unknown op, and without ``ranks`` where it depends on them."""
    factor = OF_WHOLE_BUFFERS.get(op)
    if factor is None or (ranks is None and factor is not one):
        return None
    return factor(ranks or 1)


def _why_unsplit(op: str, ranks: int, confidence: float | None, *, impossible: bool) -> str | None:
    """Say why waiting and transfer are not told apart; None: they are."""
    if ranks < 2:
        return "seen on one rank only"
    if op == "send_recv":
        return MESSAGE
    if op not in TOGETHER:
        return f"ranks do not leave {'an unknown operation' if op == 'unknown' else op} together"
    if confidence is not None and confidence < SPLIT_FROM:
        return "the ranks' collectives could not be matched reliably"
    if impossible:
        return APART
    return None


def _matching_notes(matched: Sequence[MatchedCollective], ranks: Sequence[RankCommunication]) -> list[str]:
    """Return notes on collectives that were seen on one rank alone, lack ranks, or were matched with doubt."""
    notes = []
    if len(ranks) > 1 and matched:
        alone = sum(len(m.ranks) == 1 != m.group_size for m in matched)
        if alone:
            notes.append(f"{alone:,} of {len(matched):,} collectives were seen on one rank only")
        partial = sum(not m.complete for m in matched if m.waiting_ns is not None)
        if partial:
            notes.append(f"{partial:,} collectives lack ranks: their transfer is an upper, their waiting a lower bound")
        unsure = sum(m.unsplit is not None and m.unsplit.startswith("the ranks'") for m in matched)
        if unsure:
            notes.append(f"{unsure:,} uncertain matches were not split")
    silent = [r.rank for r in ranks if not r.collectives]
    if silent and len(silent) < len(ranks):
        notes.append(f"no collectives on ranks {', '.join(map(str, silent[:8]))}")
    return notes


_FORWARD_CHUNK = re.compile(r"^Forward \d+$")
"""How torch.distributed.pipelining marks the forward pass of one micro-batch in one stage."""


def stage_waits(view: RankView, passes: BackwardPasses | None) -> StageWaits | None:
    """A rank's waiting in messages by step; None where it sends and receives none, or no step is marked."""
    messages = [c for c in communication(view).collectives if c.op == "send_recv"]
    if not messages or not step_budgets(view):
        return None
    waits, receives = (
        spans.subtract(spans.union(column(sent, "start_ns"), column(sent, "end_ns")), activity_of(view).compute)
        for sent in (messages, [c for c in messages if c.direction == "recv"])
    )
    chunk = view.events.named(lambda n: _FORWARD_CHUNK.match(n) is not None)
    marked = np.sort(view.events.ts_ns[chunk & (view.events.category == Category.USER_ANNOTATION)])
    ran = {s.step: s.backward_passes for s in passes.steps} if passes is not None else {}
    stage_steps = []
    for step in step_budgets(view):
        low, high = step.start_ns, step.start_ns + step.parts.window_ns
        chunks = int(np.searchsorted(marked, high) - np.searchsorted(marked, low))
        stage_steps.append(
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
    return StageWaits(rank=view.rank, group_size=sizes.pop() if len(sizes) == 1 else None, steps=tuple(stage_steps))


def measured_bubble(ranks: Sequence[RankPass]) -> MeasuredBubble | None:
    """The bubble over the common steps of all stages; None unless two ranks or more exchange messages and, as in a
    pipeline without data parallelism, all ranks do."""
    stages = [rank.stage_waits for rank in ranks if rank.stage_waits is not None]
    common = set(common_steps(ranks) or ())
    if len(stages) < 2 or len(stages) < len(ranks) or not common:
        return None
    shares, batches = [], set()
    for stage in stages:
        own_steps = [s for s in stage.steps if s.step in common]
        shares.append(
            StageShare(
                rank=stage.rank,
                bubble=float(median([s.message_wait_ns / max(1, s.window_ns) for s in own_steps])),
                compute_ns=float(median([s.compute_ns for s in own_steps])),
            )
        )
        batches |= {s.chunks for s in own_steps}
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
