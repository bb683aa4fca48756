"""Training runs in tables and charts: names that tell them apart, the figure compared, columns of their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from stepscope.core.dataclass import record
from stepscope.core.units import format_number, format_percent, format_plus_minus
from stepscope.core.words import counted, grouped, listed
from stepscope.records.nouns import Measured
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.names import clean, file_part
from stepscope.report.table import Column, Format, Tone, Value, duration, percent, rate, unknown
from stepscope.results.epochs import epoch_time, exposed_fraction, timed_epochs
from stepscope.results.labels import distinct, status_label
from stepscope.results.scaling import is_plain

T = TypeVar("T")

FACETS = ("hardware", "dataset", "model", "strategy", "ranks", "precision", "accumulation", "batch")
"""The facets that tell runs apart, in the order in which names say them."""


def facets(run: TrainingRun) -> dict[str, str]:
    """Return facet -> its text; empty where it is unknown.

    The batch is what scaling keeps: the global one, or each rank's.
    """
    return {
        "hardware": clean(run.hardware or ""),
        "dataset": clean(run.dataset or ""),
        "model": clean(run.model or run.group),
        "strategy": clean(run.strategy or ""),
        "ranks": "" if run.world_size is None else counted(run.world_size, "rank"),
        "precision": clean(run.precision or ""),
        "accumulation": "" if run.accumulation is None else f"GA {run.accumulation}",
        "batch": _batch_text(run),
    }


def _batch_text(run: TrainingRun) -> str:
    if run.micro_batch is not None and (run.scaling == "weak" or run.global_batch is None):
        return f"batch {run.micro_batch} a rank"
    return "" if run.global_batch is None else f"batch {run.global_batch}"


def names(runs: Sequence[TrainingRun], *, in_title: Iterable[str] = ()) -> tuple[str, ...]:
    """Return one name a run: the facets in which ``runs`` differ, those that are ``in_title`` left out; all different."""
    facet_texts = [facets(run) for run in runs]
    telling = [f for f in FACETS if f not in in_title and _known_differ(one[f] for one in facet_texts)]
    telling = telling or ["strategy", "ranks"]
    plain = [", ".join(one[f] for f in telling if one[f]) for one in facet_texts]
    by_id = [", ".join(filter(None, (name, clean(run.run_id)))) for name, run in zip(plain, runs, strict=True)]
    return tuple(distinct(plain, by_id))


def _known_differ(texts: Iterable[str]) -> bool:
    """Return whether at least two different things are known: what one run does not tell sets it apart from nothing."""
    return len(set(texts) - {""}) > 1


def on_their_machines(runs: Iterable[TrainingRun]) -> tuple[TrainingRun, ...]:
    """Return ``runs``; those that failed before they told their device get their source's, where it has only one."""
    every = list(runs)
    machines: dict[str, set[str]] = {}
    for run in every:
        machines.setdefault(run.source, set()).update({run.hardware} if run.hardware else set())
    return tuple(
        replace(run, hardware=next(iter(machines[run.source])))
        if not run.hardware and len(machines[run.source]) == 1
        else run
        for run in every
    )


