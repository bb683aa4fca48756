"""``stepscope trace NEW --diff OLD`` and ``--diff-steps``: what got slower, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.blocks import show_table
from stepscope.cli.command import require_only
from stepscope.cli.compare_run import print_conditions
from stepscope.cli.console import out, print_document, say
from stepscope.cli.findings import say_not_checked
from stepscope.cli.ranges import parse_ranges
from stepscope.core.errors import DataError, UsageError
from stepscope.core.grouping import ranges
from stepscope.core.places import telling_names
from stepscope.core.words import counted
from stepscope.report import diff_document
from stepscope.report.conditions import parse_changes, refuse_changed
from stepscope.report.views import trace_diff
from stepscope.results.differences import trace_conditions

if TYPE_CHECKING:
    from stepscope.cli.commands.trace import Trace
    from stepscope.records.trace_diff import TraceDiff, WorkProfile
    from stepscope.records.trace_summary import TraceSummary

Pair = tuple["WorkProfile", "WorkProfile"]

STEPS = "--diff-steps"
OBEYED = frozenset({
    "paths", "rank", "limit", "cell", "rank_of", "diff", "diff_steps", "processes", "cache", "csv", "fail_if", "json",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Before and after of every rank that is compared, and what is to be said about who is compared with whom."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()


def run(options: Trace, read: Callable[[str | None], TraceSummary]) -> int:
    """Compare and show; the exit code. read: the traces named by a path; None: those of the command itself."""
    from stepscope.traces.diff import diff_profiles

    require_only(options, "--diff" if options.diff is not None else STEPS, OBEYED)
    conditions = parse_changes(options.fail_if, diff_document.METRICS)
    after = read(None)
    before = after if options.diff is None else read(options.diff)
    names = _names(options)
    found = paired(before, after, names=names, ranks=parse_ranges(options.rank, "--rank"), steps=options.diff_steps)
    told = None if before is after else trace_conditions(before, after)
    diffs = [diff_profiles(a, b, limit=options.limit or None) for a, b in found.pairs]
    if options.diff is not None and options.diff_steps is None:
        diffs = _by_all_steps(diffs, Path(options.diff), Path(options.paths[0]))
    if options.csv is not None:
        _write_csv(diffs, options.csv)
    if options.json:
        print_document(diff_document.document(diffs, told, notes=found.notes))
    else:
        if told is not None:
            print_conditions(told, told.differ, names)
        _show(diffs, found.notes)
    for condition in diff_document.unchecked(conditions, diffs):
        say_not_checked(condition, f"{names[0]} has no time there")
    refuse_changed(conditions, diff_document.changes(diffs))
    return 0


def _by_all_steps(diffs: Sequence[TraceDiff], before: Path, after: Path) -> list[TraceDiff]:
    """With the verdict of all timed steps, where both are profiled jobs whose hook timed them; parts stay the windows'."""
    from stepscope.core.errors import Unavailable
    from stepscope.results.compared_diaries import step_change, timed_steps
    from stepscope.store.diary import read_diaries
    from stepscope.store.layout import ProfileLayout
    from stepscope.traces.diff import step_verdict

    old, new = (timed_steps(read_diaries(ProfileLayout(path))) for path in (before, after))
    if isinstance(old, Unavailable) or isinstance(new, Unavailable):
        return list(diffs)
    found = []
    for diff in diffs:
        told = step_change(old, new, (diff.rank_before, diff.rank_after))
        if told is not None:
            change, kind = told
            steps = f"{old.step.size:,} + {new.step.size:,} timed steps of the whole job, replicate: {kind}"
            verdict, why = step_verdict(change, f"over {steps}")
            diff = replace(
                diff, verdict=verdict, why=f"{why}; the tables are of the profiled steps", ratio=change.ratio,
                ratio_low=change.low, ratio_high=change.high, p_value=change.p_value,
            )  # fmt: skip
        found.append(diff)
    return found


def _names(options: Trace) -> tuple[str, str]:
    """What to call before and after."""
    if options.diff is None:
        return "before", "after"
    try:
        before, after = telling_names([Path(options.diff), Path(options.paths[0])])
    except UsageError:  # the same path twice: its noise
        return "before", "after"
    return before, after


