"""What ``stepscope compare`` and ``stepscope trace --diff`` do: read or measure both sides, compare, print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import listed, parse_ranges
from stepscope.cli.console import log, out, print_document, say
from stepscope.cli.fail_if import say_not_checked
from stepscope.cli.findings import show_table
from stepscope.core.errors import DataError, ExitCode, UsageError
from stepscope.core.places import telling_names
from stepscope.core.words import counted, unknown
from stepscope.report import documents
from stepscope.report.conditions import parse_changes, refuse_changed
from stepscope.report.views import comparison as comparison_views
from stepscope.results.differences import trace_conditions
from stepscope.stats.compare import MIN_REPLICATES

if TYPE_CHECKING:
    from stepscope.cli.commands.compare import Compare
    from stepscope.cli.commands.trace import Trace
    from stepscope.records.comparison import Comparison, Difference
    from stepscope.records.trace_summary import TraceDiff, TraceSummary
    from stepscope.results.comparing import Side
    from stepscope.results.differences import Conditions


ROUNDS = 6
MOST_ALONE = 8
"""So many of those without a partner are named one by one."""


def run(options: Compare) -> int:
    """Compare and show; the exit code. Raises StepscopeError."""
    from stepscope.cli.evidence import scaling_of
    from stepscope.report.documents import compare_changes, compare_document, compare_unchecked
    from stepscope.results.comparing import compare
    from stepscope.results.figures import COMPARED

    if len(options.paths) < 2:
        raise UsageError("compare needs two runs", fix="stepscope compare A B")
    conditions = parse_changes(options.fail_if, COMPARED)
    wanted = _wanted(options.metric, tuple(COMPARED))
    sides, measured = _measured(options) if options.run else (_read(options), ExitCode.OK)
    comparison = compare(sides, drop_epochs=options.drop_epochs, scaling=scaling_of(options.scaling))
    if wanted:
        figures = tuple(f for f in comparison.figures if f.metric in wanted)
        comparison = replace(comparison, figures=figures)
    if options.json:
        print_document(compare_document(comparison))
    elif options.md:
        from stepscope.report.comment import write_comment

        out().out(write_comment(comparison, conditions), end="", highlight=False)
    else:
        _show(comparison, every=options.everything)
    machines = all(source.kind == "machine" for side in sides for source in side.rounds[0].sources)
    if not (comparison.figures or comparison.scaling or machines):
        raise DataError(
            f"nothing to compare in {', '.join(map(str, options.paths))}",
            why="; ".join(comparison.unmatched[:4]) or "they hold no finished runs or collectives with figures",
            fix="compare runs of the same matrix, or single cells",
        )
    for condition in compare_unchecked(conditions, comparison):
        say_not_checked(condition, f"nothing compared here has {condition.key}")
    refuse_changed(conditions, compare_changes(comparison))
    return measured


def _wanted(text: str | None, figures: Sequence[str]) -> frozenset[str]:
    names = listed(text)
    for name in names:
        if name not in figures:
            raise UsageError(unknown("figure", name, figures))
    return frozenset(names)


def _read(options: Compare) -> list[Side]:
    from stepscope.api.comparison import is_untraced, side_of
    from stepscope.cli.evidence import EvidenceOptions, each_evidence
    from stepscope.store.diary import read_diaries
    from stepscope.store.layout import ProfileLayout

    names = telling_names(options.paths)
    diaries = {path: read_diaries(ProfileLayout(path)) for path in options.paths}
    given = EvidenceOptions(
        paths=tuple(path for path, timed in diaries.items() if not is_untraced(path, timed)),
        world_size=options.world_size,
        scaling=options.scaling,
        columns=options.columns,
        communication=options.communication,
        class_=options.class_,
        drop_epochs=options.drop_epochs,
    )
    read = dict(zip(given.paths, each_evidence(given), strict=True)) if given.paths else {}
    return [
        side_of(path, name, diaries[path], partial(read.__getitem__, path))
        for name, path in zip(names, options.paths, strict=True)
    ]


def _measured(options: Compare) -> tuple[list[Side], int]:
    """Run both matrix files in turns, A B, B A, A B, ...: what drifts on the machine reaches both alike."""
    from stepscope.cli.bench_run import run_plan
    from stepscope.cli.commands.bench import Bench
    from stepscope.cli.evidence import EvidenceOptions, read_evidence
    from stepscope.launch.torchrun import require_torch
    from stepscope.matrix.run_folder import default_run_dir
    from stepscope.matrix.session import make_plan
    from stepscope.results.comparing import Side

    if len(options.paths) != 2:
        raise UsageError("--run compares two matrix files", fix="stepscope compare --run A.yaml B.yaml")
    rounds = ROUNDS if options.rounds is None else options.rounds
    if rounds < MIN_REPLICATES:
        raise UsageError(
            f"--rounds {rounds}: at least {MIN_REPLICATES} on each side",
            why="with 3 + 3 rounds the smallest possible p is 0.10: no result could be significant",
        )
    require_torch()
    names = _names_of_matrices(options.paths)
    plans = [make_plan(path, overrides=options.set_, data_dir=options.data_dir) for path in options.paths]
    folder = options.output or default_run_dir("compare")
    codes: list[int] = []
    for number in range(1, rounds + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            place = _round_folder(folder, side, number)
            log(f"round {number} of {rounds}: {'AB'[side]} ({place})", "bold")
            code = run_plan(plans[side], Bench(output=place), printed=False)
            codes.append(code)
            if code == ExitCode.ALL_CELLS_FAILED:
                raise DataError(
                    f"round {number} of {options.paths[side]} gave no result",
                    why=f"every cell failed: {place / 'report' / 'summary.md'} says why",
                    fix="fix the cause and run the same command with the same -o",
                )
    sides = [
        Side(
            name=name,
            rounds=tuple(
                read_evidence(EvidenceOptions(paths=(_round_folder(folder, side, number),)))
                for number in range(1, rounds + 1)
            ),
        )
        for side, name in enumerate(names)
    ]
    log(f"{counted(rounds, 'round')} in {folder}")
    return sides, max(codes, default=0)


def _names_of_matrices(paths: Sequence[Path]) -> list[str]:
    """Return their file names; one file twice is compared with itself: what differs is noise."""
    if paths[0].resolve() == paths[1].resolve():
        log("both sides run the same matrix: any difference is the noise of this machine", "")
        return [f"{paths[0].stem} ({side})" for side in "AB"]
    return telling_names([path.with_suffix("") for path in paths])


def _round_folder(folder: Path, side: int, number: int) -> Path:
    return folder / f"{'ab'[side]}-{number:02d}"


def _show(comparison: Comparison, *, every: bool) -> None:
    """Print what differs, then the figures: one by one, or summed up where they are many and not every one was asked for."""
    from stepscope.report.views import comparison as tables

    summed = not every and len(comparison.figures) > tables.MOST_ROWS
    if comparison.figures or comparison.scaling:
        for line in tables.side_sentences(comparison):
            say(line, "bold")
        say()
    _show_scaling(comparison)
    few = summed or (not every and not comparison.figures)
    shown = tables.most_telling(comparison.differences) if few else comparison.differences
    print_conditions(comparison, shown, comparison.sides)
    say()
    table = tables.build_summed(comparison) if summed else tables.comparison_table(comparison)
    if table.rows:
        show_table(table, titled=True, folded=True)
    alone = comparison.unmatched if every else comparison.unmatched[: MOST_ALONE // 2 if summed else MOST_ALONE]
    for text in alone:
        say(f"! {text}", "yellow")
    if more := len(comparison.unmatched) - len(alone):
        say(f"! and {more} more without a partner", "yellow")
    hidden = len(comparison.differences) - len(shown)
    if hidden and not summed:
        say(f"{counted(hidden, 'more difference')}: the same command with --all", "dim")
    if summed:
        also = f" and {counted(hidden, 'more difference')} in settings" if hidden else ""
        say(f"{len(comparison.figures)} figures one by one{also}: the same command with --all", "dim")


def _show_scaling(comparison: Comparison) -> None:
    """Print the answer first: speed-up and efficiency of every pair of sides, and the parts that took the rest."""
    from stepscope.report.views import scaling
    from stepscope.results.scaling_budget import loss, verdict

    for budget in comparison.scaling:
        for line in verdict(budget):
            say(line, "bold")
        for reading in budget.readings:
            say(loss(budget, reading))
    table = scaling.scaling_budget_table(comparison.scaling)
    if table.rows:
        show_table(table, folded=True)
    if comparison.scaling:
        say()


def print_conditions(
    conditions: Comparison | Conditions, differences: Sequence[Difference], sides: Sequence[str]
) -> None:
    """Print what differs between the sides as a table, what is the same and what is not known as lines."""
    from stepscope.report.views import comparison as tables

    table = tables.differences_table(differences, sides)
    if table.rows:
        show_table(table, titled=True, folded=True)
    else:
        say("no known difference in machine, software or settings", "dim")
    for line in tables.said_of_conditions(conditions):
        say(line, "dim")


STEPS = "--diff-steps"


def run_diff(options: Trace, read: Callable[[str | None], TraceSummary]) -> int:
    """Compare and show; the exit code. read: the traces named by a path; None: those of the command itself."""
    from stepscope.api.trace_diff import compared_traces
    from stepscope.results.figures import figures_of

    conditions = parse_changes(options.fail_if, figures_of("rank"))
    after = read(None)
    before = after if options.diff is None else read(options.diff)
    names = _names(options)
    diffs, notes = compared_traces(
        before,
        after,
        names=names,
        ranks=parse_ranges(options.rank, "--rank"),
        steps=None if options.diff_steps is None else _two_ranges(options.diff_steps),
        limit=options.limit or None,
        jobs=None if options.diff is None else (Path(options.diff), Path(options.paths[0])),
    )
    circumstances = None if before is after else trace_conditions(before, after)
    if options.csv is not None:
        _write_csv(diffs, options.csv)
    if options.json:
        print_document(documents.diff_document(diffs, circumstances, notes=notes))
    else:
        if circumstances is not None:
            print_conditions(circumstances, circumstances.differ, names)
        _show_of_trace_diff(diffs, notes)
    for condition in documents.diff_unchecked(conditions, diffs):
        say_not_checked(condition, f"{names[0]} has no time there")
    refuse_changed(conditions, documents.diff_changes(diffs))
    return 0


def _names(options: Trace) -> tuple[str, str]:
    """Return what to call before and after."""
    if options.diff is None:
        return "before", "after"
    try:
        before, after = telling_names([Path(options.diff), Path(options.paths[0])])
    except UsageError:  # the same path twice: its noise
        return "before", "after"
    return before, after


def _show_of_trace_diff(diffs: Sequence[TraceDiff], notes: Sequence[str]) -> None:
    """Print every rank's verdict, and the rank whose step changed most in full."""
    say()
    for note in notes:
        say(f"! {note}", "yellow")
    for diff in diffs:
        _print_verdict(diff)
    chosen = max(diffs, key=lambda d: abs((d.ratio or 1.0) - 1.0))
    if len(diffs) > 1:
        say(f"\n{_rank(chosen)}, whose step changed most (--rank chooses another):")
    for table in comparison_views.diff_table(chosen):
        say()
        show_table(table, titled=True, folded=True)
    if chosen.left_out_rows:
        say(f"{counted(chosen.left_out_rows, 'row')} not shown: --limit 0 shows all", "dim")


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
    from stepscope.report.render.files import as_csv
    from stepscope.store.writer import make_dir, write_bytes

    make_dir(folder)
    for diff in diffs:
        for table in comparison_views.diff_table(diff):
            write_bytes(folder / f"{table.key}-rank-{diff.rank_after}.csv", as_csv(table).encode())


def _two_ranges(text: str) -> tuple[frozenset[int], frozenset[int]]:
    first, separator, second = text.partition(":")
    if not separator:
        raise UsageError(f"{STEPS} {text!r}: expected two ranges, as in 10-13:20-23")
    return parse_ranges(first, STEPS) or frozenset(), parse_ranges(second, STEPS) or frozenset()
