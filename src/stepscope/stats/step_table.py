"""The steps of a job as one table, whichever recorder saw them: samples of a cell, diaries, passes of a trace.

Late ranks, waits, pauses, change points, shares, figures, comparisons and the tree are asked of this table. Each recorder
has one adapter: :func:`cell_table` and :func:`trace_table` here, ``results.diary.job_steps`` for diaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass, record
from stepscope.records.finding import RANKS_DIFFER, VerdictPart
from stepscope.records.parts import LATE, OF_TRACES, SAMPLED, STEP, below

if TYPE_CHECKING:
    from stepscope.records.samples import CellResult, RankSamples, StepSample
    from stepscope.records.trace_budget import Parts, StepBudget
    from stepscope.records.trace_summary import RankPass

Numbers = NDArray[np.float64]
Source = Literal["cell", "diary", "trace"]
Clock = Literal["host", "device"]

UNKNOWN_HOST = "?"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # one job is one object: figures of it are kept
class StepTable:
    """Timed steps of a job, ns [ranks, steps].

    source: the recorder. clock: what timed the parts. rank_numbers, hosts: [ranks]. numbers, rounds: [steps]. whole_ns: of a
    step. parts_ns: by key of ``records.parts``, NaN where nothing was seen; a part that the recorder does not have is not in
    it. comm_ns: exposed communication; own_ns: until a rank waits for others. delay_ns: ready to run, without a processor;
    NaN: not recorded. samples: [ranks], median of what a rank trains on in a step; None: not recorded. outside_ns: mean of
    what lies between two steps; None: not recorded.
    """

    source: Source
    clock: Clock
    rank_numbers: tuple[int, ...]
    hosts: tuple[str, ...]
    numbers: NDArray[np.int64]
    rounds: NDArray[np.int64]
    whole_ns: Numbers
    parts_ns: Mapping[str, Numbers]
    comm_ns: Numbers
    own_ns: Numbers
    delay_ns: Numbers
    samples: Numbers | None = None
    outside_ns: float | None = None

    @property
    def ranks(self) -> int:
        return int(self.whole_ns.shape[0])

    @property
    def steps(self) -> int:
        return int(self.numbers.size)

    @property
    def step_ns(self) -> Numbers:
        """Step time of the slowest rank, ns [steps]."""
        return np.asarray(np.fmax.reduce(self.whole_ns))

    @property
    def delay_share(self) -> float:
        """Largest share of a rank's time without a processor; 0 where it is not recorded."""
        return float(np.max(np.nan_to_num(self.delay_ns).sum(axis=1) / self.whole_ns.sum(axis=1)))

    @property
    def transfer_ns(self) -> Numbers:
        """Exposed communication of the rank that came last, which waited for nobody, ns [steps]."""
        return np.asarray(self.comm_ns.min(axis=0))

    @property
    def waiting_ns(self) -> Numbers:
        """Exposed communication beyond that of the last rank, ns [ranks, steps]."""
        return np.asarray(self.comm_ns - self.transfer_ns)

    def at(self, steps: slice | NDArray[np.int64]) -> Self:
        """Return the table of these columns."""
        return replace(
            self,
            numbers=self.numbers[steps],
            rounds=self.rounds[steps],
            whole_ns=self.whole_ns[:, steps],
            parts_ns={key: values[:, steps] for key, values in self.parts_ns.items()},
            comm_ns=self.comm_ns[:, steps],
            own_ns=self.own_ns[:, steps],
            delay_ns=self.delay_ns[:, steps],
        )

    def by_round(self, values: Numbers) -> dict[int, list[float]]:
        """Return ``values`` [steps] of each round, in the order of steps."""
        return {int(number): values[self.rounds == number].tolist() for number in np.unique(self.rounds)}


StepKey = tuple[int, int]  # round, step


