"""Runs that differ in one thing, side by side: strategies, precisions, gradient accumulation, machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath

from stepscope.core.dataclass import record
from stepscope.core.units import format_number, format_percent
from stepscope.core.words import counted, grouped, in_words, listed
from stepscope.records.training import TrainingRun
from stepscope.report import vega
from stepscope.report.names import clean, file_part, lines
from stepscope.report.shared.runs import FACETS, Quantity, facets, failure, on_their_machines, parts, quantity
from stepscope.report.table import (
    Column,
    Table,
    Value,
    duration,
    figure,
    group_column,
    lead_column,
    rate,
    tabled,
    unknown,
    wording,
)
from stepscope.report.vega import Chart, Spec
from stepscope.report.views import View

MAX_SERIES = 7
MAX_BARS = 28
NARROW_BARS = 12
"""Up to this many bars a chart is one column wide."""

_LETTER, _Y_AXIS = 0.93 * vega.WIDE, 30
"""Points that a letter of a label (smaller than an axis's), and the axis with its title, take of a chart's width."""

UNCLEAR = "not clear"

_QUIET = ("batch", "accumulation")
"""Facets that a title does not say where all runs share them."""

Label = Callable[[float], str]


@record
class Bar:
    """One run. value, low, high: base units. label: against the reference. failure: why there is no value."""

    value: float | None
    low: float | None
    high: float | None
    label: str
    failure: str | None


@record
class BarCluster:
    """Runs alike but for one thing: one bar a series, None where there is no such run."""

    name: str
    bars: tuple[Bar | None, ...]


@record
class BarGroups:
    """Bars of one chart.

    series: names of the bars of a cluster. reference: that labels refer to. shared: all that its runs have in common, also
    what the title leaves out.
    """

    key: str
    title: str
    shared: str
    series: tuple[str, ...]
    clusters: tuple[BarCluster, ...]
    quantity: Quantity
    how: BarComparison
    reference: str


@record
class BarComparison:
    """What a chart compares. along: name of the facet that varies. own: its text for a run, where it is not the facet's.

    ignore: facets that go with it. order: of the series. reference: among the series. label: of a gain (0.25: 25% faster).
    steps_alike: whether a step is the same work in all of them. gain: what labels are. note: what else captions say.
    """

    along: str
    label: Label
    own: Callable[[TrainingRun], str] | None = None
    ignore: tuple[str, ...] = ()
    steps_alike: bool = True
    order: Callable[[str], tuple[float, str]] | None = None
    reference: Callable[[Sequence[str]], str] = lambda series: series[0]
    gain: str = "t_a / t_b - 1"
    note: str = ""

    def value(self, run: TrainingRun) -> str:
        """Return the text of the facet that varies; empty: not compared."""
        return facets(run)[self.along] if self.own is None else self.own(run)


def groups_table(charts: Sequence[BarGroups], key: str, title: str) -> Table:
    """Return the charts as a table: a line a group of bars, a column a series, with its ratio to the reference."""
    series = list(dict.fromkeys(name for data in charts for name in data.series))
    rows = [(data, cluster) for data in charts for cluster in data.clusters]

    def bar(row: _Line, name: str) -> Bar | None:
        data, cluster = row
        return cluster.bars[data.series.index(name)] if name in data.series else None

    def value(name: str) -> Callable[[_Line], Value]:
        """Return what writes the figure of one series."""

        def of(row: _Line) -> Value:
            """Write the figure of a row, or why it has none."""
            own = bar(row, name)
            if own is None:
                return unknown()
            if own.value is None:
                return wording(own.failure, tone="bad")
            return (duration if row[0].quantity.lower_is_better else rate)(own.value)

        return of

    def ratio(name: str) -> Callable[[_Line], Value]:
        """Return what writes a series' ratio to the reference."""

        def of(row: _Line) -> Value:
            """Write the ratio of a row; unknown where one figure lacks."""
            own, base = bar(row, name), bar(row, row[0].reference)
            if own is None or base is None or own is base or not own.value or not base.value:
                return unknown()
            factor = base.value / own.value if row[0].quantity.lower_is_better else own.value / base.value
            shown = times(factor - 1)
            return wording(f"{shown} {UNCLEAR}" if own.label == UNCLEAR else shown, factor)

        return of

    references = dict.fromkeys(data.reference for data in charts)
    compared = [name for name in series if list(references) != [name]]
    return tabled(
        key,
        title,
        rows,
        group_column("about", "", lambda row: f"{row[0].shared}: {row[0].quantity.name}"),
        lead_column("runs", "", lambda row: row[1].name or "all"),
        *(Column(f"value_{n}", name, value(name), figure) for n, name in enumerate(series, start=1)),
        *(
            Column(f"ratio_{n}", "times as fast" if len(compared) == 1 else f"{name}, times", ratio(name), figure)
            for n, name in enumerate(series, start=1)
            if name in compared
        ),
        footnotes=(f"times as fast as {listed(references)}; {UNCLEAR}: the intervals overlap.",),
    )


_Line = tuple[BarGroups, BarCluster]


def compare(runs: Iterable[TrainingRun], how: BarComparison, *, drop_epochs: int) -> tuple[BarGroups, ...]:
    """Return one chart a model and data set (and device); groups without two values to compare are left out."""
    fixed = tuple(f for f in ("hardware", "dataset", "model") if f not in (how.along, *how.ignore))
    rest = tuple(f for f in FACETS if f not in fixed and f not in (how.along, *how.ignore))
    charts: list[BarGroups] = []
    compared = [run for run in on_their_machines(runs) if how.value(run)]
    machines = len({facets(run)["hardware"] for run in compared} - {""}) if "hardware" in fixed else 1
    for about, alike in grouped(compared, lambda run: tuple(facets(run)[f] for f in fixed)).items():
        slots = grouped(alike, lambda run: tuple(facets(run)[f] for f in rest))
        clusters = [c for rank in _by_ranks(slots, rest) for c in _runs_by_repeat(rank, how) if _is_comparable(c)]
        if not clusters:
            continue
        order = how.order or _appearance_key([how.value(run) for c in clusters for run in c])
        series = sorted({how.value(run) for c in clusters for run in c}, key=order)
        for number, chosen in enumerate(_series_parts(series, how.reference(series)), start=1):
            shown = [
                c for c in ([r for r in cluster if how.value(r) in chosen] for cluster in clusters) if _is_comparable(c)
            ]
            pages = parts(shown, max(1, MAX_BARS // len(chosen)))
            for at, part in enumerate(pages, start=1):
                page = at + (number - 1) * len(pages)
                number_ = page if page > 1 else None
                made = _bar_groups(part, chosen, about, rest, how, drop_epochs, number_, several_machines=machines > 1)
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


def _runs_by_repeat(runs: Sequence[TrainingRun], how: BarComparison) -> list[list[TrainingRun]]:
    """Return the first run of each value, then the second of each: repeats stand beside each other, none is lost."""
    by_value = grouped(runs, how.value)
    deepest = max(len(repeats) for repeats in by_value.values())
    return [[repeats[n] for repeats in by_value.values() if n < len(repeats)] for n in range(deepest)]


def _is_comparable(cluster: Sequence[TrainingRun]) -> bool:
    return len(cluster) > 1 and any(run.status == "ok" for run in cluster)


def _appearance_key(values: Sequence[str]) -> Callable[[str], tuple[float, str]]:
    at = {value: float(n) for n, value in reversed(list(enumerate(values)))}
    return lambda value: (at[value], value)


def _series_parts(series: Sequence[str], reference: str) -> list[tuple[str, ...]]:
    """Split the series into at most as many as there are colours, with the reference first in each part."""
    others = [name for name in series if name != reference]
    if len(series) <= MAX_SERIES:
        return [tuple(series)]
    return [(reference, *part) for part in parts(others, MAX_SERIES - 1)]


def _bar_groups(
    clusters: Sequence[Sequence[TrainingRun]],
    series: Sequence[str],
    about: Sequence[str],
    rest: Sequence[str],
    how: BarComparison,
    drop_epochs: int,
    page: int | None,
    *,
    several_machines: bool,
) -> BarGroups | None:
    """Return one chart of bars, a group for each cluster; None: no group has two values."""
    every = [run for cluster in clusters for run in cluster]
    shown = quantity(every, drop_epochs, steps_alike=how.steps_alike)
    if shown is None:
        return None
    firsts = [facets(cluster[0]) for cluster in clusters]
    telling = [f for f in rest if len({first[f] for first in firsts}) > 1]
    what = " on ".join(text for text in about[::-1][:2] if text)
    alike = [f for f in rest if f not in telling and firsts[0][f]]
    common = [firsts[0][f] for f in alike if f not in _QUIET]
    machine = about[0] if several_machines else ""
    reference = how.reference(series)
    called = [
        ", ".join(first[f] for f in telling if first[f]) or ("" if first["ranks"] in common else first["ranks"])
        for first in firsts
    ]
    return BarGroups(
        key=file_part("-".join(text for text in (*about[::-1], str(page or "")) if text)),
        title=", ".join(text for text in (what, machine, *common) if text) + (f" ({page})" if page else ""),
        shared=", ".join(text for text in (what, machine, *(firsts[0][f] for f in alike)) if text),
        series=tuple(series),
        clusters=tuple(
            BarCluster(
                name=name.lstrip(), bars=tuple(_series_bar(cluster, one, reference, how, shown) for one in series)
            )
            for cluster, name in zip(clusters, vega.apart(called), strict=True)
        ),
        quantity=shown,
        how=how,
        reference=reference,
    )


def _series_bar(
    cluster: Sequence[TrainingRun], name: str, reference: str, how: BarComparison, shown: Quantity
) -> Bar | None:
    """Return the bar of one series in a cluster, beside the reference's; None: no run has it."""
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
    """Write ``25% faster``, ``8% slower``: t_a / t_b - 1; ``equal`` below a thousandth."""
    if abs(gain) < 0.0005:
        return "equal"
    return f"{format_percent(abs(gain))} {'faster' if gain > 0 else 'slower'}"


def times(gain: float) -> str:
    """Write ``1.43x``: the speed-up over the reference."""
    return f"{gain + 1:.2f}x"


def groups_chart(data: BarGroups) -> Spec:
    """Return bars of a cluster side by side, each with its label; what failed has a dashed outline and its reason."""
    shown = [bar for c in data.clusters for bar in c.bars if bar is not None]
    width = vega.PAGE if len(shown) > NARROW_BARS or len(data.clusters) > 5 else vega.COLUMN
    longest = max((len(bar.label) for bar in shown), default=0)
    upright = longest * _LETTER > _bar_width(width, len(data.clusters), len(data.series))
    scale = data.quantity.scale
    top = max((bar.high or bar.value or 0.0) * scale for bar in shown) or 1.0
    fits = max(6, int(width / 72 * 14 / max(1, len(data.clusters))))
    names = vega.apart([lines(cluster.name, fits, 3) for cluster in data.clusters])
    unit = data.quantity.axis.partition("(")[2].rstrip(")")
    bars, lost, ranged, labels, reasons = [], [], [], [], []
    for cluster, name in zip(data.clusters, names, strict=True):
        for series, bar in zip(data.series, cluster.bars, strict=True):
            if bar is None:
                continue
            at = {"cluster": name, "series": series}
            called = named(cluster, series)
            if bar.value is None:
                lost.append({**at, "y": 0.42 * top, "said": f"{called}: {bar.failure}"})
                reasons.append({**at, "y": 0, "text": bar.failure or ""})
                continue
            value = bar.value * scale
            label = f", {bar.label}" if bar.label else ""
            bars.append({**at, "y": value, "said": f"{called}: {format_number(value)} {unit}{label}"})
            if bar.low is not None and bar.high is not None:
                ranged.append({**at, "low": bar.low * scale, "high": bar.high * scale})
            if bar.label:
                labels.append({**at, "y": max(bar.value, bar.high or 0.0) * scale, "text": bar.label})
    room = 1.05 + (0.032 * longest if upright else 0.09 if longest else 0.0)
    beside: Spec = {
        "xOffset": {"field": "series", "type": "nominal", "sort": None, "scale": {"domain": list(data.series)}}
    }
    up = {"angle": 270, "align": "left", "baseline": "middle", "dx": 3}
    return vega.chart(
        data.title,
        vega.layer("bar", bars, color=vega.by_series(data.series, width=width), **beside),
        *([vega.layer("bar", lost, **beside, **vega.FAILED)] if lost else []),
        *vega.whiskers(ranged, **beside),
        *vega.words(labels, **beside, **(up if upright else {"dy": -6})),
        *vega.words(reasons, **beside, **up),
        width=width,
        height=150,
        x=vega.name_axis("cluster", names),
        y=vega.number_axis("y", data.quantity.axis, low=0.0, top=top * room),
    )


def _bar_width(width: int, clusters: int, series: int) -> float:
    """Return the width of a bar in points, by the spaces between and beside clusters that ``name_axis`` leaves."""
    return (width - _Y_AXIS) / (clusters - vega.BETWEEN + 2 * vega.BESIDE) * (1 - vega.BETWEEN) / series


def groups_caption(data: BarGroups, what: str) -> str:
    """Say which runs these are, the extremes, what labels and whiskers are, what failed."""
    bars = [(named(c, n), b) for c in data.clusters for n, b in zip(data.series, c.bars, strict=True) if b is not None]
    failed = [f"{name} ({b.failure})" for name, b in bars if b.value is None]
    gains = [f"{name} {b.label}" for name, b in bars if b.label and b.label != UNCLEAR]
    better = "lower" if data.quantity.lower_is_better else "higher"
    text = [f"{what}: {data.quantity.name} of {data.title}, {counted(len(bars), 'run')}; {better} is better."]
    if gains:
        text.append(f"Against {data.reference}: {listed(gains, at_most=6, between='; ')} ({data.how.gain}).")
    if any(b.label == UNCLEAR for _, b in bars):
        text.append(f"{UNCLEAR.capitalize()}: the intervals overlap.")
    if any(b.low is not None for _, b in bars):
        text.append(f"Whiskers: {data.quantity.ends}.")
    if failed:
        text.append(f"Dashed outline, without a result: {in_words(failed, at_most=len(failed))}.")
    return " ".join(text) + data.how.note


def named(cluster: BarCluster, series: str) -> str:
    return ", ".join(text for text in (series, cluster.name) if text)


NAIVE = "naive"


PLAIN = "fp32"


def _on_machines(runs: Sequence[TrainingRun]) -> BarComparison:
    """Return the comparison of the same runs on several machines, told apart by source where one machine has several."""
    sources = grouped(runs, lambda run: facets(run)["hardware"])
    several = {name for name, source in sources.items() if len({_source_file(run) for run in source}) > 1}

    def machine(run: TrainingRun) -> str:
        name = facets(run)["hardware"]
        return f"{name}, {clean(_source_file(run), 24)}" if name and name in several else name

    return BarComparison(along="hardware", own=machine, label=faster)


def _source_file(run: TrainingRun) -> str:
    """Return the name of the run's source, without the line (``results.md:52``) that some importers add."""
    name, colon, line = PurePath(run.source).name.rpartition(":")
    return name if colon and line.isdigit() else PurePath(run.source).name


COMPARED: dict[str, tuple[str, str, BarComparison | Callable[[Sequence[TrainingRun]], BarComparison]]] = {
    "strategies": (
        "Strategies",
        "Strategies compared",
        BarComparison(
            along="strategy",
            label=faster,
            reference=lambda series: next((name for name in series if NAIVE in name.casefold()), series[0]),
        ),
    ),
    "precision": (
        "Precision",
        "Precisions compared",
        BarComparison(
            along="precision",
            label=times,
            reference=lambda series: PLAIN if PLAIN in series else series[0],
            gain="speed-up at equal ranks",
        ),
    ),
    # Steps of more micro-steps hold more samples, so a step's time is not compared: an epoch's, or the throughput.
    "accumulation": (
        "Gradient accumulation",
        "Gradient accumulation",
        BarComparison(
            along="accumulation",
            label=faster,
            ignore=("batch",),
            steps_alike=False,
            order=lambda name: (float(name.removeprefix("GA ")), name),
            note=" GA n: gradients are reduced once every n micro-steps, so an epoch has n times fewer reductions.",
        ),
    ),
    "hardware": ("Hardware", "Machines compared", _on_machines),
}
"""Key of a view: its title, the heading of its captions, and what it compares (or what makes that of the runs)."""


def compared(key: str, runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[BarGroups, ...]:
    """Return the groups of ``runs`` compared under a key of :data:`COMPARED`."""
    how = COMPARED[key][2]
    return compare(runs, how if isinstance(how, BarComparison) else how(runs), drop_epochs=drop_epochs)


def compared_table(key: str, runs: Sequence[TrainingRun], drop_epochs: int = 1) -> Table:
    """Return the runs compared under that key as a table."""
    return groups_table(compared(key, runs, drop_epochs), key, COMPARED[key][1])


def compared_charts(key: str, runs: Sequence[TrainingRun], drop_epochs: int = 1) -> Iterator[Chart]:
    """Yield the charts of ``runs`` under that key."""
    for data in compared(key, runs, drop_epochs):
        yield Chart(data.key, data.title, groups_caption(data, COMPARED[key][1]), groups_chart(data))


VIEWS = tuple(
    View(key, title, table=partial(compared_table, key), charts=partial(compared_charts, key))
    for key, (title, _, _) in COMPARED.items()
)
