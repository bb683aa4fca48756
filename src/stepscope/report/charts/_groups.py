"""Bars side by side: runs that differ in one thing only, in groups of what else they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.words import counted
from stepscope.records.training import TrainingRun
from stepscope.report.charts._runs import (
    FACETS,
    Quantity,
    facets,
    failure,
    grouped,
    on_their_machines,
    parts,
    quantity,
)
from stepscope.report.charts._style import (
    BEHIND,
    COLORS,
    COLUMN_INCHES,
    PAGE_INCHES,
    boxes,
    failed_boxes,
    from_zero,
    legend_below,
    legend_below_inches,
    text_at,
    tick_lines,
    title_above,
    title_inches,
    whiskers,
)
from stepscope.report.charts._text import file_part, in_words, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SERIES = 7
MAX_BARS = 28
NARROW_BARS = 12
"""Up to this many bars a chart is one column wide."""

UNCLEAR = "not clear"

_QUIET = ("batch", "accumulation")
"""Facets that a title does not say where all runs share them."""

Label = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run. value, low, high: base units. label: against the reference. failure: why there is no value."""

    value: float | None
    low: float | None
    high: float | None
    label: str
    failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Runs alike but for one thing: one bar a series, None where there is no such run."""

    name: str
    bars: tuple[Bar | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroups:
    """series: names of the bars of a cluster. reference: that labels refer to. scale: base units -> axis."""

    key: str
    title: str
    series: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    quantity: str
    axis: str
    scale: float
    lower_is_better: bool
    reference: str
    ends: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a chart compares. along: name of the facet that varies. value: its text for a run; empty: not compared.

    ignore: facets that go with it. order: of the series. reference: among the series. label: of a gain (0.25: 25 % faster).
    steps_alike: whether a step is the same work in all of them.
    """

    along: str
    value: Callable[[TrainingRun], str]
    label: Label
    ignore: tuple[str, ...] = ()
    steps_alike: bool = True
    order: Callable[[str], tuple[float, str]] | None = None
    reference: Callable[[Sequence[str]], str] = lambda series: series[0]


