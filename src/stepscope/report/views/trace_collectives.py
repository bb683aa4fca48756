"""Communication of a trace: collectives (transfer apart from waiting), process groups, the strategy's plan."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from stepscope.core.units import format_bandwidth, format_duration, format_percent
from stepscope.core.words import counted, grouped, ranges
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_collectives import JobCollectives, MatchedCollective, RankCommunication
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.kernel_names import elided
from stepscope.report.shared.traces import gaps, shared, timed, who
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Value,
    bandwidth,
    duration,
    identity_column,
    judged,
    lead_column,
    number,
    percent,
    size,
    tabled,
    unknown,
    whole,
    with_share,
    wording,
)
from stepscope.report.views import View

SURE = 0.9
"""Matches from this confidence on need no word."""

_NONE = "no collective was recorded"


def collectives_table(summary: TraceSummary) -> Table:
    """Return the table: one row per operation, size, type and group, most time first."""
    job = summary.collectives
    notes = gaps(
        summary,
        "collectives",
        lambda p: p.communication is not None and bool(p.communication.collectives),
        otherwise=_NONE,
    )
    if job is None or not job.instances:
        return Table(key="collectives", title="Collectives", columns=_key_columns(()), rows=(), notes=notes)
    if len(job.clocks.fits) > 1:
        return _matched_table(summary, job, notes)
    return _one_rank_table(summary, job, notes)


Key = tuple[str, str | None, int | None, str | None]


def _call_key(m: MatchedCollective) -> Key:
    return m.op, m.dtype, m.size_bytes, _group_text(m)


def _group_text(m: MatchedCollective) -> str | None:
    if m.group is None:
        return None
    name = m.group.description or m.group.name
    return f"{name} ({m.group.size})" if m.group.size else name


def _spent_ns(instances: Sequence[MatchedCollective]) -> int:
    return sum(r.end_ns - r.start_ns for m in instances for r in m.ranks)


def _by_time(instances: Iterable[MatchedCollective]) -> list[tuple[Key, list[MatchedCollective]]]:
    return sorted(grouped(instances, _call_key).items(), key=lambda item: -_spent_ns(item[1]))


Item = tuple[Key, list[MatchedCollective]]


def _key_columns(instances: Sequence[MatchedCollective]) -> tuple[Column, ...]:
    """Return the columns that tell the rows apart; a group only where one is recorded."""
    op = lead_column("op", "operation", "0.0")
    if not instances:
        return (op,)
    group = identity_column("group", "group", lambda item: _elided_value(item[0][3]))
    return (
        op,
        identity_column("dtype", "type", "0.1"),
        lead_column("size", "size", "0.2", size),
        *((group,) if any(m.group for m in instances) else ()),
        Column("count", "count", lambda item: len(item[1]), number),
    )


def _elided_value(group: str | None) -> Value | None:
    return None if group is None else wording(elided(group, 20), group)


def _matched_table(summary: TraceSummary, job: JobCollectives, notes: tuple[str, ...]) -> Table:
    """Return the table of collectives that ranks were matched in: waiting, transfer, bandwidth."""
    shown = {p.facts.rank for p in summary.ranks}
    instances = [m for m in job.instances if any(r.rank in shown for r in m.ranks)]
    window = round(statistics.mean(summary.windows_ns.values() or [0]))
    confidences = {round(m.match_confidence, 2) for m in instances if m.match_confidence is not None}

    def exposed(item: Item) -> Value:
        ns = sum(r.exposed_ns for m in item[1] for r in m.ranks if r.rank in shown)
        return timed(round(ns / len(shown)), window, worry=(0.05, 0.15))

    def confidence(item: Item) -> float | None:
        return min((m.match_confidence for m in item[1] if m.match_confidence is not None), default=None)

    # A column that says the same sure thing everywhere is a footnote.
    sure = confidences and min(confidences) >= SURE
    return tabled(
        "collectives",
        "Collectives",
        _by_time(instances),
        *_key_columns(instances),
        Column("transfer", "transfer", lambda item: _known_median(m.transfer_ns for m in item[1]), duration),
        Column("waiting", "waiting", lambda item: _waiting_value(item[1], shown), duration),
        Column("skew", "skew", lambda item: _known_median(m.skew_ns for m in item[1]), duration, drop=1),
        Column("last_rank", "mostly last", lambda item: _last_rank_value(item[1]), short="last"),
        Column("busbw", "busbw", lambda item: _bus_bandwidth(item[1]), bandwidth),
        Column("exposed", "exposed", exposed, duration),
        *(() if sure else (Column("confidence", "match", confidence, percent, drop=2),)),
        footnotes=(
            "transfer, skew: median; from the last rank's arrival to the first exit, from first to last arrival",
            "waiting, exposed: mean a rank; for later ranks, share of the time inside; "
            "under no computation, share of the window",
            *_bandwidth_note(instances),
            f"{_matching_text(instances, confidences)}; {job.clocks.text}{_residual_text(job)}",
        ),
        notes=(*notes, *job.notes, *_unsplit_notes(instances)),
    )


def _known_median(values: Iterable[int | None]) -> float | None:
    recorded = [v for v in values if v is not None]
    return statistics.median(recorded) if recorded else None


def _waiting_value(instances: Sequence[MatchedCollective], shown: set[int]) -> Value:
    """Write the waiting of the ranks shown, and its share of their time."""
    parts = [r for m in instances if m.waiting_ns is not None for r in m.ranks if r.rank in shown]
    if not parts:
        return unknown()
    waited = sum(r.waiting_ns or 0 for r in parts)
    inside = sum(r.end_ns - r.start_ns for r in parts)
    share = waited / inside if inside else 0.0
    tone = judged(share, 0.3, 0.6)
    return with_share(round(waited / len(shown)), min(share, 1.0), tone)


def _last_rank_value(instances: Sequence[MatchedCollective]) -> Value:
    """Say who came last most often, of the instances in which one rank alone did."""
    split = [m for m in instances if m.skew_ns is not None]
    lasts = Counter(m.last_ranks[0] for m in split if len(m.last_ranks) == 1)
    if not lasts:
        return unknown()
    rank, times = min(lasts.items(), key=lambda item: (-item[1], item[0]))
    return Value(f"rank {rank}, {times} of {len(split)}", rank, compact=f"{rank}, {times}/{len(split)}")


def _bus_bandwidth(instances: Sequence[MatchedCollective]) -> Value:
    """Return the bus bytes of all instances / their time. With waiting inside, or ranks missing, the least it can be."""
    rated = [m for m in instances if m.busbw_bytes_per_s and m.bandwidth_basis is not None]
    transfers = [m for m in rated if m.bandwidth_basis == "transfer"]
    used = transfers or rated
    seconds = [_basis_ns(m) / 1e9 for m in used]
    if not used or not sum(seconds):
        return unknown()
    moved = sum((m.busbw_bytes_per_s or 0) * s for m, s in zip(used, seconds, strict=True))
    rate = moved / sum(seconds)
    bound = any(_is_bound(m) for m in used)
    return Value(f"{'≥ ' if bound else ''}{format_bandwidth(rate)}", rate)


def _basis_ns(m: MatchedCollective) -> int:
    if m.bandwidth_basis == "transfer" and m.transfer_ns is not None:
        return m.transfer_ns
    return max(r.end_ns - r.start_ns for r in m.ranks)


def _is_bound(m: MatchedCollective) -> bool:
    return m.bandwidth_basis == "duration" or not m.complete


def _bandwidth_note(instances: Sequence[MatchedCollective]) -> tuple[str, ...]:
    """Say what busbw is, and of how many instances it is."""
    rated = [m for m in instances if m.busbw_bytes_per_s]
    if not rated:
        return ()
    text = "busbw: as in nccl-tests, GB = 1e9 bytes"
    if any(_is_bound(m) for m in rated):
        text += "; ≥: the time holds waiting, so the link was at least that fast"
    return (text,)


def _matching_text(instances: Sequence[MatchedCollective], confidences: set[float]) -> str:
    """Say how instances were matched, and how sure that is."""
    methods = Counter(m.match_method for m in instances if m.match_confidence is not None)
    if not methods:
        return "no collective was seen on two ranks"
    how = ", ".join(f"{_METHODS.get(k, k)} {n:,}" if len(methods) > 1 else _METHODS.get(k, k)
                    for k, n in methods.most_common())  # fmt: skip
    low, high = min(confidences), max(confidences)
    sure = format_percent(low) if low == high else f"{format_percent(low)} to {format_percent(high)}"
    return f"matched over ranks by {how}, confidence {sure}"


_METHODS = {
    "sequence": "sequence number",
    "comms_id": "communicator",
    "peers": "peers",
    "order": "order",
    "order_shifted": "order, shifted windows",
    "order_and_time": "order and time",
}


def _residual_text(job: JobCollectives) -> str:
    worst = max((f.residual_ns for f in job.clocks.fits if f.residual_ns is not None), default=None)
    return "" if worst is None else f" (ends lie within {format_duration(worst)})"


def _unsplit_notes(instances: Sequence[MatchedCollective]) -> tuple[str, ...]:
    """Say why instances were not split; those seen on one rank only the job's own notes count."""
    reasons = Counter(m.unsplit for m in instances if m.unsplit and len(m.ranks) > 1)
    return tuple(f"{counted(n, 'collective')} not split: {why}" for why, n in reasons.most_common())


