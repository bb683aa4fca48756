"""Short names of models, strategies, cells and statuses for tables, log lines and sentences.

The settings that tell the cells of one run apart, beside what every table shows of a cell anyway.

What a row of a collective's sweep is called, in tables, sentences and charts.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import counted, grouped
from stepscope.records import mesh
from stepscope.records.cell import CellSpec
from stepscope.records.comm import CommRow
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import ORIGIN_MARK

SETTINGS = (
    "batch_rule", "optimizer", "lr", "momentum", "lr_warmup", "weight_decay", "clip", "loss", "steps", "epochs",
    "seed", "num_workers", "pin_memory", "persistent_workers", "cudnn_benchmark", "threads_per_rank", "network",
)  # fmt: skip
"""Fields of a cell that a result row has no column for, or (steps, epochs) fills with what really ran."""


CHECKPOINTING = "activation_checkpointing"


def settings_of(cell: CellSpec) -> dict[str, Any]:
    """Keys as a matrix file writes them (``lr``, ``dataset_options.samples``, ``env.NCCL_ALGO``) and their values."""
    return {
        **{f"dataset_options.{name}": value for name, value in cell.dataset_options.items()},
        **{name: getattr(cell, name) for name in SETTINGS},
        **({"mesh": mesh.text(cell.mesh)} if cell.mesh else {}),
        **({CHECKPOINTING: cell.activation_checkpointing} if cell.activation_checkpointing != "none" else {}),
        **({"inject": cell.inject} if cell.inject is not None else {}),
        **{f"env.{name}": value for name, value in cell.env.items()},
    }


def varied_settings(cells: Sequence[CellSpec]) -> tuple[Mapping[str, Any], ...]:
    """Return for each cell its settings that are not the same (or not there) in all of ``cells``."""
    every = [settings_of(cell) for cell in cells]
    varied = varying(every)
    return tuple({key: value for key, value in settings.items() if key in varied} for settings in every)


def varying(settings: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Keys that do not have one and the same value in all of ``settings``; one without the key counts as another."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return frozenset(key for key in keys if len({repr(one[key]) if key in one else None for one in settings}) > 1)


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


@record
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


@record
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


def _label_cell(cell: CellSpec | TrainingRun) -> _Cell:
    """Return what names a cell, of a spec or of a run that some other tool made."""
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


def cell_labels(planned: Sequence[CellSpec | TrainingRun]) -> tuple[CellLabel, ...]:
    """One label a cell: what a table or a log line always shows of it, and as much more as tells it from the others.

    A setting is shown on all cells as soon as two of them differ in nothing else that is shown.
    """
    cells = [_label_cell(cell) for cell in planned]
    models = _model_labels(cells)
    strategies = _strategy_labels(cells)
    columns = [
        (model, strategy, *(getattr(cell, name) for name in _COLUMNS))
        for cell, model, strategy in zip(cells, models, strategies, strict=True)
    ]
    settings = told_apart(
        columns,
        [
            {key: _option_label(_short_key(key), value) for key, value in cell.settings.items() if value is not None}
            for cell in cells
        ],
    )
    settings = _told_apart_by_id(columns, settings, cells)
    modes = [f"{strategy} {more}".rstrip() for strategy, more in zip(strategies, settings, strict=True)]
    rest = [_varied_columns(cell) for cell in cells]
    names = [f"{mode} on {ranks_label(c.world_size)}" for mode, c in zip(modes, cells, strict=True)]
    texts = [
        f"{model}, {mode}, {ranks_label(c.world_size)}, {c.precision}{_accumulation_suffix(c)}"
        for model, mode, c in zip(models, modes, cells, strict=True)
    ]
    more_name = told_apart(list(zip(models, names, strict=True)), rest, between=", ")
    more_text = told_apart(texts, rest, between=", ", shown_keys=("precision", "accumulation"))
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


def _varied_columns(cell: _Cell) -> dict[str, Any]:
    """Return what ``_COLUMNS`` show of a cell, as words for a log line or a sentence."""
    return {
        "precision": cell.precision or "",
        "accumulation": f"GA {cell.accumulation}",
        "batch": f"batch {cell.global_batch}",
        "dataset": cell.dataset or "",
        "device": f"{cell.device}/{cell.backend}",
    }


def _short_key(key: str) -> str:
    """Shorten ``dataset_options.samples`` to ``samples``, unless a cell has a key of that name itself (``seed``)."""
    _, dot, name = key.partition(".")
    return name if dot and name not in _FIELDS else key


def told_apart(
    shown: Sequence[Hashable],
    hidden: Sequence[Mapping[str, str]],
    *,
    between: str = " ",
    shown_keys: Container[str] = (),
) -> list[str]:
    """Return for each cell the ``hidden`` texts that are needed to tell apart cells whose ``shown`` parts are equal.

    shown_keys: keys of ``hidden`` that ``shown`` has already.
    """
    alike: dict[Hashable, list[Mapping[str, str]]] = {}
    for key, texts in zip(shown, hidden, strict=True):
        alike.setdefault(key, []).append(texts)
    needed = {name for group in alike.values() for name in varying(group) if name not in shown_keys}
    return [between.join(text for name, text in texts.items() if name in needed) for texts in hidden]


def distinct(*tiers: Sequence[str]) -> list[str]:
    """Return each item's first name that is not empty and that no other item has; in the last tier, whatever others have.

    tiers: the names of all items, ever longer.
    """
    *shorter, names = (list(tier) for tier in tiers)
    for tier in reversed(shorter):
        counts = Counter(tier)
        names = [name if name and counts[name] == 1 else longer for name, longer in zip(tier, names, strict=True)]
    return names


def _told_apart_by_id(columns: Sequence[Hashable], settings: Sequence[str], cells: Sequence[_Cell]) -> list[str]:
    """Cells that nothing shown tells apart (the content of their data differs) get the end of their id."""
    ids = [{"id": f"id={cell.cell_id.rpartition('-')[2]}"} for cell in cells]
    more = told_apart(list(zip(columns, settings, strict=True)), ids)
    return [f"{one} {two}".strip() for one, two in zip(settings, more, strict=True)]


def _model_labels(cells: Sequence[_Cell]) -> list[str]:
    """Labels of the models; where one label stands for several models, with the options that they differ in."""
    labels = [_model_label(cell) for cell in cells]
    options = [{k: _option_label(k, v) for k, v in cell.model.items() if v is not None} for cell in cells]
    more = told_apart(labels, options)
    return [f"{label} {some}".rstrip() for label, some in zip(labels, more, strict=True)]


def _model_label(cell: _Cell) -> str:
    """``mlp small``: the workload's own name for this model, or its options when it is not installed here."""
    if cell.workload is None:
        return cell.name or "unknown model"
    from stepscope.workloads import REGISTRY

    try:
        workload = REGISTRY.load(cell.workload)
        return workload.label(workload.options.model_validate(dict(cell.model)))
    except (UsageError, ValueError):
        return " ".join([cell.workload, *(_option_label(k, v) for k, v in sorted(cell.model.items()))])