def compare(runs: Iterable[TrainingRun], how: Comparison, *, drop_epochs: int) -> tuple[BarGroups, ...]:
    """One chart a model and data set (and device); groups without two values to compare are left out."""
    known = tuple(f for f in ("hardware", "dataset", "model") if f not in (how.along, *how.ignore))
    rest = tuple(f for f in FACETS if f not in known and f not in (how.along, *how.ignore))
    charts: list[BarGroups] = []
    compared = [run for run in on_their_machines(runs) if how.value(run)]
    for about, mine in grouped(compared, lambda run: tuple(facets(run)[f] for f in known)).items():
        slots = grouped(mine, lambda run: tuple(facets(run)[f] for f in rest))
        clusters = [c for found in _by_ranks(slots, rest) for c in _repeats(found, how) if _worth(c)]
        if not clusters:
            continue
        order = how.order or _appearance([how.value(run) for c in clusters for run in c])
        series = sorted({how.value(run) for c in clusters for run in c}, key=order)
        for number, chosen in enumerate(_series_parts(series, how.reference(series)), start=1):
            shown = [c for c in ([r for r in cluster if how.value(r) in chosen] for cluster in clusters) if _worth(c)]
            found = parts(shown, max(1, MAX_BARS // len(chosen)))
            for at, part in enumerate(found, start=1):
                page = at + (number - 1) * len(found)
                made = _chart(part, chosen, about, rest, how, drop_epochs, page if page > 1 else None)
                charts += [made] if made is not None else []
    return tuple(charts)


def _by_ranks(slots: Mapping[tuple[str, ...], list[TrainingRun]], names: Sequence[str]) -> list[list[TrainingRun]]:
    """Those that differ in the number of ranks alone stand together, few ranks first; else in order of appearance."""
    alike: dict[tuple[str, ...], int] = {}
    places = []
    for facets_, runs in slots.items():
        others = tuple(text for name, text in zip(names, facets_, strict=True) if name != "ranks")
        places.append((alike.setdefault(others, len(alike)), runs[0].world_size or 0))
    ordered = sorted(zip(places, slots.values(), strict=True), key=lambda pair: pair[0])
    return [runs for _, runs in ordered]


def _repeats(runs: Sequence[TrainingRun], how: Comparison) -> list[list[TrainingRun]]:
    """The first run of each value, then the second of each: repeats stand beside each other, none is lost."""
    by_value = grouped(runs, how.value)
    deepest = max(len(found) for found in by_value.values())
    return [[found[n] for found in by_value.values() if n < len(found)] for n in range(deepest)]


def _worth(cluster: Sequence[TrainingRun]) -> bool:
    return len(cluster) > 1 and any(run.status == "ok" for run in cluster)


def _appearance(values: Sequence[str]) -> Callable[[str], tuple[float, str]]:
    at = {value: float(n) for n, value in reversed(list(enumerate(values)))}
    return lambda value: (at[value], value)


def _series_parts(series: Sequence[str], reference: str) -> list[tuple[str, ...]]:
    """At most as many series as there are colours, with the reference first in each part."""
    others = [name for name in series if name != reference]
    if len(series) <= MAX_SERIES:
        return [tuple(series)]
    return [(reference, *part) for part in parts(others, MAX_SERIES - 1)]


def _chart(
    clusters: Sequence[Sequence[TrainingRun]],
    series: Sequence[str],
    about: Sequence[str],
    rest: Sequence[str],
    how: Comparison,
    drop_epochs: int,
    page: int | None,
) -> BarGroups | None:
    every = [run for cluster in clusters for run in cluster]
    shown = quantity(every, drop_epochs, steps_alike=how.steps_alike)
    if shown is None:
        return None
    firsts = [facets(cluster[0]) for cluster in clusters]
    told = [f for f in rest if len({first[f] for first in firsts}) > 1]
    what = " on ".join(text for text in about[::-1][:2] if text)
    common = [firsts[0][f] for f in rest if f not in told and f not in _QUIET and firsts[0][f]]
    reference = how.reference(series)
    called = [", ".join(first[f] for f in told if first[f]) or _only_name(first, common) for first in firsts]
    return BarGroups(
        key=file_part("-".join(text for text in (*about[::-1], str(page or "")) if text)),
        title=", ".join(text for text in (what, *common) if text) + (f" ({page})" if page else ""),
        series=tuple(series),
        clusters=tuple(
            Cluster(name=name, bars=tuple(_bar(cluster, one, reference, how, shown) for one in series))
            for cluster, name in zip(clusters, _numbered(called), strict=True)
        ),
        quantity=shown.name,
        axis=shown.axis,
        scale=shown.scale,
        lower_is_better=shown.lower_is_better,
        reference=reference,
        ends=shown.ends,
    )


def _numbered(called: Sequence[str]) -> list[str]:
    """Repeats of the same runs get a number: ``2 ranks``, ``2 ranks (2)``."""
    return [
        f"{name} ({called[: at + 1].count(name)})".lstrip() if name in called[:at] else name
        for at, name in enumerate(called)
    ]


def _only_name(first: dict[str, str], common: Sequence[str]) -> str:
    return first["ranks"] if first["ranks"] not in common else ""


def _bar(cluster: Sequence[TrainingRun], name: str, reference: str, how: Comparison, shown: Quantity) -> Bar | None:
    run = next((r for r in cluster if how.value(r) == name), None)
    if run is None:
        return None
    measured = shown.values.get(run.run_id)
    base = next((r for r in cluster if how.value(r) == reference), None)
    gain = None if base is None or base is run else shown.gain(run.run_id, base.run_id)
    label = "" if gain is None else how.label(gain)
    if gain is not None and base is not None and shown.overlap(run.run_id, base.run_id):
        label = UNCLEAR
    return Bar(
        value=None if measured is None else measured.value,
        low=None if measured is None else measured.low,
        high=None if measured is None else measured.high,
        label=label,
        failure=failure(run) or (None if measured is not None else "not measured"),
    )


def faster(gain: float) -> str:
    """``25 % faster``, ``8 % slower``: t_a / t_b - 1; ``equal`` below a thousandth."""
    if abs(gain) < 0.0005:
        return "equal"
    share = f"{abs(gain):.0%}" if abs(gain) >= 0.0095 else f"{abs(gain):.1%}"
    return f"{share.replace('%', ' %')} {'faster' if gain > 0 else 'slower'}"


def times(gain: float) -> str:
    """``1.43x``: speed-up over the reference."""
    return f"{gain + 1:.2f}x"


def draw_groups(data: BarGroups, axes: Axes) -> None:
    count = len(data.series)
    width = 0.82 / count
    several = sum(bar is not None for c in data.clusters for bar in c.bars) > 4
    ends = [(b.high or b.value or 0.0) * data.scale for c in data.clusters for b in c.bars if b is not None]
    top = max(ends)
    ranged: list[tuple[float, float, float]] = []
    lost: list[tuple[float, float, float, float]] = []
    for number, name in enumerate(data.series):
        found = []
        for at, cluster in enumerate(data.clusters):
            bar = cluster.bars[number]
            place = at + (number - (count - 1) / 2) * width
            if bar is None:
                continue
            if bar.value is None:
                lost.append((place - 0.45 * width, 0.0, 0.9 * width, 0.42 * top))
                text_at(
                    axes,
                    place,
                    0.03 * top,
                    bar.failure or "",
                    rotation=90,
                    ha="center",
                    va="bottom",
                    bbox=BEHIND,
                )
                continue
            found.append((place - 0.45 * width, 0.0, 0.9 * width, bar.value * data.scale))
            if bar.low is not None and bar.high is not None:
                ranged.append((place, bar.low * data.scale, bar.high * data.scale))
            if bar.label:
                end = max(bar.value, bar.high or 0.0) * data.scale
                text_at(axes, place, end, bar.label, dy=2, ha="center", va="bottom", rotation=90 if several else 0)
        boxes(axes, found, color=COLORS[number % len(COLORS)], label=name)
    failed_boxes(axes, lost)
    whiskers(axes, ranged, cap=0.3 * width)
    labelled = max((len(b.label) for c in data.clusters for b in c.bars if b is not None), default=0)
    room = 1.05 + (0.032 * labelled if several else 0.09 if labelled else 0.0)
    from_zero(axes, top * room)
    width_inches = size_groups(data)[0]
    fits = max(6, int(width_inches * 14 / max(1, len(data.clusters))))
    axes.set_xticks(range(len(data.clusters)), [lines(cluster.name, fits, 3) for cluster in data.clusters])
    axes.set_xlim(-0.6, len(data.clusters) - 0.4)
    tick_lines(axes, "y")
    axes.set_ylabel(data.axis)
    title_above(axes, data.title, width_inches)
    legend_below(axes, data.series, width_inches)


def size_groups(data: BarGroups) -> tuple[float, float]:
    bars = sum(bar is not None for c in data.clusters for bar in c.bars)
    wide = bars > NARROW_BARS or len(data.clusters) > 5
    width = PAGE_INCHES if wide else COLUMN_INCHES
    return width, 2.6 + legend_below_inches(data.series, width) + title_inches(data.title, width)


def groups_caption(data: BarGroups, what: str) -> str:
    """Which runs, the extremes, what labels and whiskers are, what failed."""
    bars = [(c, n, b) for c in data.clusters for n, b in zip(data.series, c.bars, strict=True) if b is not None]
    failed = [f"{named(c, n)} ({b.failure})" for c, n, b in bars if b.value is None]
    said = [f"{named(c, n)} {b.label}" for c, n, b in bars if b.label and b.label != UNCLEAR]
    text = [
        f"{what}: {data.quantity} of {data.title}, {counted(len(bars), 'run')};"
        f" {'lower' if data.lower_is_better else 'higher'} is better."
    ]
    if said:
        more = f" and {len(said) - 6} more" if len(said) > 6 else ""
        text.append(f"Against {data.reference}: {'; '.join(said[:6])}{more} (t_a / t_b - 1).")
    if any(b.label == UNCLEAR for _, _, b in bars):
        text.append(f"{UNCLEAR.capitalize()}: the intervals overlap.")
    if any(b.low is not None for _, _, b in bars):
        text.append(f"Whiskers: {data.ends}.")
    if failed:
        text.append(f"Hatched, without a result: {in_words(failed)}.")
    return " ".join(text)


def named(cluster: Cluster, series: str) -> str:
    return ", ".join(text for text in (series, cluster.name) if text)