def _one_rank_table(summary: TraceSummary, job: JobCollectives, notes: tuple[str, ...]) -> Table:
    """Return the table of the collectives of one rank: waiting and transfer are not told apart."""
    instances = job.instances
    rank = next((p for p in summary.ranks if p.communication is not None), None)
    window = rank.budget.parts.window_ns if rank and rank.budget else 0
    queued = rank.communication if rank else None
    return tabled(
        "collectives",
        "Collectives",
        _by_time(instances),
        *_key_columns(instances),
        Column("total", "total", lambda item: shared(_spent_ns(item[1]), window), duration),
        Column("median", "median", lambda item: _known_median(_longest_ns(m) for m in item[1]), duration),
        Column("largest", "longest", lambda item: max(_longest_ns(m) for m in item[1]), duration, drop=2),
        Column(
            "exposed",
            "exposed",
            lambda item: timed(sum(m.exposed_ns for m in item[1]), window, worry=(0.05, 0.15)),
            duration,
        ),
        Column("queue", "queued", lambda item: _median_queue_ns(item[1], queued), duration, drop=1),
        Column("busbw", "busbw", lambda item: _bus_bandwidth(item[1]), bandwidth),
        footnotes=(
            "one rank's trace cannot separate waiting for a late rank from transfer; "
            "give all ranks' traces to split them",
            "total, exposed: share of the window; queued: median from the host's call to the start",
            *_bandwidth_note(instances),
        ),
        notes=(*notes, *job.notes),
    )