@record
class CommonSteps:
    """Steps that every rank of the cell recorded, by (round, step); one sample a rank, in the order of
    ranks.
    """

    by_key: Mapping[StepKey, tuple[StepSample, ...]]
    missing_ranks: tuple[int, ...]

    @property
    def timed(self) -> dict[StepKey, tuple[StepSample, ...]]:
        """Steps after warm-up, tail windows included."""
        return {k: s for k, s in self.by_key.items() if not any(x.warmup for x in s)}

    @property
    def full(self) -> dict[StepKey, tuple[StepSample, ...]]:
        """Timed steps with a whole global batch: what step times are made of."""
        return {k: s for k, s in self.timed.items() if all(x.full for x in s)}


def common_steps(samples: Iterable[RankSamples], world_size: int) -> CommonSteps:
    """The steps that all ``world_size`` ranks have; a rank without a file leaves none."""
    by_rank = {s.header.rank: {(x.round, x.step): x for x in s.steps} for s in samples}
    missing = tuple(rank for rank in range(world_size) if rank not in by_rank)
    if missing:
        return CommonSteps(by_key={}, missing_ranks=missing)
    ranks = [by_rank[rank] for rank in range(world_size)]
    keys = sorted(set.intersection(*(set(r) for r in ranks)))
    return CommonSteps(by_key={k: tuple(r[k] for r in ranks) for k in keys}, missing_ranks=())


def cell_table(cell: CellResult) -> StepTable | None:
    """Return the steps that all ranks of a cell have, timed and with a whole global batch; None where there are none."""
    steps = common_steps(cell.samples, cell.spec.world_size).full
    if not steps:
        return None

    def of(name: str) -> Numbers:
        read = attrgetter(name)
        return np.array([[read(sample) for sample in ranks] for ranks in steps.values()], dtype=np.float64).T

    header = cell.samples[0].header
    parts = {key: of(f"{phase}_ns") for phase, key in SAMPLED.items()}
    comm = parts["communication"]
    host = {summary.rank: summary.host for summary in cell.summaries}
    return StepTable(
        source="cell",
        clock="device" if header.clock == "cuda_event" else "host",
        rank_numbers=tuple(range(cell.spec.world_size)),
        hosts=tuple(host.get(rank, UNKNOWN_HOST) for rank in range(cell.spec.world_size)),
        numbers=np.array([step for _, step in steps], dtype=np.int64),
        rounds=np.array([number for number, _ in steps], dtype=np.int64),
        whole_ns=of("step_ns"),
        parts_ns={key: ns for key, ns in parts.items() if key != "communication" or header.comm_source != "none"},
        comm_ns=comm,
        own_ns=np.asarray(sum(ns for key, ns in parts.items() if key != "communication")),
        delay_ns=np.full_like(comm, np.nan),
        samples=np.median(of("samples"), axis=1),
    )


def trace_table(ranks: Sequence[RankPass]) -> StepTable | None:
    """Return the marked steps of a traced job without what comes once, NaN where a rank has not recorded one; None where no
    rank marked any."""
    numbers = sorted({step.step for rank in ranks for step in rank.steps})
    if not numbers:
        return None
    return _of_budgets(ranks, numbers, [{step.step: _usual_parts(step) for step in rank.steps} for rank in ranks])


def _usual_parts(step: StepBudget) -> Parts:
    if not step.start_up_ns:
        return step.parts
    return replace(step.parts, window_ns=step.usual_ns, idle_ns=step.parts.idle_ns - step.start_up_ns)


def window_table(ranks: Sequence[RankPass]) -> StepTable | None:
    """Return each rank's whole window as one step; None where no rank has one. Ranks without one are left out."""
    seen = [rank for rank in ranks if rank.budget is not None]
    if not seen:
        return None
    table = _of_budgets(seen, [0], [{0: rank.budget.parts} for rank in seen if rank.budget])
    unknown = np.array([[rank.unknown_ns] for rank in seen], dtype=np.float64)
    if not unknown.any():
        return table
    computation = table.parts_ns["computation"] - unknown
    return replace(table, parts_ns={**table.parts_ns, "computation": computation, "unknown": unknown})


