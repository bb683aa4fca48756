"""What changed between two traces of a job, or two ranges of its steps: kernels, operators, parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.answer import Answer
from stepscope.api.traces import traces_of
from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.words import ranges
from stepscope.records.trace_summary import DiffRow
from stepscope.report.documents import diff_document
from stepscope.report.frame import Frame, Values
from stepscope.results.differences import trace_conditions
from stepscope.traces.diff import diff_profiles, step_verdict

if TYPE_CHECKING:
    from stepscope.api.reading import ReadingOptions
    from stepscope.records.trace_summary import TraceDiff, TraceSummary, WorkProfile

Pair = tuple["WorkProfile", "WorkProfile"]
TwoRanges = tuple[frozenset[int], frozenset[int]]


def compared_traces(
    before: TraceSummary,
    after: TraceSummary,
    *,
    names: tuple[str, str],
    ranks: frozenset[int] | None,
    steps: TwoRanges | None,
    limit: int | None = None,
    jobs: tuple[Path, Path] | None = None,
) -> tuple[list[TraceDiff], list[str]]:
    """Return the difference of every rank that both have, and what is to be said about who is compared with whom.

    limit: most kernels and operators; None: all. jobs: the paths, where these are of two jobs. Raises UsageError, DataError.
    """
    pairs, notes = paired(before, after, names=names, ranks=ranks, steps=steps)
    diffs = [diff_profiles(a, b, limit=limit) for a, b in pairs]
    return (diffs if jobs is None or steps is not None else _by_all_steps(diffs, *jobs)), notes


def diff_of(
    before: Path, after: Path | None, asked: ReadingOptions, *, ranks: Sequence[int] | None, steps: TwoRanges | None
) -> Answer:
    """Compare the traces of two jobs, or two ranges of steps of one. Raises UsageError, DataError."""
    from stepscope.core.places import telling_names

    if after is None and steps is None:
        raise UsageError("diff needs another job, or two ranges of steps of this one")
    old = _profiled(before, asked)
    new = old if after is None else _profiled(after, asked)
    first, second = ("before", "after") if after is None else telling_names([before, after])
    diffs, notes = compared_traces(
        old,
        new,
        names=(first, second),
        ranks=None if ranks is None else frozenset(ranks),
        steps=steps,
        jobs=None if after is None else (before, after),
    )
    verdicts = [f"rank {diff.rank_after}: {diff.verdict}" for diff in diffs]
    return Answer(
        headline="; ".join(dict.fromkeys((*verdicts, *(diff.why for diff in diffs)))),
        frames={name: _frame(name, diffs) for name in ("parts", "kernels", "operators")},
        record=tuple(diffs),
        document=diff_document(diffs, None if old is new else trace_conditions(old, new), notes=notes),
    )


def _frame(name: str, diffs: Sequence[TraceDiff]) -> Frame:
    """Return the rows of one kind, of each rank: per step, the median over steps."""
    rows = [(diff.rank_after, row) for diff in diffs for row in getattr(diff, name)]
    columns: dict[str, Values] = {"rank": [rank for rank, _ in rows]}
    columns |= {f.name: [getattr(row, f.name) for _, row in rows] for f in fields(DiffRow) if f.name != "kind"}
    units = {column: "ns" for column in columns if column.endswith("_ns")}
    return Frame(key=f"diff_{name}", title=f"{name.capitalize()} before and after", columns=columns, units=units)


def _profiled(path: Path, asked: ReadingOptions) -> TraceSummary:
    from stepscope.traces.job import analyse_job
    from stepscope.traces.sections import Wanted

    wanted = Wanted(
        sections=frozenset({"profile"}), classes=asked.kernel_classes, window=asked.window, ranks=asked.ranks
    )
    return analyse_job(traces_of(str(path), asked.cell), wanted)


def paired(
    before: TraceSummary,
    after: TraceSummary,
    *,
    names: tuple[str, str] = ("before", "after"),
    ranks: frozenset[int] | None = None,
    steps: TwoRanges | None = None,
) -> tuple[list[Pair], list[str]]:
    """Return before and after of every rank that both jobs have, and what is to be said about who is compared with whom; two
    single traces are compared whatever their ranks.

    steps: the first of ``before`` and the second of ``after``.
    Raises DataError when the jobs share no rank, UsageError for steps or ranks that are not there.
    """
    old = {p.facts.rank: p.profile for p in before.ranks if p.profile is not None}
    new = {p.facts.rank: p.profile for p in after.ranks if p.profile is not None}
    if ranks is not None:
        if missing := sorted(ranks - (old.keys() & new.keys())):
            side = names[1] if missing[0] not in new else names[0]
            recorded = new if missing[0] not in new else old
            raise UsageError(f"--rank: no trace of rank {missing[0]} in {side}", fix=f"it has ranks {ranges(recorded)}")
        old, new = ({r: p for r, p in side.items() if r in ranks} for side in (old, new))
    pairs = [(old[r], p) for r, p in new.items() if r in old]
    notes = []
    if not pairs and len(old) == len(new) == 1:
        ((old_rank, a),), ((new_rank, b),) = old.items(), new.items()
        pairs = [(a, b)]
        notes.append(
            f"rank {old_rank} of {names[0]} is compared with rank {new_rank} of {names[1]}: each has one trace"
        )
    elif pairs:
        notes += [
            f"{names[side]} alone has {'rank' if len(left) == 1 else 'ranks'} {ranges(left)}: not compared"
            for side, left in ((0, old.keys() - new.keys()), (1, new.keys() - old.keys()))
            if left
        ]
    if not pairs:
        for name, summary in zip(names, (before, after), strict=True):
            if why := next((p.unread for p in summary.ranks if p.unread), None):
                raise DataError(f"nothing to compare: the device of {name} was not read", why=why)
        raise DataError(
            "nothing to compare: the two jobs share no rank with device work or operators",
            why=f"{names[0]} has ranks {ranges(old) or 'none'}, {names[1]} has ranks {ranges(new) or 'none'}",
            fix="name the same ranks of both, or one trace each",
        )
    if steps is not None:
        pairs = [(_only(a, steps[0]), _only(b, steps[1])) for a, b in pairs]
    return pairs, notes


def _by_all_steps(diffs: Sequence[TraceDiff], before: Path, after: Path) -> list[TraceDiff]:
    """Give ``diffs`` the verdict of all timed steps, where the hook timed those of both jobs; parts stay the windows'."""
    from stepscope.results.comparing import step_change, timed_steps
    from stepscope.store.diary import read_diaries
    from stepscope.store.layout import ProfileLayout

    old, new = (timed_steps(read_diaries(ProfileLayout(path))) for path in (before, after))
    if isinstance(old, Unavailable) or isinstance(new, Unavailable):
        return list(diffs)
    judged = []
    for diff in diffs:
        tested = step_change(old, new, (diff.rank_before, diff.rank_after))
        if tested is not None:
            change, kind = tested
            steps = f"{old.steps:,} + {new.steps:,} timed steps of the whole job, replicate: {kind}"
            verdict, why = step_verdict(change, f"over {steps}")
            diff = replace(
                diff, verdict=verdict, why=f"{why}; the tables are of the profiled steps", ratio=change.ratio.value,
                ratio_low=change.ratio.low, ratio_high=change.ratio.high, p_value=change.p_value,
            )  # fmt: skip
        judged.append(diff)
    return judged


def _only(profile: WorkProfile, steps: frozenset[int]) -> WorkProfile:
    from stepscope.traces.diff import only_steps

    if missing := sorted(steps - set(profile.steps)):
        raise UsageError(
            f"--diff-steps: no step {missing[0]} on rank {profile.rank}", fix=f"steps recorded: {ranges(profile.steps)}"
        )
    return only_steps(profile, steps)
