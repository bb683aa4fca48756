"""Jobs as sides of a comparison, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.answer import Answer
from stepscope.core.places import telling_names
from stepscope.report.documents import compare_document
from stepscope.report.frame import frame_of
from stepscope.report.views.comparison import build_differences, comparison_table, side_sentences
from stepscope.report.views.scaling import scaling_budget_table
from stepscope.results.comparing import Side, compare
from stepscope.results.evidence import Evidence, Source
from stepscope.results.profiled_job import read_profiled_job
from stepscope.results.scaling_budget import verdict
from stepscope.store.diary import RankDiary, read_diaries
from stepscope.store.layout import ProfileLayout

if TYPE_CHECKING:
    from stepscope.records.nouns import Scaling


def is_untraced(path: Path, diaries: Sequence[RankDiary]) -> bool:
    """Return whether the folder holds these diaries of steps and no window of profiled ones."""
    return bool(diaries) and not ProfileLayout(path).windows()


def side_of(path: Path, name: str, diaries: tuple[RankDiary, ...], read: Callable[[], Evidence]) -> Side:
    """Return one side: the diaries alone of a job whose steps were timed and not profiled; of others what ``read`` reads."""
    if not is_untraced(path, diaries):
        return Side(name=name, rounds=(read(),), diaries=diaries)
    job = read_profiled_job(path)
    profiled = () if job is None else (job,)
    evidence = Evidence(sources=(Source(path=path, kind="trace"),), profiled=profiled)
    return Side(name=name, rounds=(evidence,), diaries=diaries)


def compared(
    jobs: Sequence[tuple[Path, Callable[[], Evidence]]], *, drop_epochs: int, scaling: Scaling | None
) -> Answer:
    """Compare each later job with the first. jobs: the path of each, and what reads it. Raises UsageError for one twice."""
    names = telling_names([path for path, _ in jobs])
    sides = [
        side_of(path, name, read_diaries(ProfileLayout(path)), read)
        for name, (path, read) in zip(names, jobs, strict=True)
    ]
    comparison = compare(sides, drop_epochs=drop_epochs, scaling=scaling)
    tables = (build_differences(comparison), comparison_table(comparison), scaling_budget_table(comparison.scaling))
    lines = [line for budget in comparison.scaling for line in verdict(budget)]
    return Answer(
        headline="; ".join((*lines, *side_sentences(comparison))),
        frames={
            name: frame_of(table) for name, table in zip(("differences", "figures", "scaling"), tables, strict=True)
        },
        record=comparison,
        document=compare_document(comparison),
    )