def _longest_ns(m: MatchedCollective) -> int:
    return max(r.end_ns - r.start_ns for r in m.ranks)


def _median_queue_ns(instances: Sequence[MatchedCollective], own: RankCommunication | None) -> float | None:
    if own is None:
        return None
    return _known_median(own.collectives[r.position].queue_ns for m in instances for r in m.ranks)


def groups_table(summary: TraceSummary) -> Table:
    """Return the table: one row per group; median over the ranks that use it."""
    whole_ns = summary.windows_ns

    def exposed(budgets: Sequence[GroupBudget]) -> Value:
        window = int(median(whole_ns[m.rank] for m in budgets))
        return timed(_median_of(budgets, "exposed_ns"), window, worry=(0.1, 0.25))

    rows = (row for rank in summary.ranks for row in rank.groups)
    by_group = grouped(rows, lambda row: (row.group, row.description, row.size))
    return tabled(
        "groups",
        "Communication by process group",
        by_group.values(),
        lead_column("group", "group", lambda budgets: wording(_group_name(budgets[0]), budgets[0].group)),
        identity_column("kind", "carries", lambda budgets: _carries_value(budgets[0])),
        Column("size", "ranks in it", "0.size", whole),
        Column("seen", "seen", lambda budgets: wording(ranges(m.rank for m in budgets), len(budgets))),
        Column("collectives", "calls", lambda budgets: median(m.collectives for m in budgets), Format("{:g}".format)),
        Column("bytes", "bytes", _sent_bytes, size),
        Column("comm", "comm", lambda budgets: _median_of(budgets, "comm_ns"), duration),
        Column("exposed", "exposed", exposed, duration),
        footnotes=(
            "a rank, median over those seen; bytes: payload of all calls; exposed: under no computation",
            "carries: data, tensor, pipeline, expert or context parallel traffic, by the group's description or operations",
        ),
        notes=() if by_group else ("no collectives in this trace",),
    )