def paired(
    before: TraceSummary,
    after: TraceSummary,
    *,
    names: tuple[str, str] = ("before", "after"),
    ranks: frozenset[int] | None = None,
    steps: str | None = None,
) -> Paired:
    """Before and after of every rank that both jobs have; two single traces are compared whatever their ranks.

    ``steps`` (``10-13:20-23``) takes the first steps of ``before`` and the second ones of ``after``.
    Raises DataError when the jobs share no rank, UsageError for steps or ranks that are not there.
    """
    old = {p.facts.rank: p.profile for p in before.ranks if p.profile is not None}
    new = {p.facts.rank: p.profile for p in after.ranks if p.profile is not None}
    if ranks is not None:
        if missing := sorted(ranks - (old.keys() & new.keys())):
            side = names[1] if missing[0] not in new else names[0]
            known = new if missing[0] not in new else old
            raise UsageError(f"--rank: no trace of rank {missing[0]} in {side}", fix=f"it has ranks {ranges(known)}")
        old, new = ({r: p for r, p in side.items() if r in ranks} for side in (old, new))
    found = [(old[r], p) for r, p in new.items() if r in old]
    notes = []
    if not found and len(old) == len(new) == 1:
        ((mine, a),), ((theirs, b),) = old.items(), new.items()
        found = [(a, b)]
        notes.append(f"rank {mine} of {names[0]} is compared with rank {theirs} of {names[1]}: each has one trace")
    elif found:
        notes += [
            f"{names[side]} alone has {'rank' if len(left) == 1 else 'ranks'} {ranges(left)}: not compared"
            for side, left in ((0, old.keys() - new.keys()), (1, new.keys() - old.keys()))
            if left
        ]
    if not found:
        for name, summary in zip(names, (before, after), strict=True):
            if why := next((p.unread for p in summary.ranks if p.unread), None):
                raise DataError(f"nothing to compare: the device of {name} was not read", why=why)
        raise DataError(
            "nothing to compare: the two jobs share no rank with device work or operators",
            why=f"{names[0]} has ranks {ranges(old) or 'none'}, {names[1]} has ranks {ranges(new) or 'none'}",
            fix="name the same ranks of both, or one trace each",
        )
    if steps is not None:
        first, second = _two_ranges(steps)
        found = [(_chosen(a, first), _chosen(b, second)) for a, b in found]
    return Paired(pairs=tuple(found), notes=tuple(notes))


def _show(diffs: Sequence[TraceDiff], notes: Sequence[str]) -> None:
    """Every rank's verdict, and the rank whose step changed most in full."""
    console = out()
    console.print()
    for note in notes:
        say(f"! {note}", "yellow")
    for diff in diffs:
        _print_verdict(diff)
    chosen = max(diffs, key=lambda d: abs((d.ratio or 1.0) - 1.0))
    if len(diffs) > 1:
        console.print(f"\n{_rank(chosen)}, whose step changed most (--rank chooses another):")
    for table in trace_diff.build(chosen):
        console.print()
        show_table(table, titled=True, folded=True)
    if chosen.left_out_rows:
        console.print(f"{counted(chosen.left_out_rows, 'row')} not shown: --limit 0 shows all", style="dim")


def _rank(diff: TraceDiff) -> str:
    against = "" if diff.rank_before == diff.rank_after else f" against rank {diff.rank_before}"
    return f"rank {diff.rank_after}{against}"


def _print_verdict(diff: TraceDiff) -> None:
    ratio = "" if diff.ratio is None else f": step {diff.ratio:.3f} of before"
    if diff.ratio_low is not None and diff.ratio_high is not None:
        ratio += f" ({diff.ratio_low:.3f} to {diff.ratio_high:.3f})"
    style = {"slower": "bold red", "faster": "bold green"}.get(diff.verdict, "bold")
    say(f"{_rank(diff)}: {diff.verdict}{ratio}", style)
    say(f"    {diff.why}", "dim")


def _write_csv(diffs: Sequence[TraceDiff], folder: Path) -> None:
    from stepscope.report.render import csv as csv_render
    from stepscope.store.writer import make_dir, write_bytes

    make_dir(folder)
    for diff in diffs:
        for table in trace_diff.build(diff):
            write_bytes(folder / f"{table.key}-rank-{diff.rank_after}.csv", csv_render.render(table).encode())


def _two_ranges(text: str) -> tuple[frozenset[int], frozenset[int]]:
    first, separator, second = text.partition(":")
    if not separator:
        raise UsageError(f"{STEPS} {text!r}: expected two ranges, as in 10-13:20-23")
    return parse_ranges(first, STEPS) or frozenset(), parse_ranges(second, STEPS) or frozenset()


def _chosen(profile: WorkProfile, steps: frozenset[int]) -> WorkProfile:
    from stepscope.traces.diff import only_steps

    if missing := sorted(steps - set(profile.steps)):
        raise UsageError(
            f"{STEPS}: no step {missing[0]} on rank {profile.rank}", fix=f"steps recorded: {ranges(profile.steps)}"
        )
    return only_steps(profile, steps)