def _strategy_labels(rows: Sequence[_Cell]) -> tuple[str, ...]:
    """One name a cell: the strategy and its options that are not the default, or that are numbers which the set varies."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for key, value in row.strategy_options.items():
            values.setdefault((row.strategy, key), set()).add(repr(value))
    varied = {name for name, value in values.items() if len(value) > 1}
    return tuple(
        _strategy_text(
            row, strategy_defaults(row.strategy), {key for strategy, key in varied if strategy == row.strategy}
        )
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


def _accumulation_suffix(cell: _Cell) -> str:
    return f", GA {cell.accumulation}" if cell.accumulation > 1 else ""


def _strategy_text(row: _Cell, defaults: Mapping[str, Any], varied: Container[str] = frozenset()) -> str:
    """Write a strategy with its options that are not the default, or that are numbers which the set varies."""
    shown = [
        _option_label(key, value)
        for key, value in row.strategy_options.items()
        if key not in defaults or defaults[key] != value or (key in varied and _is_plain_number(value))
    ]
    return " ".join([row.strategy, *shown])


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _option_label(key: str, value: Any) -> str:
    return key if value is True else f"{key}={_value_label(value)}"


def _value_label(value: Any) -> str:
    """Write a value of an option: ``default``, ``on``, ``off``, a number in short where nothing is lost."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


LATENCY_BYTES = 4096
"""Messages between two ranks up to this size (a page) are shown by their time: it is all start-up, a rate says nothing."""

DEFAULT_ENV = "default"
"""The world in which no variable of the sweep was set."""


def op_label(row: CommRow) -> str:
    """``all_reduce``; ``send_recv ring`` where the operation has patterns."""
    return f"{row.op} {row.pattern}" if row.pattern else row.op


