"""Tables of collectives as nccl-tests has them: sweeps, overview, fastest settings, beside computation, matmul."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.errors import UsageError
from stepscope.core.units import format_decimal, format_plus_minus, format_size
from stepscope.core.words import counted, grouped, listed
from stepscope.records.comm import CommRow
from stepscope.report.table import (
    ABOVE,
    Column,
    Format,
    Raw,
    Table,
    Value,
    byte_size,
    flops,
    gigabytes,
    group_column,
    identity_column,
    judged,
    lead_column,
    microseconds,
    percent,
    tabled,
    times,
    unknown,
    whole,
    wording,
)
from stepscope.report.views import View
from stepscope.results.comm_facts import Winner, above_peak, best_size, interval_share, winners
from stepscope.results.labels import (
    comm_failure_label,
    comm_ranks_label,
    device_label,
    env_label,
    flight_label,
    network_label,
    op_label,
    origins,
    pacing_label,
    place_label,
    redop_label,
    size_of,
    sweep_names,
    sweeps,
)

Head = tuple[Column, ...]


def size_column(title: str, form: Format = whole, **how: Any) -> Column:
    """Return the column of sizes: bytes as nccl-tests prints them, or with a unit; ``all sizes`` for a cell without one."""

    def size(row: CommRow) -> Value:
        size_bytes = size_of(row)
        return Value("all sizes", None) if size_bytes is None else form(size_bytes)

    return Column("size_bytes", title, size, form, unit="bytes", **{"role": "lead", **how})


def of_link(row: CommRow | None) -> Value:
    """Return busbw / peak of the link: ``above`` where it exceeds the peak, which is no share of it."""
    fraction = None if row is None else row.link_fraction
    if row is None or fraction is None or above_peak(row, row.link_peak_bytes_per_s) is None:
        return percent(fraction)
    return Value(ABOVE, fraction, tone="dim")


def above_notes(rows: Iterable[CommRow]) -> tuple[str, ...]:
    """Say why some of ``rows`` are above the peak of their link."""
    why = dict.fromkeys(above_peak(row, row.link_peak_bytes_per_s) for row in rows)
    return tuple(f"{ABOVE}: faster than the link's peak: {reason}." for reason in why if reason is not None)


def average_busbw(sweep: Sequence[CommRow]) -> float | None:
    """Return the unweighted mean of busbw over a sweep's sizes, bytes/s (nccl-tests' last line); None without any."""
    rates = [row.busbw_bytes_per_s for row in sweep if row.status == "ok" and row.busbw_bytes_per_s is not None]
    return sum(rates) / len(rates) if rates else None


def heading(rows: Sequence[CommRow], *, env: bool = True, op: bool = True) -> Head:
    """Return the group columns: operation, ranks, device; where they say something mode, settings, network and origin."""
    origin = origins(rows)
    paced = len({row.pacing for row in rows}) > 1

    def mode(row: CommRow) -> str:
        return ", ".join([place_label(row), flight_label(row), *([pacing_label(row)] if paced else [])])

    head = [
        group_column("source", "from", origin) if origin is not None else None,
        group_column("op", "operation", op_label) if op else None,
        group_column("world_size", "ranks", lambda row: Value(comm_ranks_label(row), row.world_size)),
        group_column("device", "device", device_label),
        group_column("mode", "mode", mode) if op else None,
        group_column("env", "settings", lambda row: env_label(row.env))
        if env and any(row.env for row in rows)
        else None,
        group_column("network", "network", network_label) if any(row.network for row in rows) else None,
    ]
    return tuple(column for column in head if column is not None)


def in_groups(rows: Iterable[CommRow], head: Head) -> tuple[CommRow, ...]:
    """Put ``rows`` of one heading together, in order of first appearance."""
    blocks = grouped(rows, lambda row: tuple(column.value(row).text for column in head))
    return tuple(row for block in blocks.values() for row in block)


def failed(row: CommRow) -> str | None:
    """Say why a row has no figures; None where it has them."""
    return None if row.status == "ok" else comm_failure_label(row)


MAX_AVERAGES = 4
"""From more sweeps than this on, their averages stand in the overview table only."""


def comm_table(rows: Sequence[CommRow]) -> Table:
    """Return the table of the collectives among ``rows``; sizes keep their order."""
    collectives = [row for row in rows if row.kind == "collective"]
    head = heading(collectives)
    ordered = in_groups(collectives, head)
    return tabled(
        "comm",
        "Collectives",
        ordered,
        *head,
        *_COLUMNS,
        failure=failed,
        footnotes=(*average_lines(ordered), *_sweep_footnotes(ordered)),
        notes=_row_notes(ordered),
    )


def _is_rooted(op: str) -> bool:
    try:
        return COLLECTIVES.load(op).rooted
    except UsageError:  # rows of a collective that is not installed here
        return False


def _wrong_value(row: CommRow) -> Value:
    if row.correct is None:
        return Value("N/A", None, tone="dim")
    return Value("0", True) if row.correct else Value(">0", False, tone="bad")


_COLUMNS = (
    size_column("size (B)"),
    identity_column("count", "count (elements)", "numel", whole, short="count", drop=6),
    identity_column("dtype", "type", "dtype", whole),
    identity_column("reduce_op", "redop", redop_label, whole),
    identity_column("root", "root", lambda row: row.root if _is_rooted(row.op) else -1, whole),
    Column("time_ns", "time (us)", "time_ns", microseconds),
    Column("algbw", "algbw (GB/s)", "algbw_bytes_per_s", gigabytes, short="algbw", drop=10),
    Column("busbw", "busbw (GB/s)", "busbw_bytes_per_s", gigabytes, short="busbw"),
    Column("correct", "#wrong", _wrong_value, whole),
    Column("interval_fraction", "±95%", interval_share, Format(format_plus_minus), drop=9),
    Column("time_ns_min", "min (us)", "time_ns_min", microseconds, short="min", drop=1),
    Column("time_ns_p90", "p90 (us)", "time_ns_p90", microseconds, short="p90", drop=2),
    Column("time_ns_p99", "p99 (us)", "time_ns_p99", microseconds, short="p99", drop=8),
    Column("time_ns_max", "max (us)", "time_ns_max", microseconds, short="max", drop=3),
    Column("rank_spread", "spread", "rank_spread", percent, drop=5),
    Column("slowest_rank", "slowest", "slowest_rank", whole, drop=4),
    Column("link_fraction", "of link", of_link, percent, drop=7),
)


def average_lines(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """Write nccl-tests' average bus bandwidth, one line a sweep, with what it is an average of; none for many sweeps."""
    averages = [(sweep, mean) for sweep in sweeps(rows).values() if (mean := average_busbw(sweep)) is not None]
    if len(averages) > MAX_AVERAGES:
        return ()
    called = sweep_names(rows)
    lines = [
        f"Avg bus bandwidth: {format_decimal(mean / 1e9)} GB/s, {op_label(sweep[0])} on {called(sweep[0])}, {_over(sweep)}."
        for sweep, mean in averages
    ]
    if lines:
        lines.append(
            "Avg bus bandwidth is the plain mean over the sizes, as nccl-tests prints it: which sizes were asked for"
            " decides it."
        )
    return tuple(lines)


