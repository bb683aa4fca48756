"""What of one side is what of another; runs beside their baselines: what rules about scaling and learning look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from stepscope.core.dataclass import record
from stepscope.core.words import counted, grouped
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.evidence import Evidence, name_of
from stepscope.results.learning import TIME_KEPT, duplicated

SHARED = 0.5
"""Efficiency of another strategy, from which on it shows that the machine scales."""

T = TypeVar("T")
Key = Callable[[T], object]


def matched(
    first: Sequence[T], second: Sequence[T], *keys: Key[T]
) -> tuple[list[tuple[T, T]], tuple[list[T], list[T]]]:
    """Return pairs in the order of ``first``, and what of either side has no partner.

    Two are a pair by the first key that is theirs alone: of one in ``first``, and of one that is left of ``second``.
    """
    partners: dict[int, T] = {}
    free = list(second)
    for key in keys:
        firsts, seconds = grouped(first, key), grouped(free, key)
        for value, alike in firsts.items():
            if len(alike) == len(seconds.get(value, ())) == 1 and id(alike[0]) not in partners:
                partners[id(alike[0])] = seconds[value][0]
        taken = {id(partner) for partner in partners.values()}
        free = [element for element in free if id(element) not in taken]
    pairs = [(element, partners[id(element)]) for element in first if id(element) in partners]
    return pairs, ([element for element in first if id(element) not in partners], free)


@record
class Pair:
    """A run, its baseline and what the one is of the other. among: how many runs they are of."""

    row: ScalingRow
    run: TrainingRun
    base: TrainingRun
    among: int

    @property
    def relative(self) -> float:
        """Ranks over the baseline's ranks: the most that the speed-up can be."""
        return self.row.world_size / self.row.baseline_world_size

    @property
    def copies(self) -> bool:
        """Whether every rank trains on all the data instead of its part."""
        return duplicated(self.run, self.base)

    @property
    def keeps_its_epochs(self) -> bool:
        """Whether an imported run's epoch takes as long as the baseline's on half the ranks or fewer, and nothing counts
        its samples: each rank may run all of it."""
        same = TIME_KEPT <= 1 / self.row.speedup <= 1 / TIME_KEPT and self.relative >= 2
        rated = self.run.samples_per_s or self.run.rank_samples_per_s or self.run.samples_seen_per_rank
        return same and "epoch" in self.row.basis and self.run.workload is None and not rated

    @property
    def mixed(self) -> dict[str, tuple[object, object]]:
        """What decides the speed beside the ranks, and differs: then the ratio is not that of the ranks."""
        from stepscope.results.scaling import beside_ranks

        return beside_ranks(self.run, self.base, among=self.among)

    @property
    def ranks(self) -> str:
        """``4 ranks``."""
        return counted(self.row.world_size, "rank")

    @property
    def base_ranks(self) -> str:
        """``1 rank``."""
        return counted(self.row.baseline_world_size, "rank")

    @property
    def name(self) -> str:
        """``mlp small on synthetic, fp32: ddp on 2 ranks``: what findings are about."""
        return name_of(self.run)

    @property
    def speedup_text(self) -> str:
        """``3.49x (95% interval 3.45 to 3.54, mean of epochs 2 to 20)``."""
        row = self.row
        interval = "" if row.low is None or row.high is None else f"95% interval {row.low:.3g} to {row.high:.3g}, "
        return f"{row.speedup:.2f}x ({interval}{row.basis})"


def pairs(evidence: Evidence) -> tuple[Pair, ...]:
    """Every run that has a speed-up, baselines left out."""
    by_id = {run.run_id: run for run in evidence.runs}
    return tuple(
        Pair(row=row, run=by_id[row.run_id], base=by_id[row.baseline_id], among=len(by_id))
        for row in evidence.scaling
        if not row.is_baseline and row.run_id in by_id and row.baseline_id in by_id
    )


def by_group(compared: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Group pairs by model, data and precision."""
    return grouped(compared, lambda pair: pair.row.group)


def sharing_beside(pair: Pair, others: Iterable[Pair]) -> Pair | None:
    """Return a run of another strategy on as many ranks of the same table that gets faster, where this one's epochs do not
    get shorter; None: there is none, or this one's do."""
    if (
        pair.run.workload is not None
        or pair.row.basis == "throughput"
        or pair.row.speedup * TIME_KEPT > 1
        or pair.mixed
    ):
        return None
    files = [run.source.rpartition(":")[0] or run.source for run in (pair.run, pair.base)]
    scaling = (
        other
        for other in others
        if (other.row.world_size, other.run.strategy == pair.run.strategy) == (pair.row.world_size, False)
        and (other.run.group, other.row.basis) == (pair.run.group, pair.row.basis)
        and {other.run.source.rpartition(":")[0] or other.run.source} == set(files)
        and other.row.efficiency > SHARED
    )
    return max(scaling, key=lambda other: other.row.speedup, default=None)
