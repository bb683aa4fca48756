"""Bucket sizes: predicted against what runs untuned, measured sweeps, the predicted timeline of a step's buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.core.dataclass import record
from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.predict.run_buckets import DEFAULT
from stepscope.records.nouns import Measured
from stepscope.records.prediction import BucketAdvice, BucketChoice, BucketSpan, Timeline
from stepscope.report.shared.runs import measured
from stepscope.report.table import (
    Column,
    Table,
    Tone,
    Value,
    binary_size,
    duration,
    group_column,
    identity_column,
    judged,
    lead_column,
    number,
    percent,
    tabled,
    times,
    unknown,
    whole,
    with_share,
    wording,
)
from stepscope.report.views import View
from stepscope.results.evidence import CellEvidence
from stepscope.results.sweeps import BucketSweep, SizedStep, bucket_conclusions, bucket_sweeps


def verdict(choice: BucketChoice, advice: BucketAdvice) -> tuple[str, ...]:
    """Say which size to take and why; name the model's own size where a measurement refutes it."""
    size = f"{choice.strategy}'s default buckets" if advice.way == DEFAULT else f"buckets of {advice.way} MiB"
    step = format_duration(advice.step.value)
    if not advice.measured:
        gain = format_percent(choice.gain_over_default)
        lines = [f"{choice.strategy}: {size}, a step of {step} predicted; the default takes {gain} longer (predicted)"]
        lines += [] if advice.error is None else [f"not measured; {_model_error_text(advice)}"]
        return tuple(lines)
    others = f"the fastest of {advice.ways} measured" if advice.ways > 1 else "the only one measured"
    lines = [f"{choice.strategy}: {size}, a step of {step} measured, {others}"]
    named = f"the model names {choice.bucket_cap_mb:g} MiB"
    if advice.refuted is not None:
        slower = format_percent(advice.refuted / advice.step.value - 1)
        lines.append(f"{named}, which was measured {slower} slower; {_model_error_text(advice)}")
    elif advice.way != f"{choice.bucket_cap_mb:g}":
        foreseen = format_duration(choice.chosen.timeline.step_ns)
        lines.append(
            f"{named}, {foreseen} predicted and not measured: no more than its error; {_model_error_text(advice)}"
        )
    else:
        lines.append(_model_error_text(advice))
    return tuple(lines)


def _model_error_text(advice: BucketAdvice) -> str:
    return f"the model misses the measured steps by up to {format_percent(advice.error or 0.0)}"


def bucket_choice_table(
    choice: BucketChoice, measured: Mapping[str, Measured] | None = None, advice: BucketAdvice | None = None
) -> Table:
    """Return the table: one row per partition, then the untuned ways.

    measured: step (ns) by the row's ``key``, where it was run. advice: which row to mark; None: the model's.

    Keys: ``4`` for 4 MiB (any size of the row), ``naive``, ``default``.
    """
    by_key = measured or {}
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
        return min((by_key[key].value for key in way.keys if key in by_key), default=None)

    def missed(way: _Way) -> Value:
        step = seen(way)
        return unknown() if step is None else wording(format_percent(way.timeline.step_ns / step - 1, signed=True))

    def step(way: _Way) -> Value:
        return duration(way.timeline.step_ns, tone=way.tone)

    def gain(way: _Way) -> Value:
        return times(choice.naive.step_ns / way.timeline.step_ns, tone=way.tone)

    def largest(way: _Way) -> int:
        return max((b.size_bytes for b in way.timeline.buckets), default=0)

    return tabled(
        "bucket_choice",
        f"Bucket sizes of {choice.strategy}",
        items,
        lead_column(
            "bucket_cap",
            "bucket size",
            lambda way: wording(way.label + (" *" if way.tone == "good" else ""), way.label, tone=way.tone),
        ),
        Column("buckets", "buckets", lambda way: len(way.timeline.buckets), number),
        Column("largest", "largest", largest, binary_size, drop=2),
        Column("exposed", "exposed", "timeline.exposed_ns", duration),
        Column("hidden", "hidden", "timeline.hidden_fraction", percent, drop=1),
        Column("step", "step predicted", step, duration, short="step"),
        *(
            [
                Column("measured", "step measured", seen, duration, short="measured"),
                Column("error", "model's error", missed, percent, short="error", drop=1),
            ]
            if by_key
            else []
        ),
        Column("gain", "against naive", gain, times),
        footnotes=(_choice_text(choice, advice), "sizes in one row make the same buckets; MiB = 2^20 bytes"),
    )


