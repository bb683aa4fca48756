"""The traces of a job as a starting point of predictions: its measured step, that step without the profiler's cost (from
its step diary), and the dimensions of its transformer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped, listed
from stepscope.machine.peaks import find
from stepscope.predict.job import JobCall, MeasuredJob, gradients_between, replayed, stretched
from stepscope.predict.overlap import Transport
from stepscope.predict.prices import Links, own_prices
from stepscope.predict.step.model import ModelShape
from stepscope.records.prediction import RankStep
from stepscope.records.profile import PROFILED
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.diary import JobSteps
from stepscope.stats.order import deviation_within, median
from stepscope.traces.kernel_names import MATRIX, kernel_dtype
from stepscope.traces.operators import LayerCalls

SECTIONS = frozenset({"replay"})
"""What of a trace is needed beside what any reading gives."""

_REDUCTIONS = ("all_reduce", "reduce_scatter")
_KINDS = {"tp": "tensor parallel", "pp": "pipeline parallel", "ep": "expert parallel", "cp": "context parallel"}


def job_of_traces(summary: TraceSummary, *, name: str) -> MeasuredJob:
    """Return the job that the traces show: the slowest rank of the median step.

    Raises UsageError for jobs that are not data parallel alone, DataError for traces without steps or sizes.
    """
    passes = [rank_pass for rank_pass in summary.ranks if rank_pass.replay]
    if not passes:
        raise DataError(
            f"{name}: no step is marked in these traces",
            why="a prediction starts from one step, and nothing says where one ends",
            fix="stepscope profile marks them; torch.profiler does with schedule=... and prof.step()",
        )
    world = summary.world_size or len(summary.ranks)
    _require_data_parallel(passes, world, name)
    rank_step, step_ns = _typical_step(passes)
    here = next(rank_pass for rank_pass in passes if rank_pass.facts.rank == rank_step.rank)
    calls, notes = _traced_calls(summary, here, rank_step, name)
    spread, values, of = _step_spread([rank_pass.replay for rank_pass in passes])
    entry = Unavailable("no device") if here.facts.device_name is None else find(here.facts.device_name)
    products, dtype = _product_share_and_dtype(here)
    hosts = {rank_pass.facts.host for rank_pass in passes}
    all_seen = len(passes) == world and None not in hosts
    reductions = [c for c in calls if c.op == "all_reduce"]
    in_backward = (
        len(reductions) == sum(c.op in _REDUCTIONS for c in calls) and len({c.ready_ns for c in reductions}) > 1
    )
    last = max((c.needed_ns for c in calls if c.op in _REDUCTIONS), default=float(rank_step.length_ns))
    if len(passes) < world:
        notes.append(f"{len(passes)} of {world} ranks were traced: the others are taken to be like them")
    if isinstance(entry, Unavailable) and here.budget is not None and here.budget.source == "device":
        notes.append(f"the GPU is not in the hardware table: {entry.reason}")
    data = sum(row.idle_ns for row in here.idle if row.cause == "data") / max(1, len(here.replay))
    return MeasuredJob(
        name=name,
        source="trace",
        ranks=world,
        seen_ranks=len(passes),
        nodes=len(hosts) if all_seen else None,
        backend=here.facts.backend or ("nccl" if here.facts.device_name else "gloo"),
        device=here.facts.device_name or "CPU",
        gpu=None if isinstance(entry, Unavailable) else entry.key,
        step_ns=step_ns,
        length_ns=rank_step.length_ns,
        compute_ns=rank_step.compute_ns,
        copies_ns=rank_step.copies_ns,
        input_ns=min(data, max(0, rank_step.length_ns - rank_step.compute_ns - rank_step.copies_ns)),
        tail_ns=rank_step.length_ns - last,
        spread_ns=spread,
        spread_from=values,
        spread_of=of,
        transport=Transport(lanes=rank_step.lanes),
        calls=calls,
        products=products,
        dtype=dtype,
        gradients=gradients_between(reductions) if in_backward else (),
        points=((world, step_ns),),
        notes=tuple(notes),
    )


def _require_data_parallel(passes: Sequence[RankPass], world: int, name: str) -> None:
    """Raise UsageError where the job's groups are not one of all ranks: such a step is not predicted from a trace."""
    kinds = {
        group.kind for rank_pass in passes for group in rank_pass.groups if group.kind in _KINDS and group.collectives
    }
    if kinds:
        words = listed([_KINDS[kind] for kind in sorted(kinds)], between=" and ")
        raise UsageError(
            f"{name} is {words}: not predicted from a trace yet",
            why="its groups would have to be laid out again, and the step's work split again, for more GPUs",
            fix="predict --from takes data-parallel jobs: DDP, FSDP, ZeRO on one group of all ranks",
        )
    groups = {
        (group.group, group.size)
        for rank_pass in passes
        for group in rank_pass.groups
        if group.size is not None and 1 < group.size < world and group.collectives
    }
    if groups:
        sizes = ", ".join(str(size) for size in sorted({size for _, size in groups}))
        raise UsageError(
            f"{name}: collectives run in groups of {sizes} of {world} ranks",
            why="which groups grow as GPUs are added is not in the trace",
            fix="predict --from takes jobs whose collectives are among all ranks",
        )