def _over(sweep: Sequence[CommRow]) -> str:
    measured = [
        row.size_bytes
        for row in sweep
        if row.status == "ok" and row.busbw_bytes_per_s is not None and row.size_bytes is not None
    ]
    missing = len(sweep) - len(measured)
    text = (
        f"{counted(len(measured), 'size')} from {format_size(min(measured))} to {format_size(max(measured))}"
        if len(measured) > 1
        else f"1 size ({', '.join(map(format_size, measured))})"
    )
    return f"{text}, {missing} without a result left out" if missing else text


def _sweep_footnotes(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """Return footnotes on pacing, intervals, bandwidth and checks, as far as rows need them."""
    shown = [row for row in rows if row.time_ns is not None]
    if not shown:
        return ()
    paced = {row.pacing for row in shown}
    pacing = {
        "barrier": "an untimed barrier before each call",
        "back_to_back": "calls back to back, no barrier between them",
    }
    how = (
        pacing[next(iter(paced))] if len(paced) == 1 else "with or without an untimed barrier before it, as said above"
    )
    means = all(row.time_ns_median is None for row in shown)
    lines = [
        f"time: of one call, as imported: mean over the calls, in microseconds; {how}."
        if means
        else f"time: of one call on its slowest rank, then the median over the calls; {how}. min, p90, p99, max are of"
        " the same calls, all in microseconds; ±95%: interval of the median, its larger side.",
        "size: bytes of the tensor, of the larger side where input and output differ, rounded down to whole elements"
        " and equal parts. algbw = size / time and busbw = algbw x the operation's factor (2(n-1)/n for all_reduce)"
        f" from {'that time' if means else 'the median'}, in GB/s (GB = 1e9 bytes).",
    ]
    if any(row.op == "all_to_all_v" for row in shown):
        lines.append("all_to_all_v: size is the most that one rank sends or receives, its own part left out; factor 1.")
    if any(row.in_flight > 1 for row in shown):
        lines.append("Several calls in flight: time is that of all of them, algbw and busbw count all of them.")
    if any(row.rank_spread is not None for row in shown):
        lines.append("spread: (slowest - fastest rank) / slowest, of the ranks' medians; slowest: that rank.")
    peaks = {row.link_peak_bytes_per_s for row in shown if row.link_peak_bytes_per_s is not None}
    if peaks:
        rates = ", ".join(f"{format_decimal(peak / 1e9)} GB/s" for peak in sorted(peaks))
        lines += [f"of link: busbw / peak of the link in one direction ({rates}).", *above_notes(shown)]
    if not means:
        lines.append(
            "nccl-tests prints means of back-to-back calls, averaged over ranks: compare with the median above only"
            " where calls do not scatter."
        )
    return tuple(lines)


def _row_notes(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """Return the notes of rows, each said once with the sweeps it belongs to."""
    by_note: dict[str, dict[str, None]] = {}
    called = sweep_names(rows)
    for row in rows:
        for note in row.notes:
            by_note.setdefault(note, {})[f"{op_label(row)} on {called(row)}"] = None
    every = len({f"{op_label(row)} on {called(row)}" for row in rows})
    return tuple(
        note if len(owners) == every else f"{listed(owners, at_most=3, between='; ')}: {note}"
        for note, owners in by_note.items()
    )


def overview_table(rows: Sequence[CommRow]) -> Table:
    """Return the table of sweeps over sizes among ``rows``, grouped by everything but the operation and its types."""
    collectives = [row for row in rows if row.kind == "collective"]
    head = heading(collectives, op=False)
    by_sweep = sweeps(in_groups(collectives, head))
    return tabled(
        "comm_overview",
        "Collectives at a glance",
        by_sweep.values(),
        *(replace(column, get=_of_first(column)) for column in head),
        lead_column("op", "operation", lambda sweep: op_label(sweep[0])),
        identity_column("dtype", "type", lambda s: " ".join(filter(None, (s[0].dtype, s[0].reduce_op)))),
        identity_column("place", "place", lambda sweep: "in" if sweep[0].in_place else "out"),
        identity_column("mode", "mode", lambda sweep: _mode_text(sweep[0])),
        Column("sizes", "sizes", _sizes_value, whole, drop=1),
        Column("latency_ns", "latency (us)", _smallest_time_ns, microseconds, short="latency"),
        Column("busbw", "best busbw (GB/s)", _best_size_getter("busbw_bytes_per_s"), gigabytes, short="best busbw"),
        Column("at_size", "at size", _best_size_getter("size_bytes"), byte_size, drop=2),
        Column("link_fraction", "of link", lambda sweep: of_link(best_size(sweep)), percent, drop=4),
        Column("average", "avg busbw (GB/s)", average_busbw, gigabytes, short="avg busbw", drop=3),
        failure=_sweep_failure,
        footnotes=(
            "latency: time at the smallest size. best busbw: the largest over the sizes from 1 MiB on (over all, where none"
            " is as large), and the size it is seen at."
            " avg busbw: plain mean over the sizes, as nccl-tests prints it: which sizes were asked for decides it.",
            *above_notes(best for sweep in by_sweep.values() if (best := best_size(sweep)) is not None),
        ),
    )


def _of_first(column: Column) -> Callable[[Sequence[CommRow]], Value]:
    return lambda sweep: column.value(sweep[0])


def _sweep_failure(sweep: Sequence[CommRow]) -> str | None:
    failed = next((row for row in sweep if row.status != "ok"), None)
    return None if failed is None or _measured_rows(sweep) else comm_failure_label(failed)


def _measured_rows(sweep: Sequence[CommRow]) -> list[CommRow]:
    return [row for row in sweep if row.status == "ok" and row.time_ns is not None]


def _mode_text(row: CommRow) -> str:
    return row.mode if row.in_flight == 1 else f"{row.mode} x{row.in_flight}"


def _sizes_value(sweep: Sequence[CommRow]) -> Value:
    ok = len(_measured_rows(sweep))
    return Value(f"{ok} of {len(sweep)}" if ok < len(sweep) else str(ok), ok)


def _smallest_time_ns(sweep: Sequence[CommRow]) -> float | None:
    smallest = min(_measured_rows(sweep), key=lambda row: row.size_bytes or 0, default=None)
    return None if smallest is None else smallest.time_ns


def _best_size_getter(field: str) -> Callable[[Sequence[CommRow]], Raw]:
    """Return what reads a field of :func:`best_size`."""

    def get(sweep: Sequence[CommRow]) -> Raw:
        best = best_size(sweep)
        return None if best is None else getattr(best, field)

    return get


MAX_TIED = 3


def winners_table(rows: Sequence[CommRow]) -> Table:
    """Return the table: one line a size that several settings were measured at."""
    fastest = winners(rows)
    head = heading([w.row for w in fastest], env=False)
    by_row = {id(w.row): w for w in fastest}
    ordered = [by_row[id(row)] for row in in_groups([w.row for w in fastest], head)]
    over_default: Value = wording("is default", 1.0, tone="dim")
    size_of = size_column("size", byte_size)
    return tabled(
        "comm_winners",
        "Fastest settings",
        ordered,
        *(replace(column, get=_of_row(column)) for column in (*head, size_of)),
        identity_column("dtype", "type", "row.dtype"),
        Column("settings", "fastest", _fastest_value),
        Column("time_ns", "time (us)", "row.time_ns_median", microseconds),
        Column("over_default", "over default", lambda w: over_default if w.default is w.row else w.over_default, times),
        Column("over_next", "over next", "over_next", times, drop=2),
        Column("candidates", "of", lambda w: len(w.settings), whole, drop=1),
        footnotes=(
            "fastest: smallest median time; several where their 95% intervals overlap, or one has none. over default,"
            " over next: time of the world without settings, and of the next best, / that of the fastest.",
        ),
    )


def _of_row(column: Column) -> Callable[[Winner], Value]:
    return lambda winner: column.value(winner.row)


def _fastest_value(winner: Winner) -> Value:
    """Write the fastest settings, or those that are as fast."""
    names = [env_label(row.env) for row in winner.settings[: winner.tied]]
    raw = env_label(winner.row.env)
    if winner.clear:
        return Value(raw, raw, tone="good")
    if len(names) > MAX_TIED:
        return Value(f"no clear one: {names[0]} and {len(names) - 1} within noise", raw, tone="dim")
    return Value(f"no clear one: {' or '.join(names)}", raw, tone="dim")


FREE = 1.1
"""Below this slow-down two things count as running beside each other: five times the 2% that measuring aims at."""


def beside_table(rows: Sequence[CommRow]) -> Table:
    """Return the table of the ``overlap`` rows."""
    overlaps = [row for row in rows if row.kind == "overlap"]
    head = heading(overlaps)
    return tabled(
        "comm_overlap",
        "Communication beside computation",
        in_groups(overlaps, head),
        *head,
        size_column("size", byte_size),
        identity_column("dtype", "type", "dtype"),
        Column("time_ns", "time (us)", "time_ns_median", microseconds, drop=2),
        Column("busbw", "busbw (GB/s)", "busbw_bytes_per_s", gigabytes, short="busbw", drop=1),
        Column("slowdown", "collective slowed", lambda row: _slowdown_value(row.slowdown), times),
        Column("beside_slowdown", "product slowed", lambda row: _slowdown_value(row.beside_slowdown), times),
        Column("verdict", "together", lambda row: _overlap_verdict_value(row.slowdown, row.beside_slowdown)),
        failure=failed,
        footnotes=(
            "slow-down: time while both run / time alone, of the slowest rank, medians; 1.00x: the other one costs"
            " nothing, 2.00x: as if they took turns with something as long.",
        ),
    )


def _slowdown_value(ratio: float | None) -> Value:
    return times(ratio, tone=judged(ratio, FREE, math.inf))


def _overlap_verdict_value(collective: float | None, product: float | None) -> Value:
    """Say which of two slows the other down."""
    if collective is None or product is None:
        return unknown()
    if collective < FREE and product < FREE:
        return wording("neither slows the other", tone="good")
    if collective < FREE:
        return wording("the product pays")
    return wording("the collective pays") if product < FREE else wording("both pay")


def matmul_table(rows: Sequence[CommRow]) -> Table:
    """Return the table of the ``matmul`` rows; the best rate of each type is marked."""
    products = [row for row in rows if row.kind == "matmul"]
    head = heading(products, op=False)
    best: dict[str, float] = {}
    for row in products:
        best[row.dtype] = max(best.get(row.dtype, 0.0), row.flops_per_s or 0.0)

    def of_best(row: CommRow) -> Value:
        top, rate = best[row.dtype], row.flops_per_s
        return percent(None if rate is None or not top else rate / top, tone="good" if rate == top else "plain")

    return tabled(
        "comm_matmul",
        "Matrix products",
        in_groups(products, head),
        *head,
        lead_column("dtype", "type", "dtype"),
        lead_column("n", "N", lambda r: None if r.numel is None else math.isqrt(r.numel), whole),
        size_column("operand (B)", role="identity", drop=1),
        Column("time_ns", "time (us)", "time_ns_median", microseconds),
        Column("interval_fraction", "±95%", interval_share, percent, drop=3),
        Column("flops", "rate of a rank", "flops_per_s", flops, unit="flops_per_s"),
        Column("of_best", "of best", of_best, percent, drop=2),
        failure=failed,
        footnotes=(
            "N x N times N x N, 2 N^3 FLOP each; time: median over the products of all ranks, which multiply at the same"
            " time. rate: of one rank, from that time. of best: rate / the best rate of that type.",
        ),
    )


VIEWS = (
    View("comm", table=comm_table),
    View("comm_overview", table=overview_table),
    View("comm_winners", table=winners_table),
    View("comm_overlap", table=beside_table),
    View("comm_matmul", table=matmul_table),
)