@record
class _Way:
    """One partition, or a way that nobody tuned. keys: under which it may have been measured."""

    label: str
    keys: tuple[str, ...]
    timeline: Timeline
    tone: Tone = "plain"


def _choice_text(choice: BucketChoice, advice: BucketAdvice | None) -> str:
    """Say which size is best, and whether that is measured."""
    if advice is not None and advice.measured:
        return "* the fastest of what was measured; gains are predicted ones"
    best = choice.chosen.timeline
    naive, default = (format_percent(gain, signed=True) for gain in (choice.gain_over_naive, choice.gain_over_default))
    return (
        f"* {choice.bucket_cap_mb:g} MiB: {counted(len(best.buckets), 'bucket')}, predicted "
        f"{naive} over naive, {default} over the default"
    )


_Line = tuple[BucketSweep, SizedStep]


def bucket_sweep_table(cells: Sequence[CellEvidence]) -> Table:
    """Return the table: one row a size, a block a strategy."""
    sweeps = bucket_sweeps(cells)
    return tabled(
        "bucket_sweep",
        "Bucket sizes measured",
        [(sweep, size) for sweep in sweeps for size in sweep.sizes],
        group_column("label", "", "1.cell.run.strategy_key"),
        identity_column("ranks", "ranks", "1.cell.run.world_size", whole),
        lead_column("bucket_cap", "bucket size", _size_value),
        Column("buckets", "buckets", lambda line: len(line[1].buckets), whole),
        Column("largest", "largest", lambda line: max(line[1].buckets, default=0), binary_size, drop=1),
        Column("step_ns", "step", lambda line: measured(line[1].cell.run.step_ns, duration, tight=True), duration),
        Column("slower", "against the fastest", _slower_value),
        Column("exposed_ns", "exposed", "1.exposed_ns", duration),
        footnotes=bucket_conclusions(sweeps),
    )


def _size_value(line: _Line) -> Value:
    sweep, size = line
    text = f"{size.cap_mb:g} MiB{' *' if size is sweep.best else ''}"
    return wording(text, size.cap_mb, tone="good" if size is sweep.best else "plain")


def _slower_value(line: _Line) -> Value:
    """Write how much longer the step is than with the fastest size."""
    sweep, size = line
    if size is sweep.best:
        return wording("fastest", 0.0, tone="good")
    change = size.step.value / sweep.best.step.value - 1
    clear = sweep.best.step.below(size.step)
    return wording(
        f"+{format_percent(change)}" + ("" if clear else " not clear"), change, tone="plain" if clear else "dim"
    )


NAMED = 3
"""So many members are named, the others counted."""

MOST_ROWS = 16
"""A picture with more buckets has a row for each lane instead of one for each bucket."""

FORWARD, BACKWARD, AFTER, QUEUED, HIDDEN, EXPOSED = "░", "█", "░", "·", "▒", "▓"


def timeline_table(timeline: Timeline) -> Table:
    """Return the table: one row per collective, in launch order; times since the backward pass began."""
    return tabled(
        "timeline",
        "Predicted bucket timeline",
        timeline.buckets,
        lead_column("bucket", "bucket", "index", whole),
        identity_column("op", "operation", "op"),
        identity_column("dtype", "type", "dtype"),
        lead_column("size", "size", "size_bytes", binary_size),
        Column("count", "gradients", lambda b: len(b.members), number, short="grads"),
        Column("members", "members", lambda b: wording(_members_text(b.members), " ".join(b.members)), drop=1),
        Column("ready", "ready", "ready_ns", duration),
        Column("launch", "launch", "launch_ns", duration, drop=2),
        Column("start", "start", "start_ns", duration, drop=3),
        Column("end", "end", "end_ns", duration),
        Column("exposed", "exposed", _exposed_value, duration),
        footnotes=(_hidden_text(timeline), "times since the backward pass began; MiB = 2^20 bytes"),
        notes=() if timeline.buckets else ("no communication in this step",),
    )


def timeline_picture(timeline: Timeline, *, width: int = 100) -> tuple[str, ...]:
    """Draw lines of at most ``width`` characters: computation above, what travels below, one character a span of time.

    A row for each bucket, or for each lane when there are many; the last line explains the signs.
    """
    labels, rows = _bucket_rows(timeline)
    margin = max(len(label) for label in ("compute", *labels)) + 1
    columns = max(20, width - margin - 1)
    total = max(1, timeline.step_ns)
    lines = [f"{'':{margin}}{_time_axis(total, columns)}"]
    for label, spans in zip(("compute", *labels), (_compute_bars(timeline), *rows), strict=True):
        lines.append(f"{label:<{margin}}{_drawn_bars(spans, total=total, columns=columns)}".rstrip())
    signs = (
        (BACKWARD, "backward"),
        (FORWARD, "forward, optimizer"),
        (QUEUED, "waits for its turn"),
        (HIDDEN, "hidden"),
        (EXPOSED, "exposed"),
    )
    return (*lines, " " * margin + "  ".join(f"{sign} {what}" for sign, what in signs))