def parts(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return ``items`` in as few parts of at most ``most`` as there can be, of about equal length."""
    count = max(1, -(-len(items) // most))
    size = -(-len(items) // count) if items else 1
    return [items[at : at + size] for at in range(0, len(items), size)]


def numbered_parts(items: Sequence[T], most: int) -> Iterator[tuple[int, str, Sequence[T]]]:
    """Return :func:`parts`, each with its number and what titles say of it: `` (2 of 3)``; nothing of a single one."""
    split = parts(items, most)
    for number, part in enumerate(split, start=1):
        yield number, f" ({number} of {len(split)})" if len(split) > 1 else "", part


@record
class DatasetPart:
    """Runs of one chart of a data set. key: part of its file's name (``IMDB``, ``IMDB-bert-2``). title: model and data."""

    key: str
    title: str
    runs: tuple[TrainingRun, ...]

    @property
    def named(self) -> tuple[tuple[TrainingRun, str], ...]:
        """Each run with what it is called beside the title."""
        return tuple(zip(self.runs, names(self.runs, in_title=("dataset",)), strict=True))


def by_dataset(runs: Iterable[TrainingRun], most: int) -> tuple[DatasetPart, ...]:
    """Return one part a data set; where its runs are more than ``most``, one a model, in as few parts as can be."""
    charts: list[DatasetPart] = []
    for dataset, of_dataset in grouped(runs, lambda run: facets(run)["dataset"]).items():
        models = grouped(of_dataset, lambda run: facets(run)["model"])
        if len(of_dataset) <= most:
            only = next(iter(models)) if len(models) == 1 else ""
            title = titled(model_on(only, dataset) or "all runs", of_dataset)
            charts.append(DatasetPart(key=file_part(dataset or only or "runs"), title=title, runs=tuple(of_dataset)))
            continue
        for model, of_model in models.items():
            for number, several, part in numbered_parts(of_model, most):
                name = [dataset, model if len(models) > 1 or not dataset else "", str(number) if number > 1 else ""]
                charts.append(
                    DatasetPart(
                        key=file_part("-".join(text for text in name if text)),
                        title=titled(model_on(model, dataset), of_model) + several,
                        runs=tuple(part),
                    )
                )
    return tuple(charts)


def titled(text: str, runs: Iterable[TrainingRun]) -> str:
    """Return ``text`` with the precision that all of ``runs`` share, where they do: names say those that differ."""
    precisions = {facets(run)["precision"] for run in runs}
    return ", ".join(part for part in (text, precisions.pop() if len(precisions) == 1 else "") if part)


def model_on(model: str, dataset: str) -> str:
    """Write ``bert on IMDB``, as far as it is known."""
    return " on ".join(text for text in (model, dataset) if text)


def failure(run: TrainingRun) -> str | None:
    """Write ``out of GPU memory``; None for a run that finished."""
    return None if run.status == "ok" else status_label(run.status)


@record
class Quantity:
    """The figure by which some runs are compared. name: for captions; axis: with its unit; scale: base units -> axis.

    values: run_id -> figure in base units, of the runs that have it. ends: what the ends of an interval are.
    """

    name: str
    axis: str
    scale: float
    lower_is_better: bool
    values: Mapping[str, Measured]
    ends: str

    def gain(self, run_id: str, reference: str) -> float | None:
        """Return how much faster than ``reference``: t_reference / t_run - 1; None where either is unknown."""
        own, base = self.values.get(run_id), self.values.get(reference)
        if own is None or base is None or not own.value or not base.value:
            return None
        return (base.value / own.value if self.lower_is_better else own.value / base.value) - 1

    def overlap(self, run_id: str, other: str) -> bool:
        """Return whether the intervals of two runs meet: then nothing is said about which is faster."""
        first, second = self.values.get(run_id), self.values.get(other)
        ends = [e for m in (first, second) if m is not None for e in (m.low, m.high) if e is not None]
        if len(ends) < 4:
            return False
        return ends[0] <= ends[3] and ends[2] <= ends[1]


def quantity(runs: Sequence[TrainingRun], drop_epochs: int, *, steps_alike: bool = True) -> Quantity | None:
    """Return what most runs have: time per step (of one batch only), time per epoch, or throughput; None without any."""
    done = [run for run in runs if run.status == "ok"]
    steps = {run.run_id: run.step_ns for run in done if run.step_ns is not None}
    epochs = {run.run_id: time for run in done if (time := epoch_time(run, drop_epochs)) is not None}
    rates = {run.run_id: run.samples_per_s for run in done if run.samples_per_s is not None}
    if not steps_alike or len({run.global_batch for run in done}) > 1:
        steps = {}
    timed = any(run.step_ns is not None for run in done)  # then rates rest on more samples than epochs do
    best = max((steps, rates, epochs) if timed else (steps, epochs, rates), key=len)
    if not best:
        return None
    largest = max(measured.value for measured in best.values())
    scale, unit = time_unit(largest)
    name, ends = "time per step", INTERVAL
    if best is rates:
        name, (unit, scale) = "throughput", rate_unit(largest, done[0].unit)
    elif best is epochs:
        name = "epoch time, from steps" if any(run.epoch_estimated for run in done) else "epoch time"
        ends = epochs_kept(drop_epochs) if any(timed_epochs(run) for run in done) else INTERVAL
    return Quantity(
        name=name, axis=f"{name} ({unit})", scale=scale, lower_is_better=best is not rates, values=best, ends=ends
    )


INTERVAL = "95% interval of the median"


def epochs_kept(drop_epochs: int) -> str:
    """Say what an epoch time of whole epochs is made of, for captions."""
    first = "the first" if drop_epochs == 1 else f"the first {drop_epochs}"
    left_out = f", {first} left out" if drop_epochs else ""
    return f"95% interval of the median over epochs{left_out} (of fewer than 6: their range)"


def time_unit(largest_ns: float) -> tuple[float, str]:
    """Return the factor from ns and the unit for an axis up to ``largest_ns``."""
    if largest_ns >= 1e9:
        return 1e-9, "s"
    return (1e-6, "ms") if largest_ns >= 1e6 else (1e-3, "µs")


def span_unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds of a unit, and the unit, for an axis of time up to ``longest_s``."""
    return next((pair for pair in ((3600.0, "h"), (60.0, "min")) if longest_s >= 2 * pair[0]), (1.0, "s"))


def memory_unit(largest: float) -> tuple[float, str]:
    """Return the bytes of a unit, and the unit, for an axis of memory up to ``largest``."""
    return (2.0**30, "GiB") if largest >= 2**30 else (2.0**20, "MiB")


def rate_unit(largest: float, unit: str) -> tuple[str, float]:
    """Return the unit and the factor for an axis of throughput up to ``largest``."""
    return (f"1000 {unit}/s", 1e-3) if largest >= 1e5 else (f"{unit}/s", 1.0)


def scaled(runs: Iterable[TrainingRun], scaling: Iterable[ScalingRow]) -> tuple[tuple[TrainingRun, ScalingRow], ...]:
    """Runs with their speed-up, in the order of ``scaling``."""
    by_id = {run.run_id: run for run in runs}
    return tuple((by_id[row.run_id], row) for row in scaling if row.run_id in by_id)


_TONES: dict[str, Tone] = {"excellent": "good", "good": "good", "fair": "warn", "poor": "bad", "negative": "bad"}


def first_epochs(drop_epochs: int) -> str:
    """Write ``the first epoch``, ``the first 3 epochs``."""
    return "the first epoch" if drop_epochs == 1 else f"the first {drop_epochs} epochs"


def speedup_value(row: ScalingRow | None) -> Value:
    """Write ``3.49x``; ``3.49x (3.41 to 3.58)`` with an interval."""
    if row is None:
        return unknown()
    text = f"{row.speedup:.2f}x"
    if row.low is None or row.high is None:
        return Value(text, row.speedup)
    return Value(f"{text} ({row.low:.2f} to {row.high:.2f})", row.speedup, compact=text)


def rate_column(
    runs: Iterable[TrainingRun],
    get: Callable[[Any], Any],
    *,
    run_of: Callable[[Any], TrainingRun] = lambda item: item,
    **how: Any,
) -> Column:
    """Return the column of throughput in the unit that ``runs`` count in: ``tokens/s``.

    ``per s``, with the unit beside each value, where they differ. get: a row's item -> Measured or 1/s. run_of: a row's
    item -> its run, where it is not the item itself. how: as for ``Column``.
    """
    units = {run.unit for run in runs if run.status == "ok"} or {"samples"}

    def value(item: Any) -> Value:
        speed = get(item)
        unit = run_of(item).unit if len(units) > 1 else ""
        form = Format(lambda per_s: f"{format_number(per_s, 3)} {unit}/s") if unit else rate
        return measured(speed if isinstance(speed, Measured | None) else Measured(value=speed), form)

    return Column("samples_per_s", f"{units.pop()}/s" if len(units) == 1 else "per s", value, rate, **how)


def efficiency_value(row: ScalingRow | None) -> Value:
    """Write ``87.3% good``; ``baseline``; a speed-up that is not rated says so."""
    if row is None:
        return unknown()
    if row.is_baseline:
        return Value("baseline", row.efficiency, compact="base", tone="dim")
    return Value(
        f"{format_percent(row.efficiency, digits=1)} {row.rating or 'not rated'}",
        row.efficiency,
        compact=format_percent(row.efficiency),
        tone=_TONES.get(row.rating or "", "bad"),
    )


def baselines_said(runs: Iterable[TrainingRun], scaling: Iterable[ScalingRow]) -> tuple[str, ...]:
    """Say which runs speed-ups refer to, where one is no plain process on one rank."""
    by_id = {run.run_id: run for run in runs}
    bases = dict.fromkeys(row.baseline_id for row in scaling if not row.is_baseline)
    baselines = [by_id[base] for base in bases if base in by_id]
    if all(run.world_size == 1 and is_plain(run) for run in baselines):
        return ()
    named = listed(list(dict.fromkeys(run.label for run in baselines)), at_most=4, between="; ")
    return (f"{'baselines' if len(baselines) > 1 else 'baseline'}: {named}.",)


def interval_text(middle: float, low: float | None, high: float | None) -> str:
    """Write ``±2%``, the larger side of the interval; empty where there is none."""
    if low is None or high is None or middle <= 0:
        return ""
    return format_plus_minus(max(high - middle, middle - low) / middle)


def measured(value: Measured | None, form: Format, *, estimated: bool = False, tight: bool = False) -> Value:
    """Write ``1.23 s ±2% est.``: the larger side of the interval in per cent of the median.

    tight: with it in narrow displays.
    """
    if value is None:
        return unknown()
    around, text = interval_text(value.value, value.low, value.high), form.write(value.value)
    short = ("~" if estimated else "") + text + around if tight else text if around else None
    return Value(
        " ".join(part for part in (text, around, "est." if estimated else "") if part), value.value, compact=short
    )


NONE = "none"
"""What stands for the communication of one rank: there is none."""


def exposed_value(run: TrainingRun) -> Value:
    """Return the exposed communication of a step with its share; ``none`` for one rank."""
    exposed = run.exposed_comm_ns
    value = measured(exposed, duration, tight=True)
    share = exposed_fraction(run)
    if exposed is None or share is None:
        return value
    if exposed.value == 0 and run.world_size == 1:
        return Value(NONE, 0, tone="dim")
    return replace(value, text=f"{value.text} ({format_percent(share)})")


def exposed_share(run: TrainingRun) -> Value:
    """Return the exposed communication as a share of the step or epoch; ``none`` for one rank."""
    share = exposed_fraction(run)
    return Value(NONE, share, tone="dim") if share == 0 and run.world_size == 1 else percent(share)
