"""Bucket sizes against predicted steps: one row for each partition that they realise, beside what runs without tuning."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.units import format_bytes_binary, format_duration
from stepscope.core.words import counted
from stepscope.records.timeline import BucketChoice, Timeline
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.report.tables._trace import duration, number, percent


def build(choice: BucketChoice, measured: Mapping[str, float] | None = None) -> Table:
    """One row per partition, then the untuned ways. measured: median step (ns) by the row's ``key``, where it was run.

    Keys: ``4`` for 4 MiB (any size of the row), ``naive``, ``default``.
    """
    known = measured or {}
    columns = [
        Column(key="bucket_cap", title="bucket size", align="left", role="identity", lead=True),
        Column(key="buckets", title="buckets"),
        Column(key="largest", title="largest", unit="bytes", drop=2),
        Column(key="exposed", title="exposed", unit="ns"),
        Column(key="hidden", title="hidden", drop=1),
        Column(key="step", title="step predicted", short_title="step", unit="ns"),
        Column(key="gain", title="against naive"),
    ]
    if known:
        columns.insert(6, Column(key="measured", title="step measured", short_title="measured", unit="ns"))
    rows = []
    for index, candidate in enumerate(choice.candidates):
        keys = [f"{cap:g}" for cap in candidate.bucket_caps_mb]
        label = f"{', '.join(keys)} MiB"
        chosen = index == choice.best
        rows.append(_row(label + (" *" if chosen else ""), keys, candidate.timeline, choice, known, chosen=chosen))
    rows.append(_row(f"{choice.strategy} default", ["default"], choice.default, choice, known))
    rows.append(_row("naive", ["naive"], choice.naive, choice, known))
    return Table(
        key="bucket_choice",
        title=f"Bucket sizes of {choice.strategy}",
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(_verdict(choice), "sizes in one row make the same buckets; MiB = 2^20 bytes"),
    )


TABLE = TableKind(key="bucket_choice", title="Bucket sizes", needs=("choice",), build=build)


def _row(
    label: str,
    keys: list[str],
    timeline: Timeline,
    choice: BucketChoice,
    measured: Mapping[str, float],
    *,
    chosen: bool = False,
) -> Row:
    tone: Tone = "good" if chosen else "plain"
    largest = max((b.size_bytes for b in timeline.buckets), default=0)
    ratio = choice.naive.step_ns / timeline.step_ns
    values = [
        Value(text=label, raw=label.removesuffix(" *"), tone=tone),
        number(len(timeline.buckets)),
        Value(text=format_bytes_binary(largest), raw=largest),
        duration(timeline.exposed_ns),
        percent(timeline.hidden_fraction),
        Value(text=format_duration(timeline.step_ns), raw=timeline.step_ns, tone=tone),
        Value(text=f"{ratio:.2f}x", raw=ratio, tone=tone),
    ]
    if measured:
        seen = next((measured[key] for key in keys if key in measured), None)
        values.insert(6, unknown() if seen is None else duration(seen))
    return Row(values=tuple(values))


def _verdict(choice: BucketChoice) -> str:
    best = choice.chosen.timeline
    return (
        f"* {choice.bucket_cap_mb:g} MiB: {counted(len(best.buckets), 'bucket')}, predicted "
        f"{choice.gain_over_naive:+.0%} over naive, {choice.gain_over_default:+.0%} over the default"
    )