def _exposed_value(bucket: BucketSpan) -> Value:
    took = bucket.end_ns - bucket.start_ns
    share = bucket.exposed_ns / took if took else 0.0
    return with_share(bucket.exposed_ns, share, judged(share, 0.5, 0.9))


def _members_text(members: Sequence[str]) -> str:
    if len(members) <= NAMED:
        return ", ".join(members)
    return f"{members[0]} .. {members[-1]}"


def _hidden_text(timeline: Timeline) -> str:
    """Say how much of the communication is hidden, and what the buckets wait for."""
    hidden = timeline.hidden_fraction
    share = "" if hidden is None else f", {format_percent(hidden)} of {format_duration(timeline.comm_ns)} hidden"
    slowed = timeline.backward_ns - timeline.backward_alone_ns
    beside = f" (+{format_duration(slowed)} beside communication)" if slowed else ""
    return (
        f"step {format_duration(timeline.step_ns)} = {format_duration(timeline.before_ns)} before + backward "
        f"{format_duration(timeline.backward_ns)}{beside} + exposed {format_duration(timeline.exposed_ns)} + "
        f"{format_duration(timeline.after_ns)} after; {counted(len(timeline.buckets), 'collective')}{share}"
    )


_Bar = tuple[int, int, str]
"""From, to (ns since the step began), sign."""


def _compute_bars(timeline: Timeline) -> list[_Bar]:
    """Return the bars of the computation: forward, backward, waiting, the rest."""
    backward_end = timeline.before_ns + timeline.backward_ns
    tail_end = backward_end + timeline.exposed_ns
    return [
        (0, timeline.before_ns, FORWARD),
        (timeline.before_ns, backward_end, BACKWARD),
        (tail_end, tail_end + timeline.after_ns, AFTER),
    ]


def _bucket_rows(timeline: Timeline) -> tuple[list[str], list[list[_Bar]]]:
    """Return the labels and bars of the rows below the computation."""
    many = len(timeline.buckets) > MOST_ROWS
    rows: dict[str, list[_Bar]] = {}
    for bucket in sorted(timeline.buckets, key=lambda b: b.lane if many else b.index):
        label = f"lane {bucket.lane}" if many else f"{bucket.index:>2} {format_bytes_binary(bucket.size_bytes)}"
        rows.setdefault(label, []).extend(_bucket_bars(bucket, timeline, queue=not many))
    return list(rows), list(rows.values())


def _bucket_bars(bucket: BucketSpan, timeline: Timeline, *, queue: bool) -> list[_Bar]:
    """Return the bars of one bucket: in the queue, under the backward pass, exposed."""
    origin, backward = timeline.before_ns, timeline.backward_ns
    bars = [
        (bucket.start_ns, min(bucket.end_ns, backward), HIDDEN),
        (max(bucket.start_ns, backward), bucket.end_ns, EXPOSED),
    ]
    if queue:
        bars.insert(0, (bucket.ready_ns, bucket.start_ns, QUEUED))
    return [(origin + start, origin + end, sign) for start, end, sign in bars if end > start]


def _drawn_bars(bars: Sequence[_Bar], *, total: int, columns: int) -> str:
    """A bar too short for a character still has one; a later bar of the row is drawn over an earlier one."""
    line = [" "] * columns
    for start, end, sign in bars:
        if end <= start:
            continue
        first = min(columns - 1, round(start * columns / total))
        last = max(first + 1, round(end * columns / total))
        line[first:last] = sign * (min(last, columns) - first)
    return "".join(line)


def _time_axis(total: int, columns: int) -> str:
    """Write times at the quarters of the line, the whole step's at its end."""
    line = [" "] * columns
    for quarter in range(5):
        text = format_duration(total * quarter / 4) if quarter else "0"
        place = round(quarter * columns / 4)
        at = place if quarter == 0 else columns - len(text) if quarter == 4 else place - len(text) // 2
        line[at : at + len(text)] = text
    return "".join(line)


VIEWS = (
    View("bucket_choice", table=bucket_choice_table),
    View("bucket_sweep", table=bucket_sweep_table),
    View("timeline", table=timeline_table),
)
