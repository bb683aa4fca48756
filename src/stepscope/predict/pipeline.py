"""When every rank of a pipeline computes what, from the times of its stages and of the messages between them.

Each rank works through the order of torch.distributed.pipelining (torch 2.13); a forward waits for the stage before, a
backward for the stage after. Messages travel beside computation, one at a time between two ranks in one direction;
where the two directions take turns, one at a time; where ranks meet for them, none before its receiver is idle.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.records.mesh import PipelineLayout, PipelineSpan

Action = tuple[str, int, int]


@lru_cache(maxsize=16)
def pipeline_orders(layout: PipelineLayout) -> tuple[tuple[Action, ...], ...]:
    """The actions of every rank. Raises UsageError where the layout has no such schedule."""
    if layout.problem:
        raise UsageError(layout.problem)
    return tuple(tuple(_ORDERS[layout.schedule](layout, rank)) for rank in range(layout.ranks))


def _gpipe_actions(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    for kind in "FB":
        yield from ((kind, rank, i) for i in range(layout.micro_batches))


def _one_f_one_b_actions(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield the actions of 1F1B: some forwards, then one backward for each forward."""
    warmup = min(layout.micro_batches, layout.ranks - 1 - rank)
    yield from (("F", rank, i) for i in range(warmup))
    for i in range(layout.micro_batches):
        if warmup + i < layout.micro_batches:
            yield "F", rank, warmup + i
        yield "B", rank, i


def _round_actions(layout: PipelineLayout, rank: int, *, hops: int, deferred: int | None = None) -> Iterator[Action]:
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


