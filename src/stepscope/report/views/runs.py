"""Training runs, whoever measured them: one line a run. The terminal, papers and the page pick from one set of columns.

Runs of the same matrix over time: each cell's step in every run, and the run since which it is different.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_count, format_percent
from stepscope.core.words import counted, grouped, listed
from stepscope.records.nouns import EXPOSED_COMM_SHORT, MFU_CONVENTION
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.names import clean
from stepscope.report.shared.curves import CurvePoint, RunCurve, curves_chart
from stepscope.report.shared.runs import (
    NONE,
    baselines_said,
    efficiency_value,
    exposed_share,
    exposed_value,
    first_epochs,
    measured,
    names,
    rate_column,
    speedup_value,
)
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    binary_size,
    duration,
    figure,
    group_column,
    identity_column,
    lead_column,
    percent,
    size,
    tabled,
    times,
    whole,
    wording,
)
from stepscope.report.vega import MAX_LINES, Chart
from stepscope.report.views import View
from stepscope.results.epochs import best_accuracy, epoch_time, mfu, too_short, train_loss
from stepscope.results.figures import Unit, figures_of, run_facts
from stepscope.results.labels import distinct, failure_label, ranks_label
from stepscope.results.run_figures import MORE
from stepscope.results.scaling import speedups
from stepscope.stats.order import SIGNIFICANT, ChangePoint

if TYPE_CHECKING:
    from stepscope.results.history import CellHistory, History


MAX_NAMED = 3

FIGURES = figures_of("run")

_OUTCOME = ("speedup", "efficiency", "mfu", "hfu", "train_loss", "best_accuracy", "peak_memory_bytes", *MORE)

CELLS = (
    "model", "dataset", "num_parameters", "device", "strategy", "world_size", "precision", "accumulation", "global_batch",
    "epoch_ns", "step_ns", "exposed_comm_ns", "comm_bytes", "samples_per_s", "speedup", "efficiency", "mfu", "hfu",
    "best_accuracy", "peak_memory_bytes", *MORE,
)  # fmt: skip
"""Columns that ``bench`` prints of the cells of one run folder."""

PAPER = (
    "group", "label", "world_size", "global_batch", "epochs", "epoch_ns", "step_ns", "samples_per_s", "exposed_fraction",
    *_OUTCOME,
)  # fmt: skip
"""Columns of runs of any source that a page of paper holds."""

PAGE = (
    "group", "label", "dataset", "strategy", "precision", "world_size", "global_batch", "accumulation", "num_parameters",
    "hardware", "epochs", "epoch_ns", "step_ns", "samples_per_s", "exposed_comm_ns", *_OUTCOME, "run_id",
)  # fmt: skip
"""Columns with all that tells runs apart, for displays that leave out what is the same throughout."""


def build(
    runs: Sequence[TrainingRun],
    scaling: Sequence[ScalingRow] = (),
    *,
    drop_epochs: int = 1,
    show: Sequence[str] = PAPER,
) -> Table:
    """Return the table of ``runs``: groups in order of first appearance, runs in their order.

    show: keys of columns, in order.
    """
    by_run = {row.run_id: row for row in scaling}
    blocks: dict[object, list[TrainingRun]] = grouped(
        runs, lambda run: run.group if "group" in show else (run.model, run.dataset, run.device, run.backend)
    )
    ordered = [run for block in blocks.values() for run in block]
    columns = {column.key: column for column in _run_columns(ordered, by_run, drop_epochs)}
    if "model" in show:  # what is trained stands above its block, known as soon as one run of it tells
        parameters = {r.run_id: next((b.num_parameters for b in block if b.num_parameters), None)
                 for block in blocks.values() for r in block}  # fmt: skip
        count = Format(lambda n: f"{format_count(n)} parameters")
        columns["num_parameters"] = group_column(
            "num_parameters", "parameters", lambda run: parameters[run.run_id], count
        )
        columns["dataset"] = group_column("dataset", "dataset", lambda run: run.dataset or "")
        columns["strategy"] = replace(columns["strategy"], role="lead")
    return tabled(
        "summary",
        "Training runs",
        ordered,
        *(columns[key] for key in show),
        failure=lambda run: None if run.step_ns is not None else failure_label(run),
        footnotes=_run_footnotes(ordered, by_run, drop_epochs, show),
        notes=_run_notes(ordered, every=show is not PAPER),
    )


def _run_columns(runs: Sequence[TrainingRun], scaling: dict[str, ScalingRow], drop_epochs: int) -> tuple[Column, ...]:
    """Return the columns that some run has a figure for."""
    estimated = [run.epoch_estimated for run in runs if run.epoch_ns is not None]
    mixed = not all(estimated)
    recomputes = _any_recomputes(runs)

    def epoch(run: TrainingRun) -> Value:
        return measured(
            epoch_time(run, drop_epochs), duration, estimated=mixed and bool(run.epoch_estimated), tight=True
        )

    def moved(run: TrainingRun) -> Value:
        return Value(NONE, 0, tone="dim") if run.comm_bytes_per_step == 0 else size(run.comm_bytes_per_step)

    return (
        group_column("group", "runs", "group"),
        group_column("model", "model", lambda run: run.model or ""),
        group_column("device", "device", lambda run: f"{run.device}/{run.backend}"),
        lead_column("label", "run", "label"),
        identity_column("dataset", "data", "dataset"),
        identity_column("strategy", "strategy", "strategy"),
        lead_column("world_size", "ranks", "world_size", whole),
        identity_column("precision", "precision", "precision", short="prec"),
        identity_column("accumulation", "accum", "accumulation", whole, short="acc"),
        identity_column("global_batch", "global batch", "global_batch", whole, short="batch"),
        identity_column("num_parameters", "parameters", "num_parameters", Format(format_count)),
        identity_column("hardware", "hardware", "hardware"),
        Column("epochs", "epochs", lambda run: len(run.epochs) or None, whole, drop=1),
        Column("epoch_ns", "epoch est." if estimated and not mixed else "epoch", epoch, duration, drop=8),
        _figure_column("step_ns", lambda run: measured(run.step_ns, duration, tight=True)),
        _figure_column("exposed_comm_ns", exposed_value, title=f"{EXPOSED_COMM_SHORT}/step"),
        Column("exposed_fraction", EXPOSED_COMM_SHORT, exposed_share, percent, short="comm", drop=6),
        Column("comm_bytes", "bytes/step", moved, size, drop=2),
        rate_column(runs, lambda run: run.samples_per_s),
        _figure_column("speedup", lambda run: speedup_value(scaling.get(run.run_id))),
        _figure_column("efficiency", lambda run: efficiency_value(scaling.get(run.run_id)), whole, drop=7),
        _figure_column("mfu", lambda run: run.mfu, drop=2),
        _figure_column("hfu", lambda run: run.hfu if recomputes else None, drop=1),
        _figure_column("train_loss", train_loss, title="train loss", drop=4),
        _figure_column("best_accuracy", best_accuracy, Format("{:.4f}".format), drop=5),
        _figure_column("peak_memory_bytes", lambda run: run.peak_memory_bytes, drop=3),
        identity_column("run_id", "id", "run_id"),
        *(_declared_column(key, scaling, drop_epochs) for key in MORE),
    )  # fmt: skip


_FORMATS: Mapping[Unit, Format] = {
    "ns": duration,
    "bytes": binary_size,
    "fraction": percent,
    "ratio": times,
    "count": whole,
}


def _figure_column(
    key: str,
    value: Callable[[TrainingRun], Any],
    text: Format | None = None,
    *,
    title: str | None = None,
    drop: int = 0,
) -> Column:
    """Return the column of a declared figure: headings and format as declared, unless this table has its own."""
    declared = FIGURES[key]
    written = text or _FORMATS.get(declared.unit, figure)
    return Column(key, title or declared.title, value, written, short=declared.short, drop=drop)


def _declared_column(key: str, scaling: Mapping[str, ScalingRow], drop_epochs: int) -> Column:
    """Return the column of a figure of which nothing special is to be shown."""
    declared = FIGURES[key]

    def value(run: TrainingRun) -> Value:
        amount = declared.measured(run_facts(run, scaling.get(run.run_id), drop_epochs=drop_epochs))
        return measured(amount, _FORMATS.get(declared.unit, figure))

    return _figure_column(key, value, drop=1)


def _run_notes(runs: Sequence[TrainingRun], *, every: bool) -> tuple[str, ...]:
    """Say what the runs' source leaves open, and with ``every`` their notes; one note on several runs is one line."""
    names = _run_names(runs)
    by_note: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        unknown = ", ".join(f"{key} ({why})" for key, why in run.missing.items())
        stopped = f"{failure_label(run)}: figures of the steps before" if run.status != "ok" and run.step_ns else None
        for note in filter(None, (stopped, *(run.notes if every else ()), f"unknown: {unknown}" if unknown else None)):
            by_note.setdefault(note, []).append(name)
    finished = sum(run.status == "ok" for run in runs)
    lines = []
    for note, owners in by_note.items():
        if len(owners) > 1 and len(owners) == finished:
            who = "all"
        else:
            between = "; " if any(", " in name for name in owners) else ", "
            who = listed(owners, at_most=MAX_NAMED, between=between)
        lines.append(f"{who}: {note}")
    return tuple(lines)


