"""Rows of a comm run: what the ranks' samples say of every size. Derived, never edited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped
from stepscope.records import codec
from stepscope.records.cell import CellStatus
from stepscope.records.comm import CommRow, CommSample, CommSpec, CommSummary
from stepscope.records.network import hosts_of
from stepscope.records.samples import RankCommSamples
from stepscope.stats.order import measured_median
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_bytes, read_comm_samples, read_if_there, read_record, read_run
from stepscope.store.writer import write_bytes

PeakOf = Callable[[CommSpec, int], float | None]


@record
class _Ranks:
    """Everything that ranks left about one cell; after a failure it may be partial."""

    samples: tuple[RankCommSamples, ...]
    summaries: tuple[CommSummary, ...]


def read_comm_cells(layout: RunLayout) -> tuple[CommSpec, ...]:
    """The sweeps of a run folder, in order. DataError when it is a run of another kind."""
    run = read_run(layout.root)
    if run.kind != "comm":
        raise DataError(
            f"{layout.root} holds a {run.kind} run, not one of collectives",
            fix="`stepscope comm` makes one",
        )
    cell_ids = (*run.cells, *run.earlier_cells)
    return tuple(read_record(layout.cell(cell_id).spec, CommSpec) for cell_id in cell_ids)


def build_comm_rows(
    layout: RunLayout,
    cells: Iterable[CommSpec],
    *,
    peak_of: PeakOf = lambda cell, hosts: None,  # noqa: ARG005
) -> tuple[CommRow, ...]:
    """One row per size of every cell, in order; a cell without any size has one row, with its status.

    peak_of(cell, hosts): what busbw is compared with, bytes/s; None: not known.
    """
    return tuple(row for cell in cells for row in _cell_rows(layout, cell, peak_of))


def write_comm_rows(layout: RunLayout, rows: Sequence[CommRow]) -> None:
    """``results.jsonl``, one record a line, each with its schema."""
    write_bytes(layout.results_jsonl, b"".join(codec.encode_line(row, header=True) for row in rows))


def read_comm_rows(path: Path) -> tuple[CommRow, ...]:
    """The rows of a ``results.jsonl`` of a comm run, or of the run folder that holds it."""
    file = RunLayout(path).results_jsonl if path.is_dir() else path
    if path.is_dir():
        read_comm_cells(RunLayout(path))  # says so when the folder holds something else
    return tuple(codec.decode_lines(read_bytes(file), CommRow, source=str(file)))


def comm_document(run: str, rows: Sequence[CommRow]) -> dict[str, Any]:
    """What ``comm --json`` prints."""
    return {**codec.headed("comm/1"), "run": run, "rows": [codec.to_builtins(row) for row in rows]}


def _cell_rows(layout: RunLayout, cell: CommSpec, peak_of: PeakOf) -> list[CommRow]:
    """Return the rows of one cell: one for each size, then an empty one that says why there are no more."""
    files = layout.cell(cell.cell_id)
    status = read_if_there(files.status, CellStatus)
    by_rank = (read_comm_samples(files.samples(rank)) for rank in range(cell.world_size))
    ranks = _Ranks(
        samples=tuple(one for one in by_rank if one is not None),
        summaries=tuple(read_record(p, CommSummary) for p in sorted(files.root.glob("rank-*.json"))),
    )
    base = _empty_row(cell, status, ranks)
    peak = peak_of(cell, base.hosts or 1)
    groups = _by_size(ranks.samples)
    finished = [(row, group) for group in groups if (row := _size_row(base, cell, group, peak)) is not None]
    rows = [row for row, _ in finished]
    if cell.kind == "overlap":
        rows = _overlap_rows(rows, [group for _, group in finished])
    if base.status == "ok" and rows:
        return rows
    # What was measured before the cell ended stands in rows of its own; the end has a row, too.
    return [*rows, base]


_OF_CELL = (
    "kind", "op", "dtype", "reduce_op", "in_place", "mode", "in_flight", "pattern", "pacing", "root", "world_size",
    "device", "backend", "network",
)  # fmt: skip
"""Fields of a row that are its cell's."""

