"""Gradient buckets: when each was ready, launched and reduced, and how much of it nothing hid."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from stepscope.core.words import counted, grouped
from stepscope.records.trace_collectives import BucketRow
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import (
    Column,
    Table,
    Value,
    binary_size,
    duration,
    judged,
    number,
    tabled,
    whole,
    with_share,
)
from stepscope.report.view import View
from stepscope.report.views._trace import gaps

NONE = (
    "no collective was launched while a gradient was being accumulated: no buckets of "
    "DistributedDataParallel or of gradient hooks"
)


def build(summary: TraceSummary) -> Table:
    """One row per bucket (place in the step, size), medians over ranks and steps."""
    rows = [b for p in summary.ranks for b in _chosen(p.buckets, {s.step for s in p.steps})]
    first = _first_ready(rows)
    found = grouped(rows, lambda b: (b.index, b.op, b.size_bytes, b.dtype))
    ranks = {b.rank for b in rows}
    steps = {b.step for b in rows}
    wrappers = sorted({b.wrapper for b in rows})

    def since(time: Callable[[BucketRow], int | None]) -> Callable[[Sequence[BucketRow]], float | None]:
        def median(buckets: Sequence[BucketRow]) -> float | None:
            known = [at - first[b.rank, b.step] for b in buckets if (at := time(b)) is not None]
            return statistics.median(known) if known else None

        return median

    return tabled(
        "buckets",
        "Gradient buckets",
        (
            Column("bucket", "bucket", lambda of: of[0].index, whole, role="identity", lead=True),
            Column("op", "operation", lambda of: of[0].op, role="identity"),
            Column("dtype", "type", lambda of: of[0].dtype, role="identity"),
            Column("size", "size", lambda of: of[0].size_bytes, binary_size, role="identity", lead=True),
            Column("seen", "seen", len, number, drop=2),
            Column("members", "gradients", _members, number, short_title="grads"),
            Column("ready", "ready", since(lambda b: b.ready_ns), duration),
            Column("launch", "launch", since(lambda b: b.launch_ns), duration),
            Column("waited", "queued", lambda of: statistics.median(b.waited_ns for b in of), duration),
            Column("duration", "took", lambda of: statistics.median(b.end_ns - b.start_ns for b in of), duration),
            Column("end", "end", since(lambda b: b.end_ns), duration, drop=1),
            Column("exposed", "exposed", _exposed, duration),
        ),
        (each for _, each in sorted(found.items(), key=lambda item: (item[0][0], -(item[0][2] or 0)))),
        footnotes=_footnotes(len(ranks), len(steps), wrappers),
        notes=(*gaps(summary, "buckets", otherwise=NONE), *_notes(rows)),
    )


def _chosen(buckets: Sequence[BucketRow], steps: set[int]) -> Sequence[BucketRow]:
    """Those of the steps that are shown; all where none of them belongs to one."""
    inside = [b for b in buckets if b.step in steps]
    return inside or buckets


def _first_ready(rows: Sequence[BucketRow]) -> dict[tuple[int, int | None], int]:
    """When the first bucket of each rank and step was ready: where its times count from."""
    first: dict[tuple[int, int | None], int] = {}
    for b in rows:
        at = b.launch_ns if b.ready_ns is None else min(b.ready_ns, b.launch_ns)
        key = (b.rank, b.step)
        first[key] = min(first.get(key, at), at)
    return first


def _exposed(buckets: Sequence[BucketRow]) -> Value:
    exposed = statistics.median(b.exposed_ns for b in buckets)
    share = sum(b.exposed_ns for b in buckets) / max(1, sum(b.end_ns - b.start_ns for b in buckets))
    return with_share(exposed, share, judged(share, 0.5, 0.9))


def _members(buckets: Sequence[BucketRow]) -> int | None:
    counts = Counter(len(b.members) for b in buckets if b.members is not None)
    return counts.most_common(1)[0][0] if counts else None


def _footnotes(ranks: int, steps: int, wrappers: Sequence[str]) -> tuple[str, ...]:
    known = {"ddp": "DistributedDataParallel", "hooks": "gradient hooks"}
    of = ", ".join(known.get(w, w) for w in wrappers)
    over = f"medians over {counted(steps, 'step')} and {counted(ranks, 'rank')}"
    return (
        f"buckets of {of} in order of launch; {over}; MiB = 2^20 bytes",
        "ready, launch, end: since the step's first bucket was ready or launched; queued: from ready and "
        "launched to its start; exposed: under no computation, share of its time",
    )


def _notes(rows: Sequence[BucketRow]) -> list[str]:
    reasons = Counter(b.members_unavailable for b in rows if b.members_unavailable)
    notes = [f"gradients of {n} of {len(rows)} buckets unknown: {why}" for why, n in reasons.most_common()]
    by_index: dict[int, set[int | None]] = defaultdict(set)
    for b in rows:
        by_index[b.index].add(b.size_bytes)
    if any(len(sizes) > 1 for sizes in by_index.values()):
        notes.append("the partition into buckets is not the same in all steps and ranks")
    return notes


VIEW = View(key="trace_buckets", title="Gradient buckets", needs=("trace",), table=build)