def _run_names(runs: Sequence[TrainingRun]) -> list[str]:
    """Write ``ddp on 2 ranks``, with the group and then the id where several are called so."""
    grouped_ = [f"{run.label} ({run.group})" for run in runs]
    by_id = [f"{name} {run.run_id}" for name, run in zip(grouped_, runs, strict=True)]
    return distinct([run.label for run in runs], grouped_, by_id)


def _run_footnotes(
    runs: Sequence[TrainingRun], scaling: dict[str, ScalingRow], drop_epochs: int, show: Collection[str]
) -> tuple[str, ...]:
    """Say what the columns are, as far as the runs need it."""
    done = [run for run in runs if run.status == "ok"]
    notes = _epoch_footnotes(done, drop_epochs)
    if any(m is not None and m.low is not None for run in done for m in (run.step_ns, epoch_time(run, drop_epochs))):
        notes.append("±: 95% interval of the median, its larger side; of fewer than 6 epochs their range.")
    if "exposed_comm_ns" in show and any(run.exposed_comm_ns is not None and run.exposed_comm_ns.value for run in done):
        notes.append(
            f"{EXPOSED_COMM_SHORT}/step (comm): from the last local gradient ready to all gradients usable, slowest rank"
            " (share of the step)."
        )
    if "comm_bytes" in show and any(run.comm_bytes_per_step for run in done):
        notes.append("bytes/step: payload of one rank.")
    rows = [row for run in done if (row := scaling.get(run.run_id)) is not None and not row.is_baseline]
    if rows:
        kinds = {"strong": "strong scaling: same global batch", "weak": "weak scaling: same batch per rank"}
        how = "; ".join(text for kind, text in kinds.items() if kind in {row.scaling for row in rows})
        ranks = "(ranks / baseline's ranks)" if any(row.baseline_world_size > 1 for row in rows) else "ranks"
        notes.append(
            f"speed-up: throughput over the baseline's, from {', '.join(dict.fromkeys(row.basis for row in rows))}"
            f"{f' ({how})' if how else ''}; efficiency: speed-up / {ranks}."
        )
        notes += baselines_said(runs, rows)
    notes += _mfu_footnotes(done)
    ours = [run for run in done if run.workload is not None]
    notes += _thread_footnotes(ours)
    if ours and all(best_accuracy(run) is None for run in done):
        notes.append("no accuracy: it takes whole epochs and real labels.")
    if any(run.device == "cpu" and (run.world_size or 1) > 1 and not run.settings.get("network") for run in ours):
        notes.append(
            "CPU ranks share cores and talk over loopback: their communication is CPU work, so overlap gains little"
            " and these figures do not carry over to GPUs."
        )
    return tuple(notes)