UNMEASURED: Mapping[str, Any] = dict.fromkeys((
    "size_bytes", "asked_bytes", "numel", "iterations", "warmup", "stop_reason", "time_ns_median", "time_ns_low",
    "time_ns_high", "time_ns_mean", "time_ns_min", "time_ns_p90", "time_ns_p99", "time_ns_max", "rank_spread",
    "slowest_rank", "algbw_bytes_per_s", "busbw_bytes_per_s", "link_peak_bytes_per_s", "link_fraction", "correct",
))  # fmt: skip
"""Fields that a size has once it is measured."""


def _empty_row(cell: CommSpec, status: CellStatus | None, ranks: _Ranks) -> CommRow:
    """Return the row of a cell without a measured size: what its spec says, its status and its ranks' notes."""
    hosts = {one.header.host for one in ranks.samples}
    notes = tuple(dict.fromkeys(note for one in ranks.summaries for note in one.notes))
    policies = {one.scheduler_policy for one in ranks.summaries}
    return CommRow(
        cell_id=cell.cell_id,
        status="interrupted" if status is None else status.status,
        error="not run" if status is None else status.reason,
        **{name: getattr(cell, name) for name in _OF_CELL},
        hosts=hosts_of(cell.network, cell.world_size) or len(hosts) or None,
        env=dict(cell.env),
        **UNMEASURED,
        scheduler_policy=policies.pop() if len(policies) == 1 else None,
        notes=notes,
        rank_hosts=_rank_hosts(cell, ranks),
    )


def _rank_hosts(cell: CommSpec, ranks: _Ranks) -> tuple[str, ...]:
    """Return the host of every rank of a pairs cell; empty when one is missing."""
    if cell.kind != "pairs" or len(ranks.samples) < cell.world_size:
        return ()
    return tuple(one.header.host for one in ranks.samples)


def _by_size(ranks: Sequence[RankCommSamples]) -> list[list[tuple[int, CommSample]]]:
    """Group (rank, sample) of the ranks that measured the same thing, in the order in which it was measured."""
    samples = ((one.header.rank, sample) for one in ranks for sample in one.samples)
    return list(grouped(samples, lambda s: (s[1].asked_bytes, s[1].peer, s[1].bidirectional, s[1].label)).values())


def _size_row(base: CommRow, cell: CommSpec, group: list[tuple[int, CommSample]], peak: float | None) -> CommRow | None:
    """Return the row of one size; None when a rank has not finished it."""
    first = group[0][1]
    took_part = first.peer if first.peer is not None else range(cell.world_size)
    by_rank = dict(group)
    if any(rank not in by_rank for rank in took_part):
        return None
    samples = [by_rank[rank] for rank in took_part]
    row = replace(
        base,
        status="ok",
        error=None,
        asked_bytes=first.asked_bytes,
        size_bytes=first.size_bytes,
        numel=first.numel,
        peer=first.peer,
        bidirectional=first.bidirectional,
        notes=(*base.notes, *_rounding_note(first)),
    )
    if first.skipped is not None:
        return replace(row, status="skipped", error=first.skipped)
    wrong = next(((rank, s) for rank, s in zip(took_part, samples, strict=True) if s.correct is False), None)
    checked = [s.correct for s in samples if s.correct is not None]
    row = replace(row, correct=None if not checked else all(checked))
    if wrong is not None:
        row = replace(row, status="error", error=f"wrong result on rank {wrong[0]}: {wrong[1].wrong}")
    if cell.kind == "matmul":
        return _with_spread(_matmul_row(row, samples), took_part, samples)
    times = _per_call([s.times_ns for s in samples])
    if times is None:
        return row
    row = _row_with_times(row, times, warmup=len(first.warmup_ns), stop_reason=first.stop_reason)
    return _with_bandwidth(_with_spread(row, took_part, samples), cell, peak)


def _with_spread(row: CommRow, ranks: Sequence[int], samples: Sequence[CommSample]) -> CommRow:
    """Add how far the ranks' own medians lie apart, and who is slowest; the row is unchanged where a rank has no time."""
    if not all(s.times_ns for s in samples):
        return row
    medians = [float(np.median(s.times_ns)) for s in samples]
    return replace(
        row,
        rank_spread=(max(medians) - min(medians)) / max(medians) if max(medians) > 0 else None,
        slowest_rank=ranks[int(np.argmax(medians))],
    )


