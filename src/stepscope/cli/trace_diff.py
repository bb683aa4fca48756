"""``stepscope trace NEW --diff OLD`` and ``--diff-steps``: what got slower, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.cli.blocks import print_block
from stepscope.cli.console import err, out, print_json
from stepscope.cli.ranges import parse_ranges
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import counted
from stepscope.report.render import terminal
from stepscope.report.views import trace_diff

if TYPE_CHECKING:
    from stepscope.records.trace_diff import TraceDiff, WorkProfile
    from stepscope.records.trace_summary import TraceSummary

Pair = tuple["WorkProfile", "WorkProfile"]

SEED = 0
OPTION = "--diff-steps"


def pairs(before: TraceSummary, after: TraceSummary, *, ranks: frozenset[int] | None, steps: str | None) -> list[Pair]:
    """Before and after of every rank that both jobs have; two single traces are compared whatever their ranks.

    ``steps`` (``10-13:20-23``) takes the first steps of ``before`` and the second ones of ``after``.
    Raises DataError when the jobs share no rank, UsageError for steps that are not there.
    """
    old = {p.facts.rank: p.profile for p in before.ranks if p.profile is not None}
    new = {p.facts.rank: p.profile for p in after.ranks if p.profile is not None}
    if ranks is not None:
        new = {r: p for r, p in new.items() if r in ranks}
    found = [(old[r], p) for r, p in new.items() if r in old]
    if not found and len(old) == len(new) == 1:
        found = [(next(iter(old.values())), next(iter(new.values())))]
    if not found:
        raise DataError(
            "nothing to compare: the two jobs share no rank with device work or operators",
            why=f"ranks {sorted(old)[:8]} against {sorted(new)[:8]}",
            fix="name the same ranks of both, or one trace each",
        )
    if ranks is None and (left := len(old) + len(new) - 2 * len(found)) > 0:
        err().print(f"{counted(left, 'rank')} of one side only: not compared", style="dim")
    if steps is None:
        return found
    first, second = _two_ranges(steps)
    return [(_chosen(a, first), _chosen(b, second)) for a, b in found]


def show(found: Sequence[Pair], *, limit: int, as_json: bool) -> int:
    """Print every rank's verdict, and the rank whose step changed most in full."""
    import numpy as np

    from stepscope import __version__
    from stepscope.records import codec
    from stepscope.traces.diff import diff_profiles

    rng = np.random.default_rng(SEED)
    diffs = [diff_profiles(a, b, rng=rng, limit=limit or None) for a, b in found]
    if as_json:
        head = {"schema": "stepscope.trace_diff/1", "tool_version": __version__}
        document = {**head, "diffs": [codec.plain(d) for d in diffs]}
        print_json(codec.encode_document(document))
        return 0
    console = out()
    for diff in diffs:
        _print_verdict(diff)
    chosen = max(diffs, key=lambda d: abs((d.ratio or 1.0) - 1.0))
    if len(diffs) > 1:
        console.print(f"\nrank {chosen.rank_after}, whose step changed most (--rank chooses another):")
    for table in trace_diff.build(chosen):
        console.print()
        console.print(table.title, style="bold")
        print_block(console, terminal.render(table, width=console.width))
    return 0


def _print_verdict(diff: TraceDiff) -> None:
    ratio = "" if diff.ratio is None else f": step {diff.ratio:.3f} of before"
    if diff.ratio_low is not None and diff.ratio_high is not None:
        ratio += f" ({diff.ratio_low:.3f} to {diff.ratio_high:.3f})"
    style = {"slower": "bold red", "faster": "bold green"}.get(diff.verdict, "bold")
    out().print(f"rank {diff.rank_after}: {diff.verdict}{ratio}", style=style, soft_wrap=True)
    out().print(f"    {diff.why}", style="dim", soft_wrap=True)


def _two_ranges(text: str) -> tuple[frozenset[int], frozenset[int]]:
    first, separator, second = text.partition(":")
    if not separator:
        raise UsageError(f"{OPTION} {text!r}: expected two ranges, as in 10-13:20-23")
    return parse_ranges(first, OPTION) or frozenset(), parse_ranges(second, OPTION) or frozenset()


def _chosen(profile: WorkProfile, steps: frozenset[int]) -> WorkProfile:
    from stepscope.traces.diff import only_steps

    if missing := sorted(steps - set(profile.steps)):
        known = ", ".join(str(s) for s in profile.steps[:20])
        raise UsageError(f"{OPTION}: no step {missing[0]} on rank {profile.rank}", fix=f"steps recorded: {known}")
    return only_steps(profile, steps)