def _epoch_footnotes(runs: Sequence[TrainingRun], drop_epochs: int) -> list[str]:
    """Say which epochs count, and which are warm-up."""
    notes = []
    several = [run for run in runs if len(run.epochs) > 1]
    if any(epoch.warmup is None for run in several for epoch in run.epochs):
        few = any(too_short(run, drop_epochs) for run in runs)
        kept = "; none where there are no more than that" if few else ""
        notes.append(
            f"epoch: median over epochs, {first_epochs(drop_epochs)} left out (--drop-epochs {drop_epochs}){kept}."
            if drop_epochs
            else "epoch: median over all epochs (--drop-epochs 0)."
        )
    elif any(run.epoch_estimated is False for run in runs):
        notes.append("epoch: median over the epochs without warm-up steps, training only, slowest rank.")
    if any(run.epoch_estimated for run in runs):
        mark = " (est. or ~)" if any(run.epoch_estimated is False for run in runs) else " est."
        notes.append(f"epoch{mark}: steps per epoch x median step; no whole epoch was run.")
    return notes


def _any_recomputes(runs: Sequence[TrainingRun]) -> bool:
    return any(run.hfu is not None and run.hfu != run.mfu for run in runs)


def _mfu_footnotes(runs: Sequence[TrainingRun]) -> list[str]:
    """State the convention; of GPUs why MFU is unknown. CPUs have no peak to compare with."""
    why = {utilisation.reason for run in runs if run.device == "cuda" and run.model_flop is not None
           if isinstance(utilisation := mfu(run), Unavailable)}  # fmt: skip
    stated = any(run.mfu is not None and run.model_flop is None for run in runs)
    counted = any(run.mfu is not None and run.model_flop is not None for run in runs)
    notes = [f"MFU: {MFU_CONVENTION}."] if counted else []
    notes += (
        ["HFU: the same with the FLOP that activation checkpointing computes again."] if _any_recomputes(runs) else []
    )
    return [
        *notes,
        *(["MFU: as the source states it."] if stated else []),
        *(f"MFU unknown: {w}." for w in sorted(why)),
    ]


