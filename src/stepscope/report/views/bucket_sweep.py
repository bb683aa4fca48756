"""Bucket sizes that were measured: the step of each beside its buckets, and why both ends are slow."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.report.table import Column, Table, Value, binary_size, duration, said, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._training import measured
from stepscope.results.evidence import CellEvidence
from stepscope.results.sweeps import BucketSweep, SizedStep, bucket_conclusions, bucket_sweeps

_Line = tuple[BucketSweep, SizedStep]


def build(cells: Sequence[CellEvidence]) -> Table:
    """One row a size, a block a strategy."""
    sweeps = bucket_sweeps(cells)
    return tabled(
        "bucket_sweep",
        "Bucket sizes measured",
        (
            Column("label", "", lambda line: line[1].cell.run.strategy_key, role="group"),
            Column("ranks", "ranks", lambda line: line[1].cell.run.world_size, whole, role="identity"),
            Column("bucket_cap", "bucket size", _size, role="identity", lead=True),
            Column("buckets", "buckets", lambda line: len(line[1].buckets), whole),
            Column("largest", "largest", lambda line: max(line[1].buckets, default=0), binary_size, drop=1),
            Column("step_ns", "step", lambda line: measured(line[1].cell.run.step_ns, duration, tight=True), duration),
            Column("slower", "against the fastest", _slower),
            Column("exposed_ns", "exposed", lambda line: line[1].exposed_ns, duration),
        ),
        [(sweep, size) for sweep in sweeps for size in sweep.sizes],
        footnotes=bucket_conclusions(sweeps),
    )


def _size(line: _Line) -> Value:
    sweep, size = line
    text = f"{size.cap_mb:g} MiB{' *' if size is sweep.best else ''}"
    return said(text, size.cap_mb, tone="good" if size is sweep.best else "plain")


def _slower(line: _Line) -> Value:
    sweep, size = line
    if size is sweep.best:
        return said("fastest", 0.0, tone="good")
    change = size.step.value / sweep.best.step.value - 1
    clear = sweep.best.step.below(size.step)
    return said(
        f"+{format_percent(change)}" + ("" if clear else " not clear"), change, tone="plain" if clear else "dim"
    )


VIEW = View(key="bucket_sweep", title="Bucket sizes measured", needs=("cells",), table=build)
