"""Experiments that left one row per epoch: ``experiments/*/metrics.csv`` with their ``configs/*.yaml``.

Takes a folder of them, one experiment's folder, or one CSV. Columns, the first name found counts (``_epoch_table``):
``epoch``; ``train_time`` in seconds (also ``epoch_time``, ``..._ms``); ``train_loss``, ``val_loss``, ``val_acc`` and their
usual other names. The configuration whose ``output_dir`` names the experiment gives model, data and settings.

A configuration says whether a job used DDP, not on how many ranks: that is for the user to state. A bare ``batch_size``
is one rank's for some programs and all ranks' for others: it is a setting here, and a batch only on one rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.core.words import grouped
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.columns import columns_of
from stepscope.store.epoch_table import EpochTable, is_epoch_table, read_epoch_table
from stepscope.store.experiment import (
    CONFIG_SUFFIXES,
    ExperimentFacts,
    NameFacts,
    config_files,
    facts_of,
    name_facts,
    read_configs,
    readable_dataset,
    short_ids,
)
from stepscope.store.importer import Candidate, Importer
from stepscope.store.stated import with_stated
from stepscope.store.tables import headers
from stepscope.store.training_runs import label, steady_mean

FILE = "metrics.csv"
_TABLES = (".csv", ".tsv")
_ROWS = 200
"""Lines that are looked at for a column that names runs."""


@record
class _Experiment:
    run_id: str
    name: str
    file: Path
    table: EpochTable | None
    error: str | None
    facts: ExperimentFacts
    from_name: NameFacts
    notes: tuple[str, ...]


def _recognises_metrics(candidate: Candidate) -> bool:
    """Return whether rows are epochs of one run; where columns tell runs apart, it is a table of runs by epoch."""
    (names,) = headers(candidate) or ((),)
    columns = columns_of(names, candidate.stated.columns)
    if candidate.path.name.lower() != FILE:
        several = columns.has("world_size", "strategy", "model", "hardware", "run")
        return candidate.path.suffix.lower() in _TABLES and is_epoch_table(candidate.text) and not several
    separator = "\t" if "\t" in candidate.text.partition("\n")[0] else ","
    rows = [row for line in candidate.text.splitlines()[1:_ROWS] if len(row := line.split(separator)) == len(names)]
    of_runs = [columns.by_role[role][0] for role in ("world_size", "run") if role in columns.by_role]
    return all(len({row[at].strip() for row in rows}) < 2 for at in of_runs)


def _read_experiments(source: Candidate) -> Imported:
    """Read the epochs of each experiment, with the facts of configurations beside them."""
    path, stated, files = source.path, source.stated, source.files
    tables = [file for file in files if source.only or not source.is_folder or file.name.lower() == FILE]
    tables = [file for file in tables if file.suffix.lower() not in CONFIG_SUFFIXES]
    configs, notes = read_configs(config_files(path, files if source.is_folder else ()))
    names = [_experiment_name(file) for file in tables]
    counts = Counter(names)
    experiments = []
    for file, name, run_id in zip(tables, names, short_ids(names, _places_below(path, tables)), strict=True):
        folder = _experiment_folder(file)
        facts = facts_of(folder, configs, unique=counts[name] == 1, alone=len(tables) == 1)
        experiments.append(_read_experiment(run_id, name, file, facts, path.is_dir()))
    if all(experiment.table is None for experiment in experiments):
        raise DataError(
            experiments[0].error or str(path),
            why=f"no other metrics.csv below {path} is readable" if len(experiments) > 1 else None,
            fix="pass a folder with experiments/*/metrics.csv, one row per epoch",
        )
    notes = (
        *notes,
        *(note for experiment in experiments if experiment.table is not None for note in experiment.table.notes),
    )
    groups = _group_names(experiments)
    runs = [_experiment_run(experiment, group, stated) for experiment, group in zip(experiments, groups, strict=True)]
    runs = list(with_stated(runs, stated))
    timed = any(e.duration_ns is not None for run in runs for e in run.epochs)
    return Imported(
        format="metrics_csv",
        path=str(path),
        runs=_labelled_runs(runs),
        notes=notes,
        remarks=(
            *(
                remark
                for experiment in experiments
                if experiment.table is not None
                for remark in experiment.table.remarks
            ),
            *["epoch times are those that the training process measured"] * timed,
        ),
    )


def _read_experiment(run_id: str, name: str, file: Path, facts: ExperimentFacts, one_of_many: bool) -> _Experiment:
    try:
        table, error = read_epoch_table(file), None
    except DataError as damaged:
        if not one_of_many:
            raise
        table, error = None, damaged.line
    if table is not None and table.blank and not one_of_many:
        raise DataError(table.empty or str(file), fix="pass the metrics.csv of a run that finished an epoch")
    return _Experiment(
        run_id=run_id,
        name=name,
        file=file,
        table=table,
        error=error or (table.empty if table else None),
        facts=facts,
        from_name=name_facts(name),
        notes=(*facts.notes, *(table.notes if table else ())),
    )


def _experiment_run(experiment: _Experiment, group: str, stated: Stated) -> TrainingRun:
    """Return the run of an experiment: its epochs, and what its configuration or name says."""
    epochs = experiment.table.epochs if experiment.table is not None else ()
    facts = experiment.facts
    ddp = facts.flag("use_ddp")
    world_size = 1 if ddp is False else facts.count("world_size")
    settings, notes = _settings_and_notes(experiment, world_size)
    return TrainingRun(
        run_id=experiment.run_id,
        label=experiment.name,
        group=group,
        source=str(experiment.file),
        status="ok" if epochs else "interrupted" if experiment.table is not None else "error",
        error=experiment.error,
        world_size=world_size,
        model=_model_text(facts),
        dataset=_experiment_dataset(experiment),
        dataset_size=facts.count("dataset_size"),
        strategy="single"
        if ddp is False
        else "ddp"
        if ddp or (facts.source is None and experiment.from_name.ddp)
        else None,
        precision=_facts_precision(facts),
        accumulation=facts.count("accumulation"),
        micro_batch=_global_batch(facts, "micro_batch", world_size),
        global_batch=_global_batch(facts, "global_batch", world_size),
        scaling=stated.scaling or "strong",
        backend=facts.text("backend") if ddp else None,
        epoch_estimated=False if epochs else None,
        samples_per_s=steady_mean([e.samples_per_s for e in epochs]),
        epochs=epochs,
        train_loss=max(epochs, key=lambda e: e.number).train_loss if epochs else None,
        settings=settings,
        notes=(*experiment.notes, *notes),
        missing={} if world_size is not None else {"world_size": _why_missing(experiment, ddp)},
    )


def _settings_and_notes(experiment: _Experiment, world_size: int | None) -> tuple[dict[str, Any], list[str]]:
    """Return (what else is known, as settings; notes on it for a reader)."""
    settings: dict[str, Any] = {**experiment.facts.settings, "experiment": experiment.name}
    if experiment.from_name.epochs is not None:
        settings.setdefault("epochs", experiment.from_name.epochs)
    notes = []
    if "batch_size" in settings and world_size != 1:
        notes.append(
            f"batch_size {settings['batch_size']}: unclear whether per rank or over all ranks; neither is assumed"
        )
    table = experiment.table
    if table is None:
        return settings, notes
    order = table.order
    if order.duplicates or order.backwards:
        settings |= {
            "duplicate_epochs": order.duplicates,
            "epochs_backwards": order.backwards,
            "epoch_series": order.series,
            "epoch_series_alternate": order.alternating,
        }
    if table.repeated_headers:
        settings["repeated_headers"] = table.repeated_headers
    if order.sentence is not None:
        notes.append(f"{experiment.file}: {order.sentence}")
    planned, done = settings.get("epochs"), len({e.number for e in table.epochs})
    if isinstance(planned, int) and 0 < done < planned:
        notes.append(f"{done} of {planned} epochs finished")
    return settings, notes


def _global_batch(facts: ExperimentFacts, name: str, world_size: int | None) -> int | None:
    """Return the batch of its own name; on one rank also the bare ``batch_size``."""
    own = facts.count(name)
    if own is not None or world_size != 1 or facts.get("accumulation") not in (None, 1):
        return own
    return facts.count("batch_size")


def _facts_precision(facts: ExperimentFacts) -> str | None:
    return "amp" if facts.get("precision") is True else facts.text("precision")


def _experiment_dataset(experiment: _Experiment) -> str | None:
    stated = experiment.facts.text("dataset")
    return experiment.from_name.dataset if stated is None else readable_dataset(stated)


def _model_text(facts: ExperimentFacts) -> str | None:
    """Describe a model as ``transformer_sequence_classifier 2x128``: kind, layers and width as far as known."""
    if not facts.model:
        return None
    model = facts.model
    kind = next(
        (model[k] for k in ("type", "name", "arch", "architecture", "") if isinstance(model.get(k), str)),
        None,
    )
    layers = next((model[k] for k in ("num_layers", "n_layers") if k in model), None)
    width = next((model[k] for k in ("d_model", "hidden_size", "hidden_dim") if k in model), None)
    size = f"{layers}x{width}" if layers is not None and width is not None else None
    return " ".join(part for part in (kind, size) if part) or None


def _group_names(experiments: Sequence[_Experiment]) -> list[str]:
    """Say what is trained on what. Different models or data never share a name; lengths of training do not
    either, where one of them has several.
    """
    keys = [_group_key(experiment) for experiment in experiments]
    texts = [_group_text(experiment) for experiment in experiments]
    names = list(texts)
    for members in grouped(range(len(texts)), texts.__getitem__).values():
        for name in ("model", "data", "epochs"):
            values = {at: keys[at][name] for at in members}
            if len({repr(value) for value in values.values()}) > 1:
                for at in members:
                    names[at] += _difference_text(name, values[at], values.values())
    return names


def _group_key(experiment: _Experiment) -> dict[str, Any]:
    facts = experiment.facts
    planned = experiment.from_name.epochs if facts.source is None else facts.get("epochs")
    return {"model": dict(facts.model), "data": facts.get("dataset"), "epochs": planned}


def _difference_text(name: str, value: Any, others: Any) -> str:
    if name != "model":
        return f", {value} epochs" if name == "epochs" else f", {name} {value}"
    varied = {key for one in others for key in one if len({repr(other.get(key)) for other in others}) > 1}
    return "".join(f", {key} {value[key]}" for key in sorted(varied) if key in value)


def _group_text(experiment: _Experiment) -> str:
    """Write what is trained on what, with the precision."""
    if experiment.facts.source is None:
        return experiment.from_name.subject or experiment.name
    parts = [part for part in (_model_text(experiment.facts), _experiment_dataset(experiment)) if part]
    text = " on ".join(parts) or experiment.from_name.subject or experiment.name
    precision = _facts_precision(experiment.facts)
    return f"{text}, {precision}" if precision else text


def _labelled_runs(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """Give runs labels that tell those of a group apart: by ranks, and by id where that is not enough."""
    labels = [label(run.strategy if run.strategy != "single" else None, run.world_size) for run in runs]
    counts = Counter((run.group, text) for run, text in zip(runs, labels, strict=True))
    return tuple(
        replace(run, label=text if counts[run.group, text] == 1 else f"{text}, {run.run_id}")
        for run, text in zip(runs, labels, strict=True)
    )


def _why_missing(experiment: _Experiment, ddp: bool | None) -> str:
    """Say why the number of ranks is unknown."""
    if experiment.facts.source is None:
        why = "no configuration names this experiment"
    elif ddp:
        why = f"{experiment.facts.source} states use_ddp: true, but not the number of ranks"
    else:
        why = f"{experiment.facts.source} does not state the number of ranks"
    return f"{why} (its name says {experiment.from_name.ranks_text})" if experiment.from_name.ranks_text else why


def _experiment_name(file: Path) -> str:
    folder = _experiment_folder(file)
    return folder.name if file.name.lower() == FILE and folder.name else file.stem


def _experiment_folder(file: Path) -> Path:
    """Return the experiment's folder; its real one where the file was given without."""
    return file.parent if file.parent.name not in ("", "..") else file.absolute().parent


def _places_below(path: Path, files: Sequence[Path]) -> Mapping[int, str]:
    """Return where each file lies below ``path``, which tells experiments of one name apart."""
    root = path if path.is_dir() else path.parent
    return {at: file.parent.relative_to(root).as_posix() for at, file in enumerate(files)}


IMPORTER = Importer(
    title="metrics.csv of experiments",
    recognises=_recognises_metrics,
    read_files=_read_experiments,
    rank=80,
    suffixes=(".csv", ".tsv"),
)