def _thread_footnotes(runs: Sequence[TrainingRun]) -> list[str]:
    """Say so when runs that a speed-up compares computed with different numbers of threads a rank."""
    by_id = {run.run_id: run for run in runs}
    pairs = [(run, by_id[run.baseline_id]) for run in runs if run.baseline_id in by_id]
    differ = [pair for pair in pairs if len({run.threads_per_rank for run in pair} - {None}) > 1]
    if not differ:
        return []
    compared = {run.run_id: run for pair in differ for run in pair}
    threads = sorted({(run.world_size or 0, run.threads_per_rank or 0) for run in compared.values()})
    counts = ", ".join(f"{number} on {ranks_label(ranks)}" for ranks, number in threads)
    why = (
        "the 1-rank baseline computes with cores that the ranks divide among themselves, so speed-up here says what"
        " splitting the same cores brings, not what more cores would"
        if any(run.device == "cpu" for run in compared.values())
        else "the host work of the 1-rank baseline (data, launching kernels) has more cores to itself"
    )
    return [f"threads per rank: {counts}; {why} (the same for all: launch.threads_per_rank)."]


def of_cells(runs: Sequence[TrainingRun]) -> Table:
    """Return the table that ``bench`` shows of the cells of one run folder."""
    return build(runs, tuple(speedups(runs).values()), show=CELLS)


def _cell_names(history: History) -> tuple[str, ...]:
    return names([cell.run for cell in history.cells if cell.run is not None])


def change_text(history: History, cell: CellHistory) -> str:
    """Write ``+20% since nightly-5 (2026-11-05), p = 0.004``; why nothing changed, or why nobody can say."""
    change = cell.change
    if isinstance(change, Unavailable):
        return f"not tested: {change.reason}"
    if cell.since is None:
        return f"no significant change (p = {change.p_value:.2g})"
    return f"{_step_text(change)} since {_run_name(history, cell.since)}, p = {change.p_value:.2g}"


