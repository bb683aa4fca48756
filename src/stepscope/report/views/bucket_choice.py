"""Bucket sizes against predicted steps: one row for each partition that they realise, beside what runs without tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.timeline import BucketChoice, Timeline
from stepscope.report.table import (
    Column,
    Table,
    Tone,
    Value,
    binary_size,
    duration,
    number,
    percent,
    said,
    tabled,
    times,
)
from stepscope.report.view import View


def build(choice: BucketChoice, measured: Mapping[str, float] | None = None) -> Table:
    """One row per partition, then the untuned ways. measured: median step (ns) by the row's ``key``, where it was run.

    Keys: ``4`` for 4 MiB (any size of the row), ``naive``, ``default``.
    """
    known = measured or {}
    items = [
        _Way(
            label=f"{', '.join(f'{cap:g}' for cap in candidate.bucket_caps_mb)} MiB",
            keys=tuple(f"{cap:g}" for cap in candidate.bucket_caps_mb),
            timeline=candidate.timeline,
            tone="good" if index == choice.best else "plain",
        )
        for index, candidate in enumerate(choice.candidates)
    ]
    items += [
        _Way(label=f"{choice.strategy} default", keys=("default",), timeline=choice.default),
        _Way(label="naive", keys=("naive",), timeline=choice.naive),
    ]

    def seen(way: _Way) -> float | None:
        return next((known[key] for key in way.keys if key in known), None)

    def step(way: _Way) -> Value:
        return duration(way.timeline.step_ns, tone=way.tone)

    def gain(way: _Way) -> Value:
        return times(choice.naive.step_ns / way.timeline.step_ns, tone=way.tone)

    def largest(way: _Way) -> int:
        return max((b.size_bytes for b in way.timeline.buckets), default=0)

    return tabled(
        "bucket_choice",
        f"Bucket sizes of {choice.strategy}",
        (
            Column(
                "bucket_cap", "bucket size",
                lambda way: said(way.label + (" *" if way.tone == "good" else ""), way.label, tone=way.tone),
                role="identity", lead=True,
            ),
            Column("buckets", "buckets", lambda way: len(way.timeline.buckets), number),
            Column("largest", "largest", largest, binary_size, drop=2),
            Column("exposed", "exposed", lambda way: way.timeline.exposed_ns, duration),
            Column("hidden", "hidden", lambda way: way.timeline.hidden_fraction, percent, drop=1),
            Column("step", "step predicted", step, duration, short_title="step"),
            *([Column("measured", "step measured", seen, duration, short_title="measured")] if known else []),
            Column("gain", "against naive", gain, times),
        ),
        items,
        footnotes=(_verdict(choice), "sizes in one row make the same buckets; MiB = 2^20 bytes"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One partition, or a way that nobody tuned. keys: under which it may have been measured."""

    label: str
    keys: tuple[str, ...]
    timeline: Timeline
    tone: Tone = "plain"


def _verdict(choice: BucketChoice) -> str:
    best = choice.chosen.timeline
    naive, default = (format_percent(gain, signed=True) for gain in (choice.gain_over_naive, choice.gain_over_default))
    return (
        f"* {choice.bucket_cap_mb:g} MiB: {counted(len(best.buckets), 'bucket')}, predicted "
        f"{naive} over naive, {default} over the default"
    )


VIEW = View(key="bucket_choice", title="Bucket sizes", needs=("choice",), table=build)