def _typical_step(passes: Sequence[RankPass]) -> tuple[RankStep, float]:
    """Return the step with the median length on its slowest rank, and that length; of the steps that every rank recorded,
    where there are any."""
    by_rank = [{step.step for step in p.replay} for p in passes]
    numbers = sorted(set.intersection(*by_rank) or set.union(*by_rank))
    of_step = {n: [s for p in passes for s in p.replay if s.step == n] for n in numbers}
    windows = {n: max(s.window_ns for s in steps) for n, steps in of_step.items()}
    middle = median(list(windows.values()))
    chosen = min(windows, key=lambda n: abs(windows[n] - middle))
    return max(of_step[chosen], key=lambda s: s.length_ns), middle


def _traced_calls(
    summary: TraceSummary, here: RankPass, step: RankStep, name: str
) -> tuple[tuple[JobCall, ...], list[str]]:
    """Return the calls of a step, with transfers alone where all ranks were read, and notes. Raises UsageError for a
    message."""
    collectives = here.communication.collectives if here.communication else ()
    transfers: dict[int, float] = {}
    for instance in summary.collectives.instances if summary.collectives else ():
        position = next((r.position for r in instance.ranks if r.rank == here.facts.rank), None)
        if position is not None and instance.transfer_ns:
            transfers[position] = float(instance.transfer_ns)
    notes = []
    if len(transfers) < len(step.calls) and here.facts.world_size != 1:
        notes.append("some collectives were seen on one rank alone: their times include waiting for other ranks")
    calls = []
    for call in step.calls:
        what: RankCollective = collectives[call.position]
        if what.op in ("send_recv", "unknown"):
            raise UsageError(
                f"{name}: its step calls {what.op}, which is not predicted",
                why=f"kernel {what.kernel}",
                fix="predict --from takes jobs of all_reduce, all_gather, reduce_scatter, broadcast and all_to_all",
            )
        if what.size_bytes is None:
            raise DataError(
                f"{name}: the sizes of its collectives are not recorded ({what.op})",
                fix="record them with record_shapes=True, as `stepscope profile` does",
            )
        calls.append(
            JobCall(
                op="all_to_all" if what.op == "all_to_all_v" else what.op,
                size_bytes=what.size_bytes,
                ready_ns=call.ready_ns,
                needed_ns=call.needed_ns,
                time_ns=transfers.get(call.position, float(call.duration_ns)),
            )
        )
    return tuple(calls), notes


def _step_spread(ranks: Sequence[Sequence[RankStep]]) -> tuple[float, int, str]:
    by_step = grouped((step for steps in ranks for step in steps), lambda step: step.step)
    return deviation_within([[float(step.length_ns) for step in same] for same in by_step.values()])


def _product_share_and_dtype(here: RankPass) -> tuple[float | None, str | None]:
    """Share of computation in kernels that multiply matrices, and the type that most of them multiply in."""
    if here.mix is None or not here.mix.total_ns:
        return None, None
    share = sum(kind.total_ns for kind in here.mix.kinds if kind.kind in MATRIX) / here.mix.total_ns
    largest = (kernel_dtype(kind.largest) for kind in here.mix.kinds if kind.kind in MATRIX)
    return share, next((dtype for dtype in largest if dtype is not None), None)


OFF = 0.02
"""Parameters by the dimensions and those of the optimizer agree within this share: biases are in the latter alone."""


@record
class TracedModel:
    """A transformer as traces show it. parameters: those of the optimizer. sequence, batch: of one micro-batch of one
    rank."""

    shape: ModelShape
    parameters: int
    sequence: int
    batch: int


def recorded_parameters(facts: Mapping[str, Any]) -> int | None:
    """Return the number of elements that the optimizer holds, from ``stepscope.model`` in a trace; None: not recorded."""
    optimizer = facts.get("optimizer")
    kinds = optimizer.get("parameters") if isinstance(optimizer, Mapping) else None
    if not isinstance(kinds, Mapping):
        return None
    elements = sum(int(kind.get("elements", 0)) for kind in kinds.values() if isinstance(kind, Mapping))
    return elements or None