def _median_of(budgets: Sequence[GroupBudget], field: str) -> int:
    return int(median(getattr(m, field) for m in budgets))


def _group_name(row: GroupBudget) -> str:
    label = f"{row.group} {row.description}".strip() if row.description != row.group else row.group
    return label or "not recorded"


def _carries_value(row: GroupBudget) -> Value:
    return wording(
        f"{row.kind} (by operations)" if row.kind_source == "operations" else row.kind or "unknown", row.kind or None
    )


def _sent_bytes(budgets: Sequence[GroupBudget]) -> float | None:
    sizes = [m.size_bytes for m in budgets if m.size_bytes is not None]
    return median(sizes) if len(sizes) == len(budgets) else None


MANY_DIFFERENCES = 12

NO_PLAN = "no communication plan in this trace (`stepscope bench --profile` writes one)"


def conformance_table(summary: TraceSummary) -> Table:
    """Return the table: one row per set of ranks with the same outcome."""
    checks = [p.conformance for p in summary.ranks if p.conformance is not None]
    alike = grouped(
        checks,
        lambda c: (
            c.strategy,
            c.steps,
            c.planned_per_step,
            c.launched_in_backward,
            c.overlap_planned,
            c.holds,
            c.certain,
        ),
    )
    texts: dict[str, list[int]] = defaultdict(list)
    for c in checks:
        for text in c.differences:
            texts[text].append(c.rank)
    sentences = [f"{who(ranks)}: {text}" for text, ranks in texts.items()]
    more = len(sentences) - MANY_DIFFERENCES
    outcomes = {
        None: Value("no whole step", None, tone="dim"),
        True: Value("yes", True, tone="good"),
        False: Value("no", False, tone="bad"),
    }
    rearranged = Value("other pieces", False)
    return tabled(
        "conformance",
        "Communication against the plan",
        alike.values(),
        lead_column("ranks", "ranks", lambda same: ranges(c.rank for c in same)),
        lead_column("strategy", "strategy", lambda same: same[0].strategy or None),
        Column("steps", "steps", "0.steps", number),
        Column("planned", "planned a step", "0.planned_per_step", number),
        Column("in_backward", "in backward", "0.launched_in_backward", number),
        Column(
            "overlap_planned",
            "overlap planned",
            lambda same: wording("yes" if same[0].overlap_planned else "no", same[0].overlap_planned),
        ),
        Column("differences", "differences", lambda same: max(len(c.differences) for c in same), number),
        Column(
            "holds",
            "as planned",
            lambda same: rearranged if same[0].differences and not same[0].certain else outcomes[same[0].holds],
        ),
        footnotes=(
            "planned a step: collectives in the strategy's plan; in backward: launched inside the backward pass, "
            "in all steps",
        ),
        notes=(
            *gaps(summary, "conformance", otherwise=NO_PLAN),
            *sentences[:MANY_DIFFERENCES],
            *((f"{more} more differences",) if more > 0 else ()),
        ),
    )


VIEWS = (
    View("trace_collectives", table=collectives_table),
    View("trace_groups", table=groups_table),
    View("trace_conformance", table=conformance_table),
)