def _step_text(point: ChangePoint) -> str:
    change = point.after / point.before - 1
    return ("+" if change > 0 else "-") + format_percent(abs(change))


def _run_name(history: History, at: int) -> str:
    run = history.runs[at]
    return f"{clean(run.name, 60)} ({run.created[:10]})"


def history_table(history: History | None) -> Table:
    """Return the table: one row a cell, and one for all together where there are several."""
    rows = [] if history is None else list(zip(history.cells, _cell_names(history), strict=True))
    footnotes: tuple[str, ...] = ()
    common = Value("", None)
    if history is not None:
        common = wording(change_text(history, history.common), None)
        footnotes = (
            f"{counted(len(history.runs), 'run')} from {_run_name(history, 0)} to"
            f" {_run_name(history, len(history.runs) - 1)};"
            f" all cells together (median of step / the cell's median): {common.text}",
            "change: the split with the least squares; p by a permutation test of rank sums"
            + (
                f"; p of a cell times {len(history.cells)} cells"
                if len(history.cells) > 1 and history.common.since is None
                else ""
            ),
        )

    def last(cell: CellHistory) -> float:
        return [step for step in cell.step_ns if step is not None][-1]

    def change(cell: CellHistory) -> Value:
        """Write the change of a cell, or why none was tested."""
        assert history is not None
        ratio = (
            None
            if cell.since is None or isinstance(cell.change, Unavailable)
            else cell.change.after / cell.change.before - 1
        )
        tone: Tone = "plain" if ratio is None else "bad" if ratio > 0 else "good"
        text = change_text(history, cell)
        return Value(text, text, tone=tone)

    return tabled(
        "history",
        "Runs over time",
        rows,
        lead_column("cell", "cell", "1"),
        Column("runs", "runs", lambda row: sum(step is not None for step in row[0].step_ns), whole),
        Column("first_ns", "first step", lambda row: next(s for s in row[0].step_ns if s is not None), duration),
        Column("last_ns", "last step", lambda row: last(row[0]), duration),
        Column("change", "change", lambda row: change(row[0])),
        footnotes=footnotes,
    )


def history_charts(history: History) -> Iterator[Chart]:
    """Yield one chart of each cell's step / its median: of too many cells those that changed most."""
    pairs = sorted(zip(history.cells, _cell_names(history), strict=True), key=lambda pair: -_last_over_first(pair[0]))
    lines = [RunCurve(name, _history_points(cell)) for cell, name in pairs[:MAX_LINES]]
    shown = f" ({len(lines)} of {len(history.cells)} cells)" if len(lines) < len(history.cells) else ""
    title, since = f"{len(history.runs)} runs{shown}", history.common.since
    dashed = "" if since is None else f" Dashed line: the change (p below {SIGNIFICANT:g})."
    caption = (
        f"Step time of every cell over the runs of one matrix, {_run_name(history, 0)} to"
        f" {_run_name(history, len(history.runs) - 1)}; all cells together: {change_text(history, history.common)}."
        f"{dashed} Cells that look the same are one line."
    )
    axis, marked = "step time (% of the cell's median)", None if since is None else since + 0.5
    yield Chart("steps", title, caption, curves_chart(title, lines, "run, oldest first", axis, 100.0, marked=marked))


def _measured_steps(cell: CellHistory) -> Sequence[float]:
    return sorted(step for step in cell.step_ns if step is not None)


def _last_over_first(cell: CellHistory) -> float:
    steps = _measured_steps(cell)
    return steps[-1] / steps[0]


def _history_points(cell: CellHistory) -> tuple[CurvePoint, ...]:
    steps = _measured_steps(cell)
    middle = (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2
    return tuple(CurvePoint(n, step / middle) for n, step in enumerate(cell.step_ns, start=1) if step is not None)


VIEWS = (
    View("runs", table=build),
    View("history", "Runs over time", table=history_table, charts=history_charts),
)