def comm_ranks_label(row: CommRow) -> str:
    """``4 ranks``, ``4 ranks on 2 hosts``."""
    ranks = counted(row.world_size, "rank")
    return f"{ranks} on {counted(row.hosts, 'host')}" if row.hosts is not None and row.hosts > 1 else ranks


def device_label(row: CommRow) -> str:
    return f"{row.device}/{row.backend}"


def place_label(row: CommRow) -> str:
    return "in place" if row.in_place else "out of place"


def flight_label(row: CommRow) -> str:
    """``blocking``; ``async, 4 in flight``."""
    return row.mode if row.in_flight == 1 else f"{row.mode}, {row.in_flight} in flight"


def pacing_label(row: CommRow) -> str:
    return "back to back" if row.pacing == "back_to_back" else "barrier before each call"


def env_label(env: Mapping[str, str]) -> str:
    """``NCCL_ALGO=Ring NCCL_PROTO=LL``; ``default`` where nothing was set."""
    return " ".join(f"{name}={value}" for name, value in sorted(env.items())) or DEFAULT_ENV


def redop_label(row: CommRow) -> str:
    return row.reduce_op or "none"


def network_label(row: CommRow) -> str:
    """``emulated 1gbit:2``; ``real network`` beside rows of emulated ones."""
    return "real network" if row.network is None else f"emulated {row.network}"


def comm_failure_label(row: CommRow) -> str:
    """``timeout: rank 1 did not enter``; what stands in place of figures."""
    label = "wrong result" if row.correct is False else status_label(row.status)
    if not row.error or row.error.startswith(label):
        return row.error or label
    return f"{label}: {row.error}"


Part = Callable[[CommRow], str]

_PARTS: tuple[Part, ...] = (
    comm_ranks_label, lambda row: row.dtype, redop_label, place_label, flight_label, pacing_label, device_label,
    lambda row: env_label(row.env), network_label,
)  # fmt: skip


def identity(row: CommRow) -> tuple[str, ...]:
    """What a row was measured with, its size and its cell id left out."""
    return (op_label(row), *(part(row) for part in _PARTS))


def origins(rows: Iterable[CommRow]) -> Part | None:
    """Names the log or the cell a row is of; None where what was measured tells all rows apart.

    The same may be there more than once: measured in several logs, on several machines.
    """
    cells: dict[tuple[object, ...], set[str]] = {}
    for row in rows:
        if row.size_bytes is not None:
            cells.setdefault((*identity(row), row.size_bytes), set()).add(row.cell_id)
    return _row_origin if any(len(cell) > 1 for cell in cells.values()) else None


def _row_origin(row: CommRow) -> str:
    """``a100.log``: an imported row's cell is named ``a100.log, in place``; ``monday`` of ``monday: CELL``."""
    source, mark, _ = row.cell_id.partition(ORIGIN_MARK)
    return source if mark else row.cell_id.removesuffix(f", {place_label(row)}")


def sweeps(rows: Iterable[CommRow]) -> dict[tuple[str, ...], list[CommRow]]:
    """Group rows by what they were measured with and, where that is not enough, by origin: one sweep over sizes each.

    In order of first appearance.
    """
    rows = list(rows)
    origin = origins(rows)
    return grouped(rows, lambda row: identity(row) if origin is None else (*identity(row), origin(row)))


def sweep_names(among: Sequence[CommRow], *, always_ranks: bool = True) -> Callable[[CommRow], str]:
    """Return a function that names a row by what differs among those of its operation: ``4 ranks, bf16``, ``8 ranks,
    a100.log``.

    always_ranks: the number of ranks is said even where it is the same throughout.
    """
    needed = {
        op: [
            part
            for part in _PARTS
            if (always_ranks and part is comm_ranks_label) or len({part(row) for row in rows}) > 1
        ]
        for op, rows in grouped(among, op_label).items()
    }
    if (origin := origins(among)) is not None:
        needed = {op: [*names, origin] for op, names in needed.items()}
    return lambda row: ", ".join(part(row) for part in needed[op_label(row)])


def cells_of(rows: Iterable[CommRow], kind: str) -> dict[str, list[CommRow]]:
    """Group the rows of one kind by cell."""
    return grouped((row for row in rows if row.kind == kind), lambda row: row.cell_id)


def size_of(row: CommRow) -> int | None:
    """Return the bytes really sent, or asked for where nothing was."""
    return row.asked_bytes if row.size_bytes is None else row.size_bytes
