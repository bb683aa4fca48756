"""Short names of models, strategies, cells and statuses for tables, log lines and sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import UsageError
from stepscope.core.words import counted
from stepscope.records.cell import CellSpec
from stepscope.records.training import TrainingRun
from stepscope.results.varied import settings_of, varying

Defaults = Callable[[str], Mapping[str, Any]]

STATUS_LABELS = {
    "oom": "out of GPU memory",
    "host_oom": "out of host memory",
}

_FIELDS = frozenset(field.name for field in dataclasses.fields(CellSpec))


def strategy_defaults(key: str) -> Mapping[str, Any]:
    """Default options of a strategy; empty when it is not installed here (then every option counts as set)."""
    from stepscope.strategies import REGISTRY

    try:
        return REGISTRY.load(key).options().as_dict()
    except (UsageError, ValueError):
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLabel:
    """What one cell is called among the others of its set; no two cells of a set have the same ``text``.

    model: with options that its own name leaves out, where they differ. strategy: with its options.
    settings: ``seed=2 lr=0.1``, those that are needed to tell cells apart; mostly empty.
    name: for sentences that name the model themselves, ``ddp bucket_cap_mb=1 on 2 ranks``.
    text: for a line of its own, ``mlp small, ddp bucket_cap_mb=1, 2 ranks, fp32``.
    """

    model: str
    strategy: str
    settings: str
    name: str
    text: str

    @property
    def mode(self) -> str:
        """Strategy and settings: a table's first column."""
        return f"{self.strategy} {self.settings}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """What a label is made of, whether the cell is planned or has run."""

    cell_id: str
    workload: str | None
    model: Mapping[str, Any]
    name: str | None  # of the model, where it is no workload of ours
    strategy: str
    strategy_options: Mapping[str, Any]
    settings: Mapping[str, Any]
    dataset: str | None
    device: str | None
    backend: str | None
    precision: str | None
    accumulation: int
    world_size: int
    global_batch: int | None


_ALIKE = ("workload", "dataset", "device", "backend", "precision", "global_batch", "strategy_options")


def _cell(cell: CellSpec | TrainingRun) -> _Cell:
    alike = {name: getattr(cell, name) for name in _ALIKE}
    if isinstance(cell, CellSpec):
        return _Cell(
            **alike, cell_id=cell.cell_id, model=cell.model, name=None, strategy=cell.strategy, settings=settings_of(cell),
            accumulation=cell.accumulation, world_size=cell.world_size,
        )  # fmt: skip
    return _Cell(
        **alike, cell_id=cell.run_id, model=cell.model_options, name=cell.model, settings=cell.varied,
        strategy=cell.strategy_key or cell.strategy or "unknown", accumulation=cell.accumulation or 1,
        world_size=cell.world_size or 0,
    )  # fmt: skip


def cell_labels(
    planned: Sequence[CellSpec | TrainingRun], *, defaults: Defaults = strategy_defaults
) -> tuple[CellLabel, ...]:
    """One label a cell: what a table or a log line always shows of it, and as much more as tells it from the others.

    A setting is shown on all cells as soon as two of them differ in nothing else that is shown.
    """
    cells = [_cell(cell) for cell in planned]
    models = _models(cells)
    strategies = _strategies(cells, defaults)
    columns = [
        (model, strategy, *(getattr(cell, name) for name in _COLUMNS))
        for cell, model, strategy in zip(cells, models, strategies, strict=True)
    ]
    settings = told_apart(columns, [_settings(cell) for cell in cells])
    settings = _told_apart_by_id(columns, settings, cells)
    modes = [f"{strategy} {more}".rstrip() for strategy, more in zip(strategies, settings, strict=True)]
    rest = [_rest(cell) for cell in cells]
    names = [f"{mode} on {ranks_label(c.world_size)}" for mode, c in zip(modes, cells, strict=True)]
    texts = [
        f"{model}, {mode}, {ranks_label(c.world_size)}, {c.precision}{_accumulation(c)}"
        for model, mode, c in zip(models, modes, cells, strict=True)
    ]
    more_name = told_apart(list(zip(models, names, strict=True)), rest, between=", ")
    more_text = told_apart(texts, rest, between=", ", known=("precision", "accumulation"))
    return tuple(
        CellLabel(
            model=model,
            strategy=strategy,
            settings=some,
            name=", ".join(part for part in (name, of_name) if part),
            text=", ".join(part for part in (text, of_text) if part),
        )
        for model, strategy, some, name, of_name, text, of_text in zip(
            models, strategies, settings, names, more_name, texts, more_text, strict=True
        )
    )


_COLUMNS = ("dataset", "device", "backend", "precision", "accumulation", "world_size", "global_batch")
"""What a table shows of a cell beside its model and strategy (``report/tables/summary.py``)."""


def _rest(cell: _Cell) -> dict[str, Any]:
    """The same, as words for a log line or a sentence."""
    return {
        "precision": cell.precision or "",
        "accumulation": f"GA {cell.accumulation}",
        "batch": f"batch {cell.global_batch}",
        "dataset": cell.dataset or "",
        "device": f"{cell.device}/{cell.backend}",
    }


def _settings(cell: _Cell) -> dict[str, Any]:
    return {key: _option(_short(key), value) for key, value in cell.settings.items() if value is not None}


def _short(key: str) -> str:
    """``samples`` for ``dataset_options.samples``, unless a cell has a key of that name itself (``seed``)."""
    _, dot, name = key.partition(".")
    return name if dot and name not in _FIELDS else key


def told_apart(
    shown: Sequence[Hashable],
    hidden: Sequence[Mapping[str, str]],
    *,
    between: str = " ",
    known: Container[str] = (),
) -> list[str]:
    """For each cell the ``hidden`` texts that are needed to tell apart cells whose ``shown`` parts are equal.

    known: keys of ``hidden`` that ``shown`` has already.
    """
    alike: dict[Hashable, list[Mapping[str, str]]] = {}
    for key, texts in zip(shown, hidden, strict=True):
        alike.setdefault(key, []).append(texts)
    needed = {name for group in alike.values() for name in varying(group) if name not in known}
    return [between.join(text for name, text in texts.items() if name in needed) for texts in hidden]


def _told_apart_by_id(columns: Sequence[Hashable], settings: Sequence[str], cells: Sequence[_Cell]) -> list[str]:
    """Cells that nothing shown tells apart (the content of their data differs) get the end of their id."""
    ids = [{"id": f"id={cell.cell_id.rpartition('-')[2]}"} for cell in cells]
    more = told_apart(list(zip(columns, settings, strict=True)), ids)
    return [f"{one} {two}".strip() for one, two in zip(settings, more, strict=True)]


def _models(cells: Sequence[_Cell]) -> list[str]:
    """Labels of the models; where one label stands for several models, with the options that they differ in."""
    labels = [_model(cell) for cell in cells]
    options = [{k: _option(k, v) for k, v in cell.model.items() if v is not None} for cell in cells]
    more = told_apart(labels, options)
    return [f"{label} {some}".rstrip() for label, some in zip(labels, more, strict=True)]


def _model(cell: _Cell) -> str:
    """``mlp small``: the workload's own name for this model, or its options when it is not installed here."""
    if cell.workload is None:
        return cell.name or "unknown model"
    from stepscope.workloads import REGISTRY

    try:
        workload = REGISTRY.load(cell.workload)
        return workload.label(workload.options.model_validate(dict(cell.model)))
    except (UsageError, ValueError):
        return " ".join([cell.workload, *(_option(k, v) for k, v in sorted(cell.model.items()))])