def model_of_calls(calls: LayerCalls, parameters: int | None, *, name: str) -> TracedModel | Unavailable:
    """Return the transformer whose layers made these calls; Unavailable with what cannot be known."""
    if not calls.attention:
        return Unavailable(
            "no call of scaled_dot_product_attention with its shapes is in the traces, so layers, heads and their width are "
            "unknown: the model is not a transformer, or computes its attention in another way"
        )
    if parameters is None:
        return Unavailable("the optimizer's parameters are not recorded, so dimensions could not be checked")
    (query, key), layers_called = max(calls.attention.items(), key=lambda entry: entry[1])
    batch, heads, sequence, width = query
    tables = {(rows, wide): n for (rows, wide), n in calls.embedding.items() if rows > 1}
    if not tables:
        return Unavailable("no embedding of tokens is in the traces, so vocabulary and width of the model are unknown")
    (vocab, hidden), passes = max(tables.items(), key=lambda entry: entry[0][0])
    again = max(1, round(sum(calls.attention.values()) / calls.attention_backward)) if calls.attention_backward else 1
    layers = round(layers_called / passes / again)
    shapes = list(
        _model_candidates(
            calls, name=name, vocab=vocab, hidden=hidden, heads=heads, width=width, key_heads=key[1],
            positions=_position_rows(tables, vocab, hidden), layers=layers,
        )
    )  # fmt: skip
    if not shapes:
        return Unavailable(
            f"attention of {heads} heads x {width} and an embedding {vocab} x {hidden} are seen, and no two linear layers "
            f"from {hidden} and back that would be an MLP: its width is unknown"
        )
    best = min(shapes, key=lambda shape: abs(shape.params - parameters))
    if abs(best.params / parameters - 1) > OFF:
        return Unavailable(
            f"the shapes seen make {best.layers} layers of {best.hidden} with an MLP of {best.ffn}, {best.params:,} "
            f"parameters, and the optimizer holds {parameters:,}: another kind of model, or ranks hold parts of layers"
        )
    return TracedModel(shape=best, parameters=parameters, sequence=sequence, batch=batch)


def _position_rows(tables: Mapping[tuple[int, int], int], vocab: int, hidden: int) -> int:
    """Rows of a learned position table; 0: none."""
    return max((rows for rows, wide in tables if wide == hidden and rows != vocab), default=0)


