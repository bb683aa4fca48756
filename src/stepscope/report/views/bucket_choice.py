"""Bucket sizes against predicted steps: one row for each partition that they realise, beside what runs without tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.run_buckets import DEFAULT
from stepscope.records.nouns import Measured
from stepscope.records.prediction import BucketAdvice, BucketChoice, Timeline
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
    unknown,
)
from stepscope.report.view import View


def verdict(choice: BucketChoice, advice: BucketAdvice) -> tuple[str, ...]:
    """The size to take and what says so; the size that the model alone would name, where a measurement refutes it."""
    size = f"{choice.strategy}'s default buckets" if advice.way == DEFAULT else f"buckets of {advice.way} MiB"
    step = format_duration(advice.step.value)
    if not advice.measured:
        gain = format_percent(choice.gain_over_default)
        lines = [f"{choice.strategy}: {size}, a step of {step} predicted; the default takes {gain} longer (predicted)"]
        lines += [] if advice.error is None else [f"not measured; {_error(advice)}"]
        return tuple(lines)
    others = f"the fastest of {advice.ways} measured" if advice.ways > 1 else "the only one measured"
    lines = [f"{choice.strategy}: {size}, a step of {step} measured, {others}"]
    named = f"the model names {choice.bucket_cap_mb:g} MiB"
    if advice.refuted is not None:
        slower = format_percent(advice.refuted / advice.step.value - 1)
        lines.append(f"{named}, which was measured {slower} slower; {_error(advice)}")
    elif advice.way != f"{choice.bucket_cap_mb:g}":
        foreseen = format_duration(choice.chosen.timeline.step_ns)
        lines.append(f"{named}, {foreseen} predicted and not measured: no more than its error; {_error(advice)}")
    else:
        lines.append(_error(advice))
    return tuple(lines)


def _error(advice: BucketAdvice) -> str:
    return f"the model misses the measured steps by up to {format_percent(advice.error or 0.0)}"


def build(
    choice: BucketChoice, measured: Mapping[str, Measured] | None = None, advice: BucketAdvice | None = None
) -> Table:
    """One row per partition, then the untuned ways. measured: step (ns) by the row's ``key``, where it was run.

    advice: which row to mark; None: the model's.

    Keys: ``4`` for 4 MiB (any size of the row), ``naive``, ``default``.
    """
    known = measured or {}
    marked = f"{choice.bucket_cap_mb:g}" if advice is None else advice.way
    items = [
        _Way(
            label=f"{', '.join(f'{cap:g}' for cap in candidate.bucket_caps_mb)} MiB",
            keys=tuple(f"{cap:g}" for cap in candidate.bucket_caps_mb),
            timeline=candidate.timeline,
            tone="good" if f"{max(candidate.bucket_caps_mb):g}" == marked else "plain",
        )
        for candidate in choice.candidates
    ]
    items += [
        _Way(
            label=f"{choice.strategy} default",
            keys=(DEFAULT,),
            timeline=choice.default,
            tone="good" if marked == DEFAULT else "plain",
        ),
        _Way(label="naive", keys=("naive",), timeline=choice.naive),
    ]

    def seen(way: _Way) -> float | None:
        return min((known[key].value for key in way.keys if key in known), default=None)

    def missed(way: _Way) -> Value:
        step = seen(way)
        return unknown() if step is None else said(format_percent(way.timeline.step_ns / step - 1, signed=True))

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
            *([Column("measured", "step measured", seen, duration, short_title="measured"),
               Column("error", "model's error", missed, percent, short_title="error", drop=1)] if known else []),
            Column("gain", "against naive", gain, times),
        ),
        items,
        footnotes=(_verdict(choice, advice), "sizes in one row make the same buckets; MiB = 2^20 bytes"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One partition, or a way that nobody tuned. keys: under which it may have been measured."""

    label: str
    keys: tuple[str, ...]
    timeline: Timeline
    tone: Tone = "plain"


def _verdict(choice: BucketChoice, advice: BucketAdvice | None) -> str:
    if advice is not None and advice.measured:
        return "* the fastest of what was measured; gains are predicted ones"
    best = choice.chosen.timeline
    naive, default = (format_percent(gain, signed=True) for gain in (choice.gain_over_naive, choice.gain_over_default))
    return (
        f"* {choice.bucket_cap_mb:g} MiB: {counted(len(best.buckets), 'bucket')}, predicted "
        f"{naive} over naive, {default} over the default"
    )


VIEW = View(key="bucket_choice", title="Bucket sizes", needs=("choice",), table=build)