def _zbv_actions(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield the actions for at least 2 p - 1 micro-batches; those that a step does not have are left out."""
    for kind, stage, micro_batch in _full_zbv_actions(layout, rank):
        if micro_batch < layout.micro_batches:
            yield kind, stage, micro_batch


def _full_zbv_actions(layout: PipelineLayout, rank: int) -> Iterator[Action]:
    """Yield the actions of ZB-V for a full schedule."""
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
    "gpipe": _gpipe_actions,
    "1f1b": _one_f_one_b_actions,
    "interleaved": partial(_round_actions, hops=2),
    "zero_bubble": lambda layout, rank: _round_actions(layout, rank, hops=1, deferred=rank),
    "zbv": _zbv_actions,
}


KINDS = "FBIW"
_Step = tuple[int, int, int, int, int, int, int, int]


@record
class StageTime:
    """Times of one stage for one micro-batch.

    backward_ns: the whole backward pass, recomputation included. weight_ns: its part for the weights' gradients, which
    zero-bubble schedules put off; None: half. send_ns: the output to the next stage. send_back_ns: the input's gradient to
    the stage before.
    """

    forward_ns: float
    backward_ns: float
    weight_ns: float | None = None
    send_ns: float = 0.0
    send_back_ns: float = 0.0

    def of(self, kind: str) -> float:
        """Time of a computation of this kind."""
        weight = self.backward_ns / 2 if self.weight_ns is None else self.weight_ns
        return {"F": self.forward_ns, "B": self.backward_ns, "I": self.backward_ns - weight, "W": weight}[kind]


@record
class PipelineTimeline:
    """One step, from the first start to the last end; every tuple is by rank.

    starts_ns, ends_ns: of the rank's actions in their order.
    """

    layout: PipelineLayout
    starts_ns: tuple[list[float], ...]
    ends_ns: tuple[list[float], ...]
    busy_ns: tuple[float, ...]

    @property
    def step_ns(self) -> float:
        return max(ends[-1] for ends in self.ends_ns)

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Share of the step in which the rank computes nothing."""
        return tuple(1 - busy / self.step_ns for busy in self.busy_ns)

    @property
    def bubble(self) -> float:
        """Mean over the ranks."""
        return sum(self.bubbles) / len(self.bubbles)

    def spans(self) -> tuple[PipelineSpan, ...]:
        """Return every computation with its begin and end, ns."""
        return tuple(
            PipelineSpan(
                rank=rank, stage=stage, micro_batch=micro_batch, kind=kind, start_ns=round(start), end_ns=round(end)
            )
            for rank, order in enumerate(pipeline_orders(self.layout))
            for (kind, stage, micro_batch), start, end in zip(
                order, self.starts_ns[rank], self.ends_ns[rank], strict=True
            )
        )


def simulate(
    layout: PipelineLayout,
    times: Sequence[StageTime],
    *,
    half_duplex: bool = False,
    meeting: bool = False,
    took_ns: Sequence[Sequence[float]] | None = None,
    orders: tuple[tuple[Action, ...], ...] | None = None,
) -> PipelineTimeline:
    """Simulate one step. times: of every stage, or one for all of them. half_duplex: messages between two ranks take turns
    (gloo). meeting: a message starts when its receiver has nothing else to do (:func:`meets`). took_ns: time of every
    computation, by rank in the order of its actions, in place of its stage's. orders: actions of every rank; None: those
    of the layout's schedule.

    Raises UsageError where the layout has no such schedule.
    """
    steps = _action_steps(layout, half_duplex, orders or pipeline_orders(layout))
    stages, m = layout.stages, layout.micro_batches
    of = list(times) * (stages if len(times) == 1 else 1)
    if len(of) != stages:
        raise UsageError(f"a pipeline of {stages} stages needs the times of each, or of one for all, not {len(of)}")
    usual = [stage_time.of(kind) for kind in KINDS for stage_time in of]
    durations = took_ns or [[usual[step[1]] for step in actions] for actions in steps]
    messages = [stage_time.send_ns for stage_time in of] + [stage_time.send_back_ns for stage_time in of]
    arrival = [-1.0] * (2 * stages * m)
    arrival[:m] = arrival[-m:] = [0.0] * m
    link_free = [0.0] * (layout.ranks * layout.ranks)
    blocked_on = [-1] * layout.ranks
    starts: tuple[list[float], ...] = tuple([] for _ in steps)
    ends: tuple[list[float], ...] = tuple([] for _ in steps)
    now = [0.0] * layout.ranks
    ready = list(range(layout.ranks))
    while ready:
        rank = ready.pop()
        own_actions, clock, begun, ended = steps[rank], now[rank], starts[rank], ends[rank]
        blocked_on[rank] = -1
        for at in range(len(ended), len(own_actions)):
            needs, _, gives, other, message, link, incoming, from_link = own_actions[at]
            if needs >= 0:
                there = arrival[needs]
                if there < 0:
                    blocked_on[rank] = needs
                    break
                if meeting and from_link >= 0:
                    there = link_free[from_link] = max(there, clock, link_free[from_link]) + messages[incoming]
                if there > clock:
                    clock = there
            begun.append(clock)
            clock += durations[rank][at]
            ended.append(clock)
            if gives >= 0:
                if meeting or link < 0:
                    arrival[gives] = clock
                else:
                    arrival[gives] = link_free[link] = max(clock, link_free[link]) + messages[message]
                if blocked_on[other] == gives:
                    ready.append(other)
        now[rank] = clock
    if any(len(done) < len(all_of) for done, all_of in zip(ends, steps, strict=True)):
        raise AssertionError(f"the order of {layout} cannot be carried out")
    return PipelineTimeline(
        layout=layout,
        starts_ns=starts,
        ends_ns=ends,
        busy_ns=tuple(sum(rank_durations) for rank_durations in durations),
    )


@lru_cache(maxsize=8)
def _action_steps(
    layout: PipelineLayout, half_duplex: bool, orders: tuple[tuple[Action, ...], ...]
) -> tuple[list[_Step], ...]:
    """Every rank's actions as places in the tables of ``simulate``; -1: none.

    What it needs and gives: (forward: stage, backward: all stages + stage) x micro-batches + micro-batch. Its computation:
    kind x stages + stage. The rank that waits for it, its message and the link, which is none on the same rank; message and
    link of what it needs.
    """
    stages, m, p = layout.stages, layout.micro_batches, layout.ranks
    rank_of = {stage: rank for rank, order in enumerate(orders) for _, stage, _ in order}

    def link(sender: int, receiver: int) -> int:
        ends = sorted((sender, receiver)) if half_duplex else (sender, receiver)
        return -1 if sender == receiver else ends[0] * p + ends[1]

    def step(rank: int, action: Action) -> _Step:
        """Return one action as places in the tables."""
        kind, stage, micro_batch = action
        computation = KINDS.index(kind) * stages + stage
        if kind == "W":
            return -1, computation, -1, -1, -1, -1, -1, -1
        message, to, since = (stage, stage + 1, stage - 1) if kind == "F" else (stages + stage, stage - 1, stage + 1)
        needs = message * m + micro_batch
        source = (message + since - stage, link(rank_of[since], rank)) if 0 <= since < stages else (-1, -1)
        if not 0 <= to < stages:
            return needs, computation, -1, -1, -1, -1, *source
        return needs, computation, needs + (to - stage) * m, rank_of[to], message, link(rank, rank_of[to]), *source

    return tuple([step(rank, action) for action in order] for rank, order in enumerate(orders))


def meets(layout: PipelineLayout, *, device: str) -> bool:
    """Whether a message starts only when its receiver has nothing else to do.

    torch's ScheduleGPipe and Schedule1F1B ask for it then, and wait (torch 2.13). On CPU ranks that holds for all schedules:
    gloo's threads get a core when the rank waits (2 computing ranks on 2 cores, 2026-11).
    """
    return device == "cpu" or layout.schedule in ("gpipe", "1f1b")


def balanced_split(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Give each stage consecutive pieces, at least one, so that the dearest stage is as cheap as can be; return how many."""
    before = [0.0, *itertools.accumulate(costs)]
    # best[n]: (cost of the dearest stage, where each begins) of the first n pieces over the stages so far
    best: dict[int, tuple[float, tuple[int, ...]]] = {n: (before[n], (0,)) for n in range(1, len(costs) + 1)}
    for stage in range(1, stages):
        best = {
            n: min((max(best[k][0], before[n] - before[k]), (*best[k][1], k)) for k in range(stage, n))
            for n in range(stage + 1, len(costs) + 1)
        }
    begins = best[len(costs)][1]
    return tuple(end - begin for begin, end in itertools.pairwise((*begins, len(costs))))
