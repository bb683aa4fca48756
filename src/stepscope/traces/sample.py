"""A sample of a job's ranks: the files of those asked for, and what they cannot tell of the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.words import counted, listed
from stepscope.records.trace_summary import FileNote, TraceSummary
from stepscope.traces.envelope import rank_from_name

_NAMED = 4
"""Groups that the note names; the rest is a number."""


def files_of(files: Sequence[Path], ranks: Collection[int], stated: Mapping[str, int]) -> list[Path]:
    """Return the files of these ranks, as the user states them, or as their names do: looking into files takes as long as
    reading them. Raises UsageError."""
    by_file = {file: stated.get(str(file), stated.get(file.name, rank_from_name(file))) for file in files}
    present = sorted({rank for rank in by_file.values() if rank is not None})
    if missing := sorted(set(ranks) - set(present)):
        what = f"--ranks: no trace of rank {missing[0]}"
        if silent := [file.name for file, rank in by_file.items() if rank is None]:
            why = f"the names of {counted(len(silent), 'file')} state no rank: {listed(silent, at_most=2)}"
            raise UsageError(what, why=why, fix=f"state them: --rank-of {silent[0]}=N")
        raise UsageError(what, fix=f"there are {listed(list(map(str, present)), at_most=8)}")
    return [file for file, rank in by_file.items() if rank in ranks]


def what_a_sample_leaves_open(summary: TraceSummary, files: int) -> tuple[FileNote, ...]:
    """Notes on what is unknown as other ranks were not read; ``files``: how many there are."""
    read = [p.facts.rank for p in summary.ranks]
    if len(read) == files:
        return ()
    texts = [
        f"a sample, {counted(len(read), 'rank')} of {files:,} files: unknown are stragglers among the others, what those "
        "wait for, and whether one of these waited for one of them, which counts as transfer"
    ]
    if lacking := _incomplete(summary):
        shown = [f"{name} ({seen:,} of {size:,} ranks)" for name, (seen, size) in lacking.items()]
        texts.append(f"groups that are not complete in the sample: {listed(shown, at_most=_NAMED)}")
    return tuple(FileNote(rank=None, kind="missing", text=text) for text in texts)


def _incomplete(summary: TraceSummary) -> dict[str, tuple[int, int]]:
    """Return by name how many ranks of a group were read, and its size, for groups alone that lack some."""
    seen: dict[tuple[str, object, int], set[int]] = defaultdict(set)
    for rank in summary.ranks:
        for call in rank.communication.collectives if rank.communication is not None else ():
            if (group := call.group) is not None and group.size is not None:
                seen[group.name, group.ranks, group.size].add(rank.facts.rank)
    return {name: (len(ranks), size) for (name, _, size), ranks in seen.items() if len(ranks) < size}