def _model_candidates(
    calls: LayerCalls, *, name: str, vocab: int, hidden: int, heads: int, width: int, key_heads: int, positions: int,
    layers: int,
) -> Iterator[ModelShape]:  # fmt: skip
    """Yield the models that may have made these calls: repeated keys hide how few heads they have, a tied head makes no
    difference to a call."""
    back = {n for out, n in calls.linear if out == hidden and {(n, hidden), (2 * n, hidden)} & calls.linear.keys()}
    ways = [
        (n, (2 * n, hidden) in calls.linear or calls.linear.get((n, hidden), 0) >= 2 * calls.linear[hidden, n])
        for n in sorted(back)
    ]
    fewer = {out // width for out, n in calls.linear if n == hidden and not out % width and out // width <= heads}
    for (ffn, gated), kv_heads, tied in product(ways, fewer | {key_heads}, (False, True)):
        yield ModelShape(
            name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=width, ffn=ffn,
            gated=gated, vocab=vocab, tied=tied, positions=positions, source="shapes in the traces",
        )  # fmt: skip


Numbers = NDArray[np.float64]

LEAST_STEPS = 4
"""Fewest timed steps that are used: with fewer, the traced steps stay."""

OTHER_RANKS = 0.03
"""80% half-width of what a rank computes beside more or fewer others on a CPU: steps of one command differ by as much
between runs, and gloo's own threads take some of what the ranks compute on."""

MOST_FACTOR = 2.0
"""Most by which the time of collectives is scaled: more is no cost of a profiler, and stays unexplained."""

_ROUNDS = 50


def unprofiled(job: MeasuredJob, steps: JobSteps | None) -> MeasuredJob | Unavailable:
    """Return ``job`` with the work, the waits and the spread of its timed steps; Unavailable where too few were timed.

    Work: the last rank's time until it waits for others. What follows the last reduction keeps its share of the step, as the
    diary's optimizer says where it has it. Collectives are scaled so that the replay takes the timed step.
    """
    if steps is None:
        return Unavailable("no step diary")
    timed = np.logical_and.reduce([diary.timed[steps.numbers - 1] for diary in steps.diaries])
    if timed.sum() < LEAST_STEPS:
        return Unavailable(f"the diary has {counted(int(timed.sum()), 'timed step')}")
    whole = float(np.median(steps.step_ns[timed]))
    own = _own_step_ns(steps, timed)
    if own is None:  # how much of the step is waiting is the traces' word
        own = whole * job.length_ns / max(job.step_ns, job.length_ns)
    own = min(own, whole)
    tail = min(_tail_ns(job, steps, timed, own), own)
    body, old = own - tail, job.length_ns - job.tail_ns
    rescaled = stretched(job, body=body / old if old else 1.0, tail=tail / job.tail_ns if job.tail_ns else 1.0)
    data = steps.parts_ns["data"][:, timed]
    loading = float(np.median(np.nan_to_num(data).max(axis=0))) if np.isfinite(data).any() else job.input_ns
    factor = own / job.length_ns if job.length_ns else 1.0
    loading = min(loading, own)
    compute = min(job.compute_ns * factor, own - loading)
    spread, values, of = _diary_spread(steps, timed, job)
    rescaled = replace(
        rescaled,
        step_ns=whole,
        compute_ns=compute,
        copies_ns=min(job.copies_ns * factor, own - loading - compute),
        input_ns=loading,
        cores=_cpu_cores(job, steps),
        doubt=_doubt_share(job, steps),
        spread_ns=spread,
        spread_from=values,
        spread_of=of,
        points=((job.ranks, whole), *(point for point in job.points if point[0] != job.ranks)),
    )
    slower, rescaled = _as_long_as_timed(rescaled)
    note = (
        f"starts from {counted(int(timed.sum()), 'step')} without the profiler: {format_duration(whole)}; the traced steps "
        f"took {format_duration(job.step_ns)} ({format_percent(job.step_ns / whole - 1, digits=0, signed=True)})"
    )
    if slower is not None and abs(slower - 1) > 0.05:
        note += f", their collectives {1 / slower:.2g} times as long as in those"
    return replace(rescaled, notes=(note, *rescaled.notes))


def _cpu_cores(job: MeasuredJob, steps: JobSteps) -> int | None:
    cores = {diary.header.cores for diary in steps.diaries}
    return min(cores - {None}, default=None) if job.device == "CPU" and len(set(steps.hosts)) == 1 else None  # type: ignore[type-var]


def _doubt_share(job: MeasuredJob, steps: JobSteps) -> float:
    """Return the job's doubt, which is more where training threads waited for a processor: other ranks, or other work, took
    it."""
    if job.device != "CPU":
        return 0.0
    waited = float((np.nan_to_num(steps.delay_ns).sum(axis=1) / steps.whole_ns.sum(axis=1)).max())
    return math.hypot(OTHER_RANKS, min(0.5, waited))


def _own_step_ns(steps: JobSteps, timed: NDArray[np.bool_]) -> float | None:
    """Median over steps of the last rank's time until it waits for others; None where no waits are known."""
    if steps.ranks < 2 and steps.world_size > 1:
        return None
    comm = steps.comm_ns[:, timed]
    if not np.isfinite(comm).all():
        return None
    return float(np.median((steps.whole_ns[:, timed] - comm).max(axis=0)))


def _tail_ns(job: MeasuredJob, steps: JobSteps, timed: NDArray[np.bool_], own: float) -> float:
    """Return the ns after the last reduction: scaled as the optimizer's time in timed steps to that in profiled ones, else
    as all."""
    if not job.length_ns:
        return 0.0
    here = steps.parts_ns["optimizer"][:, timed]
    there = np.concatenate(
        [np.asarray(diary.columns["optimizer_ns"][(diary.flags & PROFILED) != 0]) for diary in steps.diaries]
    )
    if not np.isfinite(here).any() or not np.isfinite(there).any():
        return job.tail_ns * own / job.length_ns
    return job.tail_ns * float(np.nanmedian(here)) / max(1.0, float(np.nanmedian(there)))


def _diary_spread(steps: JobSteps, timed: NDArray[np.bool_], job: MeasuredJob) -> tuple[float, int, str]:
    if not np.isfinite(steps.own_ns).all() or steps.ranks < 2:
        return job.spread_ns, job.spread_from, job.spread_of
    return deviation_within(steps.own_ns[:, timed].T.tolist())


def _as_long_as_timed(job: MeasuredJob) -> tuple[float | None, MeasuredJob]:
    """Return the factor on the times of the job's collectives at which the replay takes the measured step, and the job with
    it."""
    if not job.calls or job.ranks < 2 or any(call.time_ns is None for call in job.calls):
        return None, job
    prices = own_prices(job, Links())

    def step(factor: float) -> float:
        return replayed(job, lambda *call: factor * prices.of(*call).time_ns).step_ns

    low, high = 1 / MOST_FACTOR, MOST_FACTOR
    if step(low) >= job.step_ns or step(high) <= job.step_ns:
        factor = low if step(low) >= job.step_ns else high
        if step(1.0) == step(factor):  # all is hidden: nothing shows how long they take
            return None, job
    else:
        for _ in range(_ROUNDS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if step(middle) < job.step_ns else (low, middle)
        factor = (low * high) ** 0.5
    return factor, replace(
        job, calls=tuple(replace(call, time_ns=(call.time_ns or 0.0) * factor) for call in job.calls)
    )
