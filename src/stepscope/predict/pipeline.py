"""When every rank of a pipeline computes what, from the times of its stages and of the messages between them.

Each rank works through its order (:mod:`stepscope.predict.pipeline_orders`); a forward waits for the stage before, a
backward for the stage after. Messages travel beside computation, one at a time between two ranks in one direction;
where the two directions take turns, one at a time; where ranks meet for them, none before its receiver is idle.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from stepscope.core.errors import UsageError
from stepscope.predict.pipeline_orders import Action, pipeline_orders
from stepscope.records.pipeline import PipelineLayout, PipelineSpan

KINDS = "FBIW"
_Step = tuple[int, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def last_backward_ns(self) -> tuple[float, ...]:
        """By stage: when its gradients of the step are complete."""
        last = dict[int, float]()
        for order, ends in zip(pipeline_orders(self.layout), self.ends_ns, strict=True):
            last.update((stage, end) for (kind, stage, _), end in zip(order, ends, strict=True) if kind != "F")
        return tuple(last[stage] for stage in range(self.layout.stages))

    @property
    def peak_micro_batches(self) -> tuple[int, ...]:
        """Most activations (of one micro-batch in one stage) that the rank holds at once, until their gradients exist."""
        return tuple(_peak(order) for order in pipeline_orders(self.layout))

    def spans(self) -> tuple[PipelineSpan, ...]:
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
) -> PipelineTimeline:
    """One step. times: of every stage, or one for all of them. half_duplex: messages between two ranks take turns (gloo).
    meeting: a message starts when its receiver has nothing else to do (:func:`meets`).
    took_ns: time of every computation, by rank in the order of its actions, in place of its stage's.

    Raises UsageError where the layout has no such schedule.
    """
    steps = _steps(layout, half_duplex)
    stages, m = layout.stages, layout.micro_batches
    of = list(times) * (stages if len(times) == 1 else 1)
    if len(of) != stages:
        raise UsageError(f"a pipeline of {stages} stages needs the times of each, or of one for all, not {len(of)}")
    usual = [each.of(kind) for kind in KINDS for each in of]
    durations = took_ns or [[usual[step[1]] for step in mine] for mine in steps]
    messages = [each.send_ns for each in of] + [each.send_back_ns for each in of]
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
        mine, clock, begun, ended = steps[rank], now[rank], starts[rank], ends[rank]
        blocked_on[rank] = -1
        for at in range(len(ended), len(mine)):
            needs, _, gives, other, message, link, incoming, from_link = mine[at]
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
        busy_ns=tuple(sum(each) for each in durations),
    )


@lru_cache(maxsize=8)
def _steps(layout: PipelineLayout, half_duplex: bool) -> tuple[list[_Step], ...]:
    """Every rank's actions as places in the tables of ``simulate``; -1: none.

    What it needs and gives: (forward: stage, backward: all stages + stage) x micro-batches + micro-batch. Its computation:
    kind x stages + stage. The rank that waits for it, its message and the link, which is none on the same rank; message and
    link of what it needs.
    """
    stages, m, p, rank_of = layout.stages, layout.micro_batches, layout.ranks, layout.rank_of_stage

    def link(sender: int, receiver: int) -> int:
        ends = sorted((sender, receiver)) if half_duplex else (sender, receiver)
        return -1 if sender == receiver else ends[0] * p + ends[1]

    def step(rank: int, action: Action) -> _Step:
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

    return tuple([step(rank, action) for action in order] for rank, order in enumerate(pipeline_orders(layout)))


def meets(layout: PipelineLayout, *, device: str) -> bool:
    """Whether a message starts only when its receiver has nothing else to do.

    torch's ScheduleGPipe and Schedule1F1B ask for it then, and wait (torch 2.13). On CPU ranks that holds for all schedules:
    gloo's threads get a core when the rank waits (2 computing ranks on 2 cores, 2026-11).
    """
    return device == "cpu" or layout.schedule in ("gpipe", "1f1b")


def balanced_split(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """How many consecutive pieces each stage gets, so that the dearest stage is as cheap as can be; at least one each."""
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


def _peak(order: Sequence[Action]) -> int:
    held = most = 0
    for kind, *_ in order:
        held += {"F": 1, "I": 0}.get(kind, -1)
        most = max(most, held)
    return most
