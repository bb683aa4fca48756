"""``stepscope trace NEW --diff OLD``: what got slower, and whether that is more than noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stepscope.cli.blocks import print_block
from stepscope.cli.console import err, out, print_json
from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.report.render import terminal
from stepscope.report.tables import trace_diff

if TYPE_CHECKING:
    from stepscope.records.trace_diff import TraceDiff
    from stepscope.records.trace_summary import RankPass, TraceSummary

SEED = 0


def run(
    old: Sequence[str],
    new: Sequence[str],
    *,
    analyse: Callable[[Sequence[str]], TraceSummary],
    ranks: frozenset[int] | None,
    limit: int,
    as_json: bool,
) -> int:
    """Compare rank by rank; the rank whose step changed most is shown in full. Raises DataError."""
    from stepscope import __version__
    from stepscope.records import codec

    diffs = compare(analyse(old), analyse(new), ranks=ranks, limit=limit or None)
    if as_json:
        head = {"schema": "stepscope.trace_diff/1", "tool_version": __version__}
        print_json(
            json.dumps({**head, "diffs": [codec.to_builtins(d) for d in diffs]}, indent=1, allow_nan=False)
        )
        return 0
    console = out()
    for diff in diffs:
        ratio = "" if diff.ratio is None else f": step {diff.ratio:.3f} of before"
        if diff.ratio_low is not None and diff.ratio_high is not None:
            ratio += f" ({diff.ratio_low:.3f} to {diff.ratio_high:.3f})"
        style = {"slower": "bold red", "faster": "bold green"}.get(diff.verdict, "bold")
        console.print(f"rank {diff.rank_after}: {diff.verdict}{ratio}", style=style, soft_wrap=True)
        console.print(f"    {diff.why}", style="dim", soft_wrap=True)
    chosen = max(diffs, key=lambda d: abs((d.ratio or 1.0) - 1.0))
    if len(diffs) > 1:
        console.print(f"\nrank {chosen.rank_after}, whose step changed most (--rank chooses another):")
    for table in trace_diff.build(chosen):
        console.print()
        console.print(table.title, style="bold")
        print_block(console, terminal.render(table, width=console.width))
    return 0


def compare(
    before: TraceSummary, after: TraceSummary, *, ranks: frozenset[int] | None, limit: int | None
) -> list[TraceDiff]:
    """Every rank that both jobs have; two single traces are compared whatever their ranks."""
    import numpy as np

    from stepscope.traces.diff import diff_profiles

    old = {p.facts.rank: p for p in before.ranks}
    new = {p.facts.rank: p for p in after.ranks if ranks is None or p.facts.rank in ranks}
    pairs: list[tuple[RankPass, RankPass]] = [(old[r], p) for r, p in new.items() if r in old]
    if not pairs and len(old) == len(new) == 1:
        pairs = [(*old.values(), *new.values())]  # type: ignore[list-item]
    if not pairs:
        raise DataError(
            "nothing to compare: the two jobs share no rank",
            why=f"ranks {sorted(old)[:8]} against {sorted(new)[:8]}",
            fix="name the same ranks of both, or one trace each",
        )
    if left := len(set(old) ^ {p.facts.rank for _, p in pairs}):
        err().print(f"{counted(left, 'rank')} of one side only: not compared", style="dim")
    rng = np.random.default_rng(SEED)
    diffs = [
        diff_profiles(a.profile, b.profile, rng=rng, limit=limit)
        for a, b in pairs
        if a.profile is not None and b.profile is not None
    ]
    if not diffs:
        raise DataError("nothing to compare: no device work and no operators in one of the two")
    return diffs
