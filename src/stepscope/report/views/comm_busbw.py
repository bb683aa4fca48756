"""Bus bandwidth of a collective against message size, with the peak of the link where it is known."""

from __future__ import annotations

from stepscope.core.units import format_bandwidth, format_percent
from stepscope.records.comm import CommRow
from stepscope.report.vega import size_tick
from stepscope.report.views._sizes import SizeChart, SizeLine, size_view


def _busbw(row: CommRow, time_ns: float) -> float | None:
    """Of a fast call's time it is high, so ``fast`` lies above ``slow``."""
    if row.busbw_bytes_per_s is None or row.time_ns is None or not time_ns:
        return None
    return row.busbw_bytes_per_s * row.time_ns / time_ns


def _best(data: SizeChart) -> str:
    best = []
    for line in data.lines[:4]:
        rate = f"{line.name}: {format_bandwidth(line.best.value)} at {size_tick(line.best.size_bytes)}"
        share = "" if data.peak is None else f", {_of_link(line, data.peak)}"
        best.append(f"{rate}{share}")
    peak = "" if data.peak is None else f" Grey: peak of the link in one direction, {format_bandwidth(data.peak)}."
    return (
        f"{peak} Best: {'; '.join(best)}. busbw is size / time times the"
        " operation's factor, so that operations and numbers of ranks compare with one link."
    )


def _of_link(line: SizeLine, peak: float) -> str:
    share = f"{format_percent(line.best.value / peak)} of the link"
    return share if line.above is None else f"faster than the link ({line.above})"


VIEW = size_view(
    "comm_busbw", "Bus bandwidth against size", _busbw,
    what="Bus bandwidth", label="busbw (GB/s)", scale=1e-9, more=_best, with_peak=True,
)  # fmt: skip