def _per_call(times: Sequence[tuple[int, ...]]) -> NDArray[np.float64] | None:
    """Time of each call [calls], ns: maximum over ranks. Ranks that were cut off leave fewer; only common calls count."""
    count = min((len(one) for one in times), default=0)
    if count == 0:
        return None
    table = np.array([one[:count] for one in times], dtype=np.float64)
    return np.asarray(table.max(axis=0))


def _row_with_times(row: CommRow, times: NDArray[np.float64], *, warmup: int, stop_reason: str | None) -> CommRow:
    """Return the row with the quantiles, ns, of its times."""
    middle = measured_median(times)
    p90, p99 = np.quantile(times, [0.9, 0.99])
    return replace(
        row,
        iterations=middle.n,
        warmup=warmup,
        stop_reason=stop_reason,
        time_ns_median=middle.value,
        time_ns_low=middle.low,
        time_ns_high=middle.high,
        time_ns_mean=float(times.mean()),
        time_ns_min=float(times.min()),
        time_ns_p90=float(p90),
        time_ns_p99=float(p99),
        time_ns_max=float(times.max()),
    )


def _with_bandwidth(row: CommRow, cell: CommSpec, peak: float | None) -> CommRow:
    """Add algbw and busbw (docs/reference/metrics.md, Collectives): rates are derived last, from the median."""
    collective = COLLECTIVES.load(cell.op)
    if not collective.has_payload or not row.size_bytes or not row.time_ns_median:
        return row
    algbw = row.size_bytes * cell.in_flight / row.time_ns_median * 1e9
    world = 2 if row.peer is not None else cell.world_size
    busbw = algbw * collective.bus_factor(world)
    return replace(
        row,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        link_peak_bytes_per_s=peak,
        link_fraction=None if peak is None else busbw / peak,
    )


def _matmul_row(row: CommRow, samples: Sequence[CommSample]) -> CommRow:
    """Add FLOP/s of the median rank's product: 2 n^3 / time, n from the operand's elements."""
    times = np.concatenate([np.asarray(s.times_ns, dtype=np.float64) for s in samples])
    if times.size == 0 or row.numel is None:
        return row
    rows = round(row.numel**0.5)
    row = _row_with_times(row, times, warmup=len(samples[0].warmup_ns), stop_reason=samples[0].stop_reason)
    return replace(row, flops_per_s=2.0 * rows**3 / float(np.median(times)) * 1e9)


def _overlap_rows(rows: Sequence[CommRow], groups: Sequence[list[tuple[int, CommSample]]]) -> list[CommRow]:
    """Return an overlap cell's rows of the collective beside matrix products, with how much each slows the other."""
    by_size: dict[int | None, dict[str, tuple[CommRow, float | None]]] = {}
    for row, group in zip(rows, groups, strict=True):
        beside = [value for _, sample in group for value in sample.beside_ns]
        median = float(np.median(beside)) if beside else None
        by_size.setdefault(row.asked_bytes, {})[group[0][1].label] = (row, median)
    merged = []
    for variants in by_size.values():
        if "together" not in variants:
            merged += [row for row, _ in variants.values() if row.status != "ok"]
            continue
        row, beside_ns = variants["together"]
        alone, beside_alone_ns = variants.get("alone", (None, None))
        merged.append(
            replace(
                row,
                slowdown=None if alone is None else _known_ratio(row.time_ns_median, alone.time_ns_median),
                beside_slowdown=_known_ratio(beside_ns, beside_alone_ns),
            )
        )
    return merged


def _known_ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _rounding_note(sample: CommSample) -> tuple[str, ...]:
    """Note that a size was rounded down to what type and ranks divide; nothing where it was not."""
    if sample.size_bytes is None or sample.size_bytes == sample.asked_bytes:
        return ()
    return (
        f"{counted(sample.asked_bytes, 'byte')} asked for, rounded down to {sample.size_bytes:,}: "
        "the type and the number of ranks divide it",
    )
