"""The quality of a trace, checked before it is judged: what was not recorded, is not known, or cannot be.

Of one rank: a check is a function of its view. Of ranks side by side: a function of their passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stepscope.records.trace_quality import QualityFact
from stepscope.records.trace_summary import RankPass, missing_ranks
from stepscope.stats.spans import median
from stepscope.traces.classes import unknown_fact, unused_classes
from stepscope.traces.events import RankView
from stepscope.traces.launches import launches_of, lost_launches

LEAST_LOST = 0.01
"""Of the launches: below it a kernel without a launch or a launch without a kernel changes nothing that is said."""


AHEAD_NS, MOST_AHEAD = 100_000, 0.1
"""Of the device events with a launch, at most this share may begin so long before it: clocks are aligned to microseconds."""


def _missing_kernels(view: RankView) -> Iterator[QualityFact]:
    """Yield how many launches have no kernel, or captured ones none, and copies where nothing else lacks."""
    launches = lost_launches(view)
    captured, of, lost = len(launches.captured), len(launches.calls), len(launches.lost)
    if any(note.kind == "truncated" for note in view.trace.notes):
        lost -= launches.behind  # their kernels are behind the place where the file stops, which is its own note
    for kind, count in (("captured-kernels", captured), ("missing-kernels", lost - captured)):
        if count > 0:
            yield QualityFact(kind=kind, rank=view.rank, count=count, of=of, matters=count >= LEAST_LOST * of)
    count, of = len(launches.copies_lost), len(launches.copies)
    if count > 0 and not len(launches.lost) and not any(note.kind == "truncated" for note in view.trace.notes):
        yield QualityFact(kind="missing-copies", rank=view.rank, count=count, of=of, matters=count >= LEAST_LOST * of)


def _unknown_kernels(view: RankView) -> Iterator[QualityFact]:
    if view.events.is_device.any() and (fact := unknown_fact(view)) is not None:
        yield fact


def _unused_classes(view: RankView) -> Iterator[QualityFact]:
    if view.wanted.classes and (unused := unused_classes(view)):
        yield QualityFact(kind="unused-classes", rank=view.rank, names=unused, matters=False)


def _clock_facts(view: RankView) -> Iterator[QualityFact]:
    """Yield that kernels begin clearly before their launches, and by how much, where many do."""
    launches, events = launches_of(view), view.events
    begins = events.ts_ns[launches.of[launches.linked]]
    ahead = events.ts_ns[launches.launch[launches.linked]] - begins
    early = ahead > AHEAD_NS
    if early.sum() > MOST_AHEAD * len(begins):
        yield QualityFact(
            kind="clocks-apart",
            rank=view.rank,
            count=int(early.sum()),
            of=len(begins),
            time_ns=round(median(ahead[early])),
        )


CHECKS: tuple[Callable[[RankView], Iterable[QualityFact]], ...] = (
    _missing_kernels,
    _clock_facts,
    _unknown_kernels,
    _unused_classes,
)


def _missing_ranks(passes: Sequence[RankPass]) -> Iterator[QualityFact]:
    """Ranks of the job whose traces are not here. It changes nothing that is said of those that are: what rests on all ranks
    is worded so."""
    missing, world = missing_ranks(passes)
    if missing:
        names = tuple(f"rank {rank}" for rank in missing)
        yield QualityFact(kind="missing-ranks", count=len(missing), of=world, names=names, matters=False)


JOB_CHECKS: tuple[Callable[[Sequence[RankPass]], Iterable[QualityFact]], ...] = (_missing_ranks,)


def rank_quality(view: RankView) -> tuple[QualityFact, ...]:
    """Return what is wrong with one rank's trace."""
    return tuple(fact for check in CHECKS for fact in check(view))


def job_quality(passes: Sequence[RankPass]) -> tuple[QualityFact, ...]:
    """Return what is wrong between the ranks' traces."""
    return tuple(fact for check in JOB_CHECKS for fact in check(passes))
