"""What every rank of a pipeline computes, in which order: the orders of torch.distributed.pipelining (torch 2.13).

One function a schedule, from (layout, rank) to actions (kind, stage, micro-batch); kinds as in
:class:`~stepscope.records.pipeline.PipelineSpan`. Idle slots are left out: times alone decide where a rank waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

from stepscope.core.errors import UsageError
from stepscope.records.pipeline import PipelineLayout

Action = tuple[str, int, int]


@lru_cache(maxsize=16)
def pipeline_orders(layout: PipelineLayout) -> tuple[tuple[Action, ...], ...]:
    """The actions of every rank. Raises UsageError where the layout has no such schedule."""
    if layout.problem:
        raise UsageError(layout.problem)
    return tuple(tuple(_ORDERS[layout.schedule](layout, rank)) for rank in range(layout.ranks))


def _gpipe(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    for kind in "FB":
        yield from ((kind, rank, i) for i in range(layout.micro_batches))


def _one_f_one_b(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    warmup = min(layout.micro_batches, layout.ranks - 1 - rank)
    yield from (("F", rank, i) for i in range(warmup))
    for i in range(layout.micro_batches):
        if warmup + i < layout.micro_batches:
            yield "F", rank, warmup + i
        yield "B", rank, i


def _interleaved(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    return _rounds(layout, rank, hops=2, deferred=None)


def _zero_bubble(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    return _rounds(layout, rank, hops=1, deferred=rank)


def _rounds(layout: PipelineLayout, rank: int, *, hops: int, deferred: int | None) -> Iterator[Action]:
    """1F1B over chunks: a round of micro-batches through one chunk, then the same through the next.

    hops: forwards ahead of the first backward, for every rank between this one and the last. deferred: how many backward
    passes later weights' gradients are computed; None: backward passes are whole.
    """
    p, v = layout.ranks, layout.chunks
    a_round = layout.micro_batches // layout.rounds
    total = v * layout.micro_batches
    warmup = min(total, (v - 1) * a_round + hops * (p - 1 - rank))
    counts: Counter[tuple[str, int]] = Counter()

    def action(kind: str, step: int) -> Action:
        chunk = step // a_round % v
        stage = (chunk if kind == "F" else v - 1 - chunk) * p + rank
        counts[kind, stage] += 1
        return kind, stage, counts[kind, stage] - 1

    yield from (action("F", i) for i in range(warmup))
    for i in range(total):
        if warmup + i < total:
            yield action("F", warmup + i)
        yield action("B" if deferred is None else "I", i)
        if deferred is not None and i >= deferred:
            yield action("W", i - deferred)
    yield from (action("W", i) for i in range(max(0, total - (deferred or 0)), total) if deferred)


def _zbv(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Made for at least 2 p - 1 micro-batches; those that a step does not have are left out."""
    for kind, stage, micro_batch in _full_zbv(layout, rank):
        if micro_batch < layout.micro_batches:
            yield kind, stage, micro_batch


def _full_zbv(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    p, m = layout.ranks, max(2 * layout.ranks - 1, layout.micro_batches)
    down, up = rank, layout.stages - 1 - rank
    done: Counter[tuple[str, int]] = Counter()

    def go(kinds: str, stage: int) -> Iterator[Action]:
        for kind in kinds:
            yield kind, stage, done[kind, stage]
            done[kind, stage] += 1

    for _ in range(2 * (p - rank) - 1):
        yield from go("F", down)
    for _ in range(rank):
        yield from go("F", up)
        yield from go("F", down)
    for _ in range(p - rank):
        yield from go("FIW", up)
    while done["F", up] < done["F", down] or done["F", down] < m:
        yield from go("FIW" if done["F", down] < m else "IW", down)
        yield from go("FIW", up)
    for _ in range(rank):
        yield from go("I", down)
        yield from go("I", up)
    for _ in range(p - rank):
        yield from go("IW", down)
    for stage in (up, down):
        while done["W", stage] < done["I", stage]:
            yield from go("W", stage)


_ORDERS: dict[str, Callable[[PipelineLayout, int], Iterator[Action]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
    "zbv": _zbv,
}
