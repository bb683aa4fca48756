"""Kernels that run one after the other again and again: candidates for fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import SequenceRow
from stepscope.report.kernel_names import short_names
from stepscope.report.table import Column, Table, duration, number, percent, said, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, middle, most, over_ranks, over_ranks_note

NAME = 32

ARROW = " → "


def build(summary: TraceSummary) -> Table:
    """One row a sequence, over all ranks, most time in and between its kernels first."""
    passes = [p for p in summary.ranks if p.sequences]
    ranks = [p.facts.rank for p in passes]
    rows = (r for p in passes for r in p.sequences)
    merged = _once_a_cycle(over_ranks(rows, lambda r: r.kernels, lambda r: r.total_ns + r.gap_ns))
    names = short_names((k for rows in merged for k in rows[0].kernels), limit=NAME)
    return tabled(
        "sequences",
        "Frequent kernel sequences",
        (
            Column(
                "kernels",
                "kernels, one after the other",
                lambda rows: said(_joined(rows[0].kernels, names), ARROW.join(rows[0].kernels)),
                role="identity",
                lead=True,
            ),
            Column("count", "times", lambda rows: middle(rows, "count"), number),
            Column("total", "in kernels", lambda rows: middle(rows, "total_ns"), duration),
            Column("share", "share", lambda rows: sum(r.share for r in rows) / len(ranks), percent),
            Column("gap", "between", lambda rows: middle(rows, "gap_ns"), duration),
            Column(
                "largest_rank", "most", lambda rows: most({r.rank: r.total_ns + r.gap_ns for r in rows}, ranks), drop=1
            ),
        ),
        merged,
        footnotes=(
            "share: of the time of all kernels; between: gaps inside the sequence, which a fused kernel or a "
            "CUDA graph would not have",
            "sequences share kernels with each other: their times do not add up; a cycle is shown once, where it "
            "takes most time",
            *over_ranks_note(ranks),
        ),
        notes=gaps(summary, "sequences", otherwise="no sequence of compute kernels repeats at least three times"),
    )


def _once_a_cycle(ranked: Sequence[Sequence[SequenceRow]]) -> list[Sequence[SequenceRow]]:
    """Without those that are the same cycle as one before, begun at another kernel or gone round more than once."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for rows in ranked:
        kernels = rows[0].kernels
        length = len(kernels)
        period = next(p for p in range(1, length + 1) if length % p == 0 and kernels == kernels[:p] * (length // p))
        cycle = min(kernels[i:period] + kernels[:i] for i in range(period))
        if cycle not in seen:
            seen.add(cycle)
            kept.append(rows)
    return kept


def _joined(kernels: Sequence[str], names: Mapping[str, str]) -> str:
    """Short names; the same kernel several times in a row is said once with how often."""
    # Without blanks inside, so that lines break at the arrows.
    runs = [(names[name].replace(", ", ","), len(list(again))) for name, again in groupby(kernels)]
    return ARROW.join(name if count == 1 else f"{name}\u00a0x{count}" for name, count in runs)


VIEW = View(key="trace_sequences", title="Frequent kernel sequences", needs=("trace",), table=build)