def _of_budgets(ranks: Sequence[RankPass], numbers: Sequence[int], budgets: Sequence[Mapping[int, Parts]]) -> StepTable:
    def of(name: str) -> Numbers:
        rows = [
            [getattr(budget[number], name) if number in budget else np.nan for number in numbers] for budget in budgets
        ]
        return np.array(rows, dtype=np.float64)

    whole, comm = of("window_ns"), of("exposed_comm_ns")
    return StepTable(
        source="trace",
        clock="device" if any(rank.budget is not None and rank.budget.source == "device" for rank in ranks) else "host",
        rank_numbers=tuple(rank.facts.rank for rank in ranks),
        hosts=tuple(rank.facts.host or UNKNOWN_HOST for rank in ranks),
        numbers=np.array(numbers, dtype=np.int64),
        rounds=np.zeros(len(numbers), dtype=np.int64),
        whole_ns=whole,
        parts_ns={
            "computation": of("compute_ns"),
            "communication": comm,
            "copies": of("exposed_memory_ns"),
            "idle": of("idle_ns"),
        },
        comm_ns=comm,
        own_ns=whole - comm,
        delay_ns=np.full_like(whole, np.nan),
    )


def median_of_others(values: Numbers) -> Numbers:
    """Return for every rank and step the median of all other ranks' ``values`` [ranks, steps]; at least 2 ranks."""
    ordered = np.sort(values, axis=0)
    place = np.argsort(np.argsort(values, axis=0), axis=0)
    count = values.shape[0] - 1

    def pick(k: int) -> Numbers:
        return np.take_along_axis(ordered, np.where(k < place, k, k + 1), axis=0)

    if count % 2:
        return pick(count // 2)
    return np.asarray((pick(count // 2 - 1) + pick(count // 2)) / 2)


@lru_cache(maxsize=4)
def late_parts_ns(table: StepTable) -> Numbers:
    """Return what a rank's own time is spent in, in the order of ``LATE``, ns [parts, ranks, steps]: they sum to it."""
    nothing = np.zeros_like(table.own_ns)
    named = [np.nan_to_num(table.parts_ns.get(key, nothing)) for key in LATE if key != "other"]
    return np.stack([*named, np.maximum(table.own_ns - sum(named), 0.0)])


@lru_cache(maxsize=4)
def excess_ns(table: StepTable) -> Numbers:
    """Return own time minus the median of the others in the same step, ns [ranks, steps]; at least 2 ranks."""
    return np.asarray(table.own_ns - median_of_others(table.own_ns))


ROUNDING = 1e-6
"""Of the step: what is left of it by the rounding of records is no part."""


def tree_of(
    table: StepTable,
    parts: Mapping[str, Numbers],
    *,
    marked: str | None,
    row: int | None = None,
    every_rank: bool = False,
) -> tuple[VerdictPart, ...]:
    """Return the parts of ``records.parts`` that the table has: those of one level sum to the step.

    parts: ns [ranks, steps] by key, those without parts below them; NaN: not known of a rank. marked: what is the cause.
    row: of the rank whose means they are; None: the mean of all. every_rank: all ranks' means, not only where they differ.
    """
    whole = table.whole_ns.mean(axis=1)
    of_step = float(whole.mean() if row is None else whole[row])

    def part(key: str, values: Numbers, inner: tuple[VerdictPart, ...] = ()) -> VerdictPart:
        means = values.mean(axis=1)
        differ = table.ranks > 1 and float(np.ptp(means)) > RANKS_DIFFER * of_step
        ns = float(means.mean() if row is None else means[row])
        by_rank = tuple(zip(table.rank_numbers, means.tolist(), strict=True)) if differ or every_rank else ()
        return VerdictPart(key=key, ns=ns, share=ns / of_step, parts=inner, by_rank=by_rank, cause=key == marked)

    def group(key: str) -> VerdictPart | None:
        inner = [name for name in below(key) if name in parts]
        if not inner:
            return part(key, parts[key]) if key in parts else None
        values = parts.get(key, sum(parts[name] for name in inner))
        shown = [part(name, parts[name]) for name in inner if key == "communication" or parts[name].any()]
        return part(key, np.asarray(values), tuple(shown))

    keys = [step_part.key for step_part in (*STEP, *OF_TRACES) if step_part.parent is None]
    tree = [verdict_part for key in keys if (verdict_part := group(key)) is not None]
    return tuple(verdict_part for verdict_part in tree if verdict_part.share > ROUNDING)
