"""``benchmark_results_*.json`` of a benchmark notebook: a list with one object a training run.

A row has mode, n_gpus, n_params, model_size, use_amp, grad_accum_steps, epoch_times and losses (a list each, seconds),
final_accuracy, avg_epoch_time, total_time, gpu_name; blocking runs also comm_times. What the rows do not say and what is
therefore not made up: steps an epoch, batches, which 16-bit type autocast used. Not taken over:

- ``comm_time`` 0.0 of a single GPU and the missing one of overlapping modes are not times: unknown.
- ``final_accuracy`` is of the training data, whose labels are random: the last epoch's training accuracy, never a test's.
- A run that failed has no row: the note says which are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.words import counted, listed
from stepscope.records.imported import Imported
from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch, TrainingRun
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.reader import Fields, count, finite, positive, read_json
from stepscope.store.training_runs import SECOND, joined, label, slug, steady_mean

STRATEGIES = {
    "single_gpu": "single",
    "dp_naive": "naive",
    "dp_interleaved": "interleaved",
    "ddp_builtin": "ddp",
}
DATASET = "synthetic"
"""What the data set is called: the notebook draws its samples and labels at random."""

_SUFFIXES = (".json",)
_NAME = re.compile(r"benchmark_results_(.+)\.json")
_NAMED = 5


def _knows_notebook(candidate: Candidate) -> bool:
    text = candidate.text.lstrip("\ufeff \t\r\n")
    return text.startswith("[") and '"n_gpus"' in text and '"mode"' in text and '"epoch_times"' in text


def _import_notebooks(source: Candidate) -> Imported:
    files, left_out = read_each(source, _knows_notebook, _read_notebook, suffixes=_SUFFIXES)
    files, copies = _without_copies(files)
    imported = joined("notebook_results", source, files, left_out=left_out)
    return replace(imported, notes=(*copies, *imported.notes))


def _read_notebook(path: Path) -> Imported:
    """Read the runs of one file; damaged rows are noted. Raises DataError for a file that is no list."""
    document = read_json(path)
    if not isinstance(document, list):
        raise DataError(f"{path}: no list of runs", why=f"it holds {type(document).__name__}")
    runs: list[TrainingRun] = []
    refused: list[str] = []
    for at, row in enumerate(document):
        try:
            if not isinstance(row, dict):
                raise DataError(f"{path}: row {at} is not an object", why=f"it is {str(row)[:40]!r}")
            runs.append(_notebook_run(path, Fields(str(path), row, f"row {at}")))
        except DataError as error:
            refused.append(error.line)
    if not runs:
        why = refused[0] if refused else "the list is empty: every run of the benchmark failed"
        raise DataError(f"{path}: no run in it", why=why, fix="run the benchmark again")
    notes = [f"{line}; left out" for line in refused[:_NAMED]]
    if len(refused) > _NAMED:
        notes.append(f"{path}: {len(refused) - _NAMED} more rows left out")
    timed = any("exposed_comm_ns_per_epoch" in run.settings for run in runs)
    scored = any(e.train_accuracy is not None for run in runs for e in run.epochs)
    return Imported(
        format="",
        path=str(path),
        runs=tuple(runs),
        notes=(*notes, *_missing_row_notes(path, runs)),
        remarks=(
            *[f"{path}: communication was timed for blocking runs only, on rank 0, including its waiting for others"]
            * timed,
            *[f"{path}: accuracy is of the training data, whose labels are random: ignore it"] * scored,
        ),
    )


def _notebook_run(path: Path, row: Fields) -> TrainingRun:
    """Return the run of one row. Raises DataError for a row that describes none."""
    where = f"{path}: {row.at}"
    mode, size = row.text("mode"), row.text("model_size")
    world_size, accumulation = row.count("n_gpus"), row.maybe(row.count, "grad_accum_steps") or 1
    use_amp = row.values.get("use_amp", False)
    strategy = STRATEGIES.get(mode, mode)
    if not isinstance(use_amp, bool) or (strategy == "single" and world_size != 1):
        raise DataError(f"{where}: {mode} on {world_size} GPUs, use_amp {use_amp!r}", why="they do not describe a run")
    notes: list[str] = []
    epochs = _notebook_epochs(where, row.values, notes)
    precision = "amp" if use_amp else "fp32"
    timed = [e.duration_ns for e in epochs if e.duration_ns is not None]
    settings = row.plain("lr", "n_samples", "batch_size")
    if strategy == "naive" and (exposed_ns := _exposed_ns(row.values.get("comm_times"))):
        settings["exposed_comm_ns_per_epoch"] = exposed_ns
    parts = [f"mlp {size} on {DATASET}", precision]
    parts += [f"accumulation {accumulation}"] if accumulation > 1 else []
    return TrainingRun(
        run_id=slug(size, strategy, f"{world_size}gpu", precision, f"ga{accumulation}"),
        label=label(strategy, world_size),
        group=", ".join(parts),
        source=str(path),
        status="ok" if timed else "error",
        error=None if timed else f"{where}: no epoch was timed",
        world_size=world_size,
        model=f"mlp {size}",
        dataset=DATASET,
        dataset_size=count(row.values.get("n_samples")),
        strategy=strategy,
        precision=precision,
        accumulation=accumulation,
        scaling="strong",
        device="cuda",
        backend="nccl" if strategy != "single" else None,
        hardware=_gpu_name(path, row.values),
        num_parameters=count(row.values.get("n_params")),
        epoch_estimated=False,
        epochs=epochs,
        train_loss=epochs[-1].train_loss if epochs else None,
        settings=settings,
        notes=tuple(notes),
        **_step_fields(
            row.values, world_size, accumulation, steady_mean(timed), settings.get("exposed_comm_ns_per_epoch")
        ),
    )


def _notebook_epochs(where: str, row: Mapping[str, Any], notes: list[str]) -> tuple[Epoch, ...]:
    """Return the epochs of a row; those without a time or a finite loss are noted."""
    times, losses = (row[name] if isinstance(row.get(name), list) else [] for name in ("epoch_times", "losses"))
    epochs = []
    for number, (time, loss) in enumerate(zip_longest(times, losses, fillvalue="not there"), 1):
        seconds, value = positive(time), finite(loss)
        notes += [f"{where}: no time of epoch {number}"] * (seconds is None)
        notes += [f"{where}: loss of epoch {number} is {loss}"] * (value is None)
        epochs.append(Epoch(number=number, duration_ns=seconds and seconds * SECOND, train_loss=value))
    accuracy = finite(row.get("final_accuracy"))
    if epochs and accuracy is not None and 0 <= accuracy <= 1:
        epochs[-1] = replace(epochs[-1], train_accuracy=accuracy)
    stated = positive(row.get("avg_epoch_time"))
    if stated is not None and times and all(map(positive, times)) and abs(stated - fmean(times)) > 0.01 * fmean(times):
        notes.append(f"{where}: avg_epoch_time {stated:.4g} s is not the mean of epoch_times, {fmean(times):.4g} s")
    return tuple(epochs)


def _exposed_ns(times: Any) -> float | None:
    """Return communication per epoch, since its steps are not told, without the first epoch; None where any is unknown."""
    timed = [second * SECOND for second in map(positive, times) if second] if isinstance(times, list) else []
    mean = steady_mean(timed)
    return mean.value if mean is not None and len(timed) == len(times) else None


def _step_fields(
    row: Mapping[str, Any],
    world_size: int,
    accumulation: int,
    epoch: Measured | None,
    exposed_ns: float | None,
) -> dict[str, Any]:
    """Return what follows from the notebook's ``n_samples`` and ``batch_size`` (samples of a micro-step, all ranks)."""
    samples, batch = count(row.get("n_samples")), count(row.get("batch_size"))
    if samples is None or batch is None:
        return {}
    micro_steps = -(-samples // batch)
    steps = -(-micro_steps // accumulation)
    figures: dict[str, Any] = {
        "steps_per_epoch": steps,
        "global_batch": batch * accumulation,
        "micro_batch": batch // world_size if batch % world_size == 0 else None,
    }
    if epoch is not None:
        figures["samples_per_s"] = Measured(value=samples / epoch.value * SECOND, n=epoch.n)
        figures["step_ns"] = Measured(value=epoch.value / steps, n=epoch.n)
    if exposed_ns is not None:
        figures["exposed_comm_ns"] = Measured(value=exposed_ns / steps)
    return figures


def _gpu_name(path: Path, row: Mapping[str, Any]) -> str | None:
    """Return the GPU's name from the row, else from the file's name, whose underscores stand for spaces."""
    name = row.get("gpu_name")
    if isinstance(name, str) and name and name != "unknown":
        return name
    named = _NAME.fullmatch(path.name)
    return named[1].replace("_", " ") if named and named[1] != "unknown" else None


def _without_copies(files: Iterable[Imported]) -> tuple[list[Imported], list[str]]:
    """Leave out copies: the notebook writes each result twice, with and without the GPU in the file's name."""
    kept: list[Imported] = []
    notes = []
    for file in sorted(files, key=lambda f: (_NAME.fullmatch(Path(f.path).name) is None, Path(f.path))):
        same = next((k for k in kept if _same_figures(k, file)), None)
        if same is None:
            kept.append(file)
        else:
            notes.append(f"{file.path}: the same runs as {same.path}; counted once")
    return kept, notes


def _same_figures(named: Imported, other: Imported) -> bool:
    """Return whether ``other`` holds the same figures, of the same GPU or of one that it does not name."""
    if [(run.run_id, run.epochs) for run in named.runs] != [(run.run_id, run.epochs) for run in other.runs]:
        return False
    return all(b.hardware in (a.hardware, None) for a, b in zip(named.runs, other.runs, strict=True))


def _missing_row_notes(path: Path, runs: Sequence[TrainingRun]) -> list[str]:
    """Note the runs that the plan must have had and that left no row: each mode and number of GPUs, for each group."""
    modes = {(run.strategy, run.world_size) for run in runs}
    holes = []
    for group in dict.fromkeys(run.group for run in runs):
        there = {(run.strategy, run.world_size) for run in runs if run.group == group}
        holes += [f"{group}: {strategy} on {n}" for strategy, n in sorted(modes - there, key=str)]
    if not holes:
        return []
    some = listed(holes, at_most=_NAMED, between="; ")
    return [f"{path}: no row for {counted(len(holes), 'run')} (failed runs leave none): {some}"]


IMPORTER = Importer(
    title="benchmark_results_*.json of a notebook",
    recognises=_knows_notebook,
    read_files=_import_notebooks,
    rank=40,
    marks=("epoch_times",),
)
