"""The step of a pipeline that a dry run recorded, one rank of each place in it: every action is timed by itself, and the
schedule put together of them with its messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean

from stepscope.core.errors import DataError
from stepscope.predict.dry.step import Pricing, TimedRank
from stepscope.predict.dry.traffic import MESSAGES
from stepscope.predict.pipeline import Action, PipelineTimeline, StageTime, meets, simulate
from stepscope.records.dry_run import DryCall, DryPipeline, DryRank
from stepscope.records.mesh import PipelineLayout
from stepscope.records.parts import COMPUTATION
from stepscope.records.prediction import DryStep

_SCHEDULES = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleInterleavedZeroBubble": "zero_bubble",
    "ScheduleZBVZeroBubble": "zbv",
}


def predict_world(ranks: Sequence[DryRank], pricing: Pricing) -> DryStep:
    """Price the step of a world of which these ranks were run: one, or one a place of a pipeline.

    Of a pipeline, parts are those of its busiest rank, memory that of the one that needs most. Raises DataError where a rank
    of it is missing.
    """
    if ranks[0].pipeline is None:
        return pricing.whole(ranks[0])
    pipeline, by_rank = _pipeline(ranks[0]), {rank.rank: rank for rank in ranks}
    places = list(dict.fromkeys(pipeline.ranks))
    if missing := [rank for rank in places if rank not in by_rank]:
        raise DataError(f"rank {missing[0]} of the pipeline has no step", fix="run the script again")
    ordered = [by_rank[place] for place in places]
    timed = [_timed_actions(rank, pricing) for rank in ordered]
    line = _line(ordered, [[one.played.step_ns for one in actions] for actions in timed], pricing)
    pieces = [[*actions, pricing.timed(_rest(rank))] for rank, actions in zip(ordered, timed, strict=True)]
    busy = [sum(piece.played.step_ns for piece in own) for own in pieces]
    through = max(ends[-1] + own[-1].played.step_ns for ends, own in zip(line.ends_ns, pieces, strict=True))
    steps = []
    for rank, own, took in zip(ordered, pieces, busy, strict=True):
        step = pricing.step(rank, pricing.timed(rank), {**_parts(own), "bubble": through - took})
        steps.append(replace(step, comm_ns=sum(piece.played.comm_ns for piece in own)))
    return replace(
        steps[busy.index(max(busy))],
        samples_per_s=steps[0].samples_per_s,  # the first stage alone is given the batch
        tokens_per_s=steps[0].tokens_per_s,
        hfu=mean(step.hfu or 0.0 for step in steps),
        mfu=mean(step.mfu or 0.0 for step in steps),
        memory=max((step.memory for step in steps), key=lambda fit: fit.needs_bytes),
    )


def _pipeline(rank: DryRank) -> DryPipeline:
    assert rank.pipeline is not None
    return rank.pipeline


def _timed_actions(rank: DryRank, pricing: Pricing) -> list[TimedRank]:
    """Time each action; equal ones once."""
    played: dict[object, TimedRank] = {}
    timed = []
    for action in _pipeline(rank).actions:
        piece = _piece(rank, [(action.at, action.until)])
        key = piece.order, piece.calls
        if key not in played:
            played[key] = pricing.timed(piece)
        timed.append(played[key])
    return timed


def _rest(rank: DryRank) -> DryRank:
    """Return what the rank does outside of its schedule's actions: the optimizer, above all."""
    actions = _pipeline(rank).actions
    begins = [0, *(action.until for action in actions)]
    stops = [*(action.at for action in actions), len(rank.order)]
    return _piece(rank, zip(begins, stops, strict=True))


def _piece(rank: DryRank, spans: Iterable[tuple[int, int]]) -> DryRank:
    """Return these spans of the order, with their collectives and without messages along the pipeline."""
    order: list[int] = []
    calls: list[DryCall] = []
    for begin, end in spans:
        shift = len(order) - begin
        for call in rank.calls:
            if call.op in MESSAGES or not (begin <= call.at < end or call.at == end == len(rank.order)):
                continue
            after = call.at if call.after is None else call.after
            inside = None if call.waited is None or call.waited > end else call.waited + shift
            calls.append(replace(call, at=call.at + shift, after=max(begin, after) + shift, waited=inside))
        order += rank.order[begin:end]
    return replace(rank, order=tuple(order), calls=tuple(calls))


def _parts(pieces: Sequence[TimedRank]) -> dict[str, float]:
    parts: dict[str, float] = defaultdict(float)
    for piece in pieces:
        for (phase, _), ns in piece.clocks.busy_ns.items():
            parts[phase if phase in COMPUTATION else "other"] += ns
        parts["idle"] += piece.clocks.length_ns - sum(piece.clocks.busy_ns.values())
        parts["communication"] += piece.played.exposed_ns
    return dict(parts)


def _line(ranks: Sequence[DryRank], took_ns: list[list[float]], pricing: Pricing) -> PipelineTimeline:
    """Simulate the schedule."""
    pipeline = _pipeline(ranks[0])
    places = [rank.rank for rank in ranks]
    layout = PipelineLayout(
        schedule=_SCHEDULES.get(pipeline.schedule, pipeline.schedule),
        ranks=len(places),
        micro_batches=pipeline.micro_batches,
        chunks=len(pipeline.ranks) // len(places),
    )
    orders = tuple(tuple(_actions(rank)) for rank in ranks)
    sizes = {rank.rank: _message_bytes(rank) for rank in ranks}

    def send_ns(stage: int, to: int) -> float:
        """Time of the messages of one micro-batch."""
        if not 0 <= to < len(pipeline.ranks):
            return 0.0
        source, target = pipeline.ranks[stage], pipeline.ranks[to]
        size = sizes[source].get(target, 0.0)
        if not size or source == target:
            return 0.0
        cluster = pricing.cluster
        return 1e9 * cluster.group_time("send_recv", round(size), 2, cluster.domains_of((source, target)))

    times = [
        StageTime(
            forward_ns=0.0,
            backward_ns=0.0,
            send_ns=send_ns(stage, stage + 1),
            send_back_ns=send_ns(stage, stage - 1),
        )
        for stage in range(len(pipeline.ranks))
    ]
    device = ranks[0].device
    return simulate(
        layout, times, half_duplex=ranks[0].backend == "gloo", meeting=meets(layout, device=device), took_ns=took_ns,
        orders=orders,
    )  # fmt: skip


def _actions(rank: DryRank) -> Iterable[Action]:
    for action in _pipeline(rank).actions:
        yield action.kind, action.stage, action.micro_batch


def _message_bytes(rank: DryRank) -> dict[int, float]:
    """Return, for each peer, what one micro-batch sends to it from one stage."""
    pipeline = _pipeline(rank)
    sent: Counter[int] = Counter()
    for call in rank.calls:
        if call.op == "send" and call.peer is not None:
            sent[call.peer] += call.size_bytes
    ways: Counter[int] = Counter()
    for stage, own in enumerate(pipeline.ranks):
        for to in (stage - 1, stage + 1):
            if own == rank.rank and 0 <= to < len(pipeline.ranks) and pipeline.ranks[to] != own:
                ways[pipeline.ranks[to]] += 1
    return {peer: size / (ways[peer] * pipeline.micro_batches) for peer, size in sent.items() if ways[peer]}
