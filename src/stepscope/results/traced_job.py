"""The traces of a job -> the measured step that a prediction starts from."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.words import grouped, listed
from stepscope.machine.peaks import find
from stepscope.predict.job import JobCall, MeasuredJob, gradients_between
from stepscope.predict.overlap import Transport
from stepscope.records.prediction import RankStep
from stepscope.records.trace_collectives import RankCollective
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.stats.order import deviation_within, median
from stepscope.traces.kernel_names import MATRIX, kernel_dtype

SECTIONS = frozenset({"replay"})
"""What of a trace is needed beside what any reading gives."""

_REDUCTIONS = ("all_reduce", "reduce_scatter")
_KINDS = {"tp": "tensor parallel", "pp": "pipeline parallel", "ep": "expert parallel", "cp": "context parallel"}


def job_of_traces(summary: TraceSummary, *, name: str) -> MeasuredJob:
    """The job that the traces show: the slowest rank of the median step.

    Raises UsageError for jobs that are not data parallel alone, DataError for traces without steps or sizes.
    """
    passes = [each for each in summary.ranks if each.replay]
    if not passes:
        raise DataError(
            f"{name}: no step is marked in these traces",
            why="a prediction starts from one step, and nothing says where one ends",
            fix="stepscope profile marks them; torch.profiler does with schedule=... and prof.step()",
        )
    world = summary.world_size or len(summary.ranks)
    _require_data_parallel(passes, world, name)
    step, rank = _typical(passes)
    here = next(each for each in passes if each.facts.rank == rank)
    mine = next(each for each in here.replay if each.step == step)
    calls, notes = _traced_calls(summary, here, mine, name)
    spread, values, of = _spread([each.replay for each in passes])
    entry = Unavailable("no device") if here.facts.device_name is None else find(here.facts.device_name)
    products, dtype = _products(here)
    hosts = {each.facts.host for each in passes}
    all_seen = len(passes) == world and None not in hosts
    reductions = [c for c in calls if c.op == "all_reduce"]
    in_backward = (
        len(reductions) == sum(c.op in _REDUCTIONS for c in calls) and len({c.ready_ns for c in reductions}) > 1
    )
    windows = [max(s.window_ns for p in passes for s in p.replay if s.step == n) for n in _steps(passes)]
    last = max((c.needed_ns for c in calls if c.op in _REDUCTIONS), default=float(mine.length_ns))
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
        step_ns=median(windows),
        length_ns=mine.length_ns,
        compute_ns=mine.compute_ns,
        copies_ns=mine.copies_ns,
        input_ns=min(data, max(0, mine.length_ns - mine.compute_ns - mine.copies_ns)),
        tail_ns=mine.length_ns - last,
        spread_ns=spread,
        spread_from=values,
        spread_of=of,
        transport=Transport(lanes=mine.lanes),
        calls=calls,
        products=products,
        dtype=dtype,
        gradients=gradients_between(reductions) if in_backward else (),
        points=((world, median(windows)),),
        notes=tuple(notes),
    )


def _require_data_parallel(passes: Sequence[RankPass], world: int, name: str) -> None:
    kinds = {group.kind for each in passes for group in each.groups if group.kind in _KINDS and group.collectives}
    if kinds:
        words = listed([_KINDS[kind] for kind in sorted(kinds)], between=" and ")
        raise UsageError(
            f"{name} is {words}: not predicted from a trace yet",
            why="its groups would have to be laid out again, and the step's work split again, for more GPUs",
            fix="predict --from takes data-parallel jobs: DDP, FSDP, ZeRO on one group of all ranks",
        )
    groups = {
        (group.group, group.size)
        for each in passes
        for group in each.groups
        if group.size is not None and 1 < group.size < world and group.collectives
    }
    if groups:
        sizes = ", ".join(str(size) for size in sorted({size for _, size in groups}))
        raise UsageError(
            f"{name}: collectives run in groups of {sizes} of {world} ranks",
            why="which groups grow as GPUs are added is not in the trace",
            fix="predict --from takes jobs whose collectives are among all ranks",
        )


def _steps(passes: Sequence[RankPass]) -> list[int]:
    """Steps that every rank recorded; where there are none, those that any did."""
    each = [{step.step for step in p.replay} for p in passes]
    return sorted(set.intersection(*each) or set.union(*each))


def _typical(passes: Sequence[RankPass]) -> tuple[int, int]:
    """The step with the median length of the slowest rank, and that rank."""
    of_step = {
        number: max((s for p in passes for s in p.replay if s.step == number), key=lambda s: s.length_ns)
        for number in _steps(passes)
    }
    windows = {n: max(s.window_ns for p in passes for s in p.replay if s.step == n) for n in of_step}
    middle = median(list(windows.values()))
    chosen = min(of_step, key=lambda n: abs(windows[n] - middle))
    return chosen, of_step[chosen].rank


def _traced_calls(
    summary: TraceSummary, here: RankPass, step: RankStep, name: str
) -> tuple[tuple[JobCall, ...], list[str]]:
    collectives = here.communication.collectives if here.communication else ()
    transfers: dict[int, float] = {}
    for each in summary.collectives.instances if summary.collectives else ():
        mine = next((r.position for r in each.ranks if r.rank == here.facts.rank), None)
        if mine is not None and each.transfer_ns:
            transfers[mine] = float(each.transfer_ns)
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


def _spread(ranks: Sequence[Sequence[RankStep]]) -> tuple[float, int, str]:
    by_step = grouped((step for steps in ranks for step in steps), lambda step: step.step)
    return deviation_within([[float(step.length_ns) for step in same] for same in by_step.values()])


def _products(here: RankPass) -> tuple[float | None, str | None]:
    """Share of computation in kernels that multiply matrices, and the type that most of them multiply in."""
    if here.mix is None or not here.mix.total_ns:
        return None, None
    share = sum(kind.total_ns for kind in here.mix.kinds if kind.kind in MATRIX) / here.mix.total_ns
    largest = (kernel_dtype(kind.largest) for kind in here.mix.kinds if kind.kind in MATRIX)
    return share, next((dtype for dtype in largest if dtype is not None), None)