def _strategies(rows: Sequence[_Cell], defaults: Defaults) -> tuple[str, ...]:
    """One name a cell: the strategy and its options that are not the default, or that are numbers which the set varies."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for key, value in row.strategy_options.items():
            values.setdefault((row.strategy, key), set()).add(repr(value))
    varied = {name for name, found in values.items() if len(found) > 1}
    return tuple(
        _strategy(row, defaults(row.strategy), {key for strategy, key in varied if strategy == row.strategy})
        for row in rows
    )


def ranks_label(world_size: int) -> str:
    return counted(world_size, "rank")


def status_label(status: str) -> str:
    """``out of GPU memory``; a status without other words is its own label."""
    return STATUS_LABELS.get(status, status)


def failure_label(run: TrainingRun) -> str | None:
    """``out of host memory: rank 1 on n3: ...``; None for a run that finished."""
    if run.status == "ok":
        return None
    label = status_label(run.status)
    return f"{label}: {run.error.removeprefix(f'{run.source}: ')}" if run.error else label


def _accumulation(cell: _Cell) -> str:
    return f", GA {cell.accumulation}" if cell.accumulation > 1 else ""


def _strategy(row: _Cell, defaults: Mapping[str, Any], varied: Container[str] = frozenset()) -> str:
    shown = [
        _option(key, value)
        for key, value in row.strategy_options.items()
        if key not in defaults or defaults[key] != value or (key in varied and _is_number(value))
    ]
    return " ".join([row.strategy, *shown])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _option(key: str, value: Any) -> str:
    return key if value is True else f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)
