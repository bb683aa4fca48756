"""A rank's activity as few spans: the same classes and exact totals as its budget, small enough for a page."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from stepscope.records.trace_budget import KINDS, WAITING, IdleSpan, KindSpans, NamedSpan, RankSpans
from stepscope.stats import spans
from stepscope.stats.spans import Spans, union
from stepscope.traces.activity import activity_of
from stepscope.traces.events import RankView
from stepscope.traces.idle import IdleGaps, gaps_of
from stepscope.traces.waits import pack, unpack

MAX_SPANS = 10_000
"""Spans kept of one rank, all kinds together."""

MAX_NAMED = 100
MAX_GAPS = 100
MAX_NAME = 120
_EDGE_SHARE = 8
"""Edges are stored to an eighth of the smallest gap that is kept: nobody sees more."""


def timeline_spans(view: RankView) -> RankSpans | None:
    """Spans of one rank by kind, at most about ``MAX_SPANS`` in all; None when it recorded no work.

    The kinds are the budget's: their totals are those of ``activity.parts_within`` over the whole window.
    """
    activity = activity_of(view)
    window = activity.window
    if window is None or window[1] <= window[0]:
        return None
    low, high = window
    compute, comm, memory = (
        spans.clip(busy, low=low, high=high) for busy in (activity.compute, activity.comm, activity.memory)
    )
    exposed = spans.subtract(comm, compute)
    by_kind = {
        "compute": compute,
        "hidden_comm": spans.intersect(comm, compute),
        "exposed_comm": exposed,
        "copies": spans.subtract(spans.subtract(memory, compute), comm),
    }
    kept, merged_ns = fewer(by_kind, limit=MAX_SPANS)
    unit_ns = max(1, merged_ns // _EDGE_SHARE)
    return RankSpans(
        rank=view.rank,
        source=activity.source,
        start_ns=low,
        window_ns=high - low,
        unit_ns=unit_ns,
        merged_ns=merged_ns,
        kinds=tuple(
            KindSpans(
                kind=kind,
                total_ns=by_kind[kind].measure,
                count=len(by_kind[kind]),
                kept=len(kept[kind]),
                packed=pack(kept[kind], origin=low, unit=unit_ns),
            )
            for kind in KINDS
        ),
        named=tuple(_longest_spans(view)),
        gaps=tuple(_longest_idle_spans(gaps_of(view))),
    )


def coarser(given: RankSpans, *, limit: int, named: int, gaps: int = MAX_GAPS) -> RankSpans:
    """The same timeline with at most about ``limit`` spans, ``named`` names and ``gaps``; totals and counts stay."""
    names = tuple(sorted(given.named, key=lambda n: -n.duration_ns)[:named])
    idle = tuple(sorted(given.gaps, key=lambda g: -g.duration_ns)[:gaps])
    given = replace(given, named=names, gaps=idle)
    if sum(kind.kept for kind in given.kinds) <= limit:
        return given
    by_kind = {k.kind: unpack(k.packed, origin=given.start_ns, unit=given.unit_ns) for k in given.kinds}
    kept, merged_ns = fewer(by_kind, limit=limit)
    merged_ns = max(merged_ns, given.merged_ns)
    unit_ns = max(given.unit_ns, merged_ns // _EDGE_SHARE)
    return replace(
        given,
        unit_ns=unit_ns,
        merged_ns=merged_ns,
        kinds=tuple(
            replace(k, kept=len(kept[k.kind]), packed=pack(kept[k.kind], origin=given.start_ns, unit=unit_ns))
            for k in given.kinds
        ),
    )


def waiting_apart(given: RankSpans, waits: Spans) -> RankSpans:
    """Split each kind of communication in two: the part within ``waits`` (the rank has entered a collective, another one has
    not) and the rest. The two totals sum to that of the kind; where gaps were closed the split is as exact as the spans.
    """
    kinds: list[KindSpans] = []
    for kind_spans in given.kinds:
        if kind_spans.kind not in WAITING:
            kinds.append(kind_spans)
            continue
        whole = unpack(kind_spans.packed, origin=given.start_ns, unit=given.unit_ns)
        waited = _gaps_closed(spans.intersect(whole, waits), given.merged_ns)
        rest = _gaps_closed(spans.subtract(whole, waits), given.merged_ns)
        share = spans.intersect(whole, waits).measure / max(1, whole.measure)
        waited_ns = round(kind_spans.total_ns * share)
        for kind, part, total in (
            (WAITING[kind_spans.kind], waited, waited_ns),
            (kind_spans.kind, rest, kind_spans.total_ns - waited_ns),
        ):
            packed = pack(part, origin=given.start_ns, unit=given.unit_ns)
            kinds.append(KindSpans(kind=kind, total_ns=total, count=len(part), kept=len(part), packed=packed))
    return replace(given, kinds=tuple(kinds))


def fewer(by_kind: Mapping[str, Spans], *, limit: int) -> tuple[dict[str, Spans], int]:
    """Spans with the smallest gaps of each kind closed until about ``limit`` are left, and the longest gap closed.

    No span vanishes: every kind keeps at least one where it had any. 0 when nothing had to be closed.
    """
    total = sum(len(s) for s in by_kind.values())
    gaps = np.concatenate([s.starts[1:] - s.ends[:-1] for s in by_kind.values()] or [np.zeros(0, np.int64)])
    surplus = min(total - limit, len(gaps))
    if surplus <= 0:
        return dict(by_kind), 0
    longest = int(np.partition(gaps, surplus - 1)[surplus - 1])
    return {kind: _gaps_closed(s, longest) for kind, s in by_kind.items()}, longest


def _gaps_closed(given: Spans, longest_gap: int) -> Spans:
    """Return the spans with short gaps between them filled."""
    if len(given) < 2:
        return given
    opens = np.concatenate([[True], given.starts[1:] - given.ends[:-1] > longest_gap])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(given)) - 1
    return union(given.starts[first], given.ends[last])


def _longest_spans(view: RankView) -> Iterator[NamedSpan]:
    """The longest events of the activity, in order of start."""
    events = view.events
    chosen = heapq.nlargest(MAX_NAMED, activity_of(view).indices.tolist(), key=lambda i: int(events.dur_ns[i]))
    for index in sorted(chosen, key=lambda i: int(events.ts_ns[i])):
        yield NamedSpan(
            start_ns=int(events.ts_ns[index]),
            duration_ns=int(events.dur_ns[index]),
            name=_short_name(events.names[events.name[index]]),
        )


def _longest_idle_spans(gaps: IdleGaps) -> Iterator[IdleSpan]:
    """The longest gaps, in order of start."""
    lengths = gaps.holes.ends - gaps.holes.starts
    if not len(lengths):
        return
    causes = list(gaps.by_cause)
    most = np.argmax(np.stack([gaps.by_cause[cause] for cause in causes]), axis=0)
    for at in np.sort(np.argsort(-lengths, kind="stable")[:MAX_GAPS]).tolist():
        yield IdleSpan(start_ns=int(gaps.holes.starts[at]), duration_ns=int(lengths[at]), cause=causes[int(most[at])])


def _short_name(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
