"""Training runs as rows: the csv layout of the shared measurements, its columns joined with models.csv.

A cell that a source leaves open stays ``None``; what must be assumed to predict it is decided in
:mod:`stepscope.predict.step.run_layout`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.machine.peaks import find
from stepscope.predict.step.model import MOST_LAYERS, ModelShape, find_model, number, published_shape, whole
from stepscope.store.importer import require_there


def above_zero(row: Mapping[str, str], column: str) -> float | None:
    """Read a speed, a time or a size: zero stands for none measured."""
    value = number(row, column)
    if value is not None and value < 0:
        raise UsageError(f"{column} is below zero", why=f"{value:g}")
    return value or None


_ABOUT = {"accelerator", "hardware", "n_gpus", "model", "model_key"}
_OF_COLLECTIVES = {"collective", "size_bytes", "busbw_gbps"}
_PRICED = {"tokens_per_s_per_gpu", "tokens_per_s_total", "step_time_s"}
"""How tables are told apart: one of runs has two columns of the first set, none of the second; with ``throughput`` in the
place of the third it is of data-parallel jobs."""
_UNIT = {"gb": 1e9, "gib": 2.0**30, "mib": 2.0**20, "mb": 1e6, "b": 1.0, "bytes": 1.0, "": 1e9}
_NEAR_PARAMS = 0.1
"""Further off, the printed dimensions are not those of a dense model of so many parameters."""


@record
class TrainingRow:
    """One published measurement, as printed. accelerator: key of the table; hardware, network: as the source writes it.

    shape: the model's dimensions, None where the files do not have them. tokens_per_s: per GPU; derived from step time
    and global batch where only those are printed. flop_rate: FLOP/s per GPU; mfu, hfu: shares of ``peak`` (FLOP/s) as the
    source computes them, in ``convention``. memory_bytes: peak of the fullest GPU; memory_unit: as printed, of an unknown
    unit alone. framework: the code that ran, where a column has it. tp, pp, cp, ...: None: not stated.
    """

    source: str
    row_id: str
    hardware: str
    accelerator: str
    network: str
    n_gpus: int
    gpus_per_node: int | None
    model: str
    model_key: str
    shape: ModelShape | None
    params: float | None
    seq_len: int | None
    micro_batch: int | None
    global_batch: int | None
    grad_accum: int | None
    precision: str
    dp: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    vpp: int | None
    sharding: str
    recompute: str
    compiled: str
    tokens_per_s: float | None
    flop_rate: float | None
    mfu: float | None
    hfu: float | None
    convention: str
    peak: float | None
    memory_bytes: float | None
    memory_unit: str
    framework: str
    status: str
    flags: str
    notes: str

    @property
    def failed(self) -> bool:
        return "oom" in self.status or "crash" in self.status


def read_training_rows(folder: Path) -> tuple[list[TrainingRow], list[str]]:
    """Read every row of every table of training runs in ``folder``, or of one table with models.csv beside it, and give a
    reason for each row that cannot be read.

    Tables of data-parallel jobs (their own columns) are read too, others left alone. Raises DataError for a folder that
    is not there and files that cannot be opened.
    """
    require_there(folder)
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else [folder, *folder.parent.glob("models.csv")]
    tables = {file: _csv_rows(file) for file in files}
    shapes = _shapes_by_key(next((rows for file, rows in tables.items() if file.name == "models.csv"), []))
    training_rows: list[TrainingRow] = []
    unread: list[str] = []
    for file, rows in tables.items():
        columns = set(rows[0]) if rows else set()
        if not of_runs(columns):
            continue
        jobs = "throughput" in columns and not columns & _PRICED
        for line, cells in enumerate(rows, start=2):
            row = {**cells, "source": cells.get("source") or file.stem}
            row["row_id"] = cells.get("row_id") or f"{file.stem}-line-{line}"
            try:
                training_rows.append(_training_row(_data_parallel(row) if jobs else row, shapes))
            except UsageError as error:
                unread.append(error.what)
    return training_rows, unread


def of_runs(columns: Collection[str]) -> bool:
    """Whether a table with these columns is one of training runs."""
    return len(_ABOUT.intersection(columns)) > 1 and _OF_COLLECTIVES.isdisjoint(columns)


def _shapes_by_key(models: Iterable[Mapping[str, str]]) -> dict[str, ModelShape]:
    """Return shapes by key, without those that models.csv does not describe in numbers."""
    by_name: dict[str, ModelShape] = {}
    for row in models:
        try:
            shape = published_shape(row)
        except UsageError:
            continue
        if shape is not None:
            by_name[shape.name] = shape
    return by_name


def _data_parallel(row: Mapping[str, str]) -> dict[str, str]:
    """Rewrite a row of replicas alone in the columns of the other tables. throughput: of the whole job."""
    n_gpus, seq_len, per_gpu = (whole(row, column) for column in ("n_gpus", "seq_len", "batch_per_gpu"))
    unit = row.get("unit") or ""
    if unit not in ("sequences/s", "tokens/s"):
        raise UsageError(f"throughput in {unit or 'no unit'}: not a model of tokens")
    speed, tokens_per_unit = above_zero(row, "throughput"), seq_len if unit == "sequences/s" else 1.0
    if tokens_per_unit is None:
        raise UsageError("sequence length not stated")
    accumulated = whole(row, "grad_accum") or 1
    cells = {
        **row, "dp": row.get("n_gpus", ""), "tp": "1", "pp": "1", "sharding": "ddp",
        "micro_batch": row.get("batch_per_gpu", ""),
        "tokens_per_s_per_gpu": f"{speed * tokens_per_unit / n_gpus}" if speed and tokens_per_unit and n_gpus else "",
    }  # fmt: skip
    if per_gpu and n_gpus:
        cells["global_batch"] = f"{per_gpu * accumulated * n_gpus}"
    return cells


def lines_of_csv(file: Path) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig", errors="replace"), newline=""))


def _csv_rows(file: Path) -> list[dict[str, str]]:
    try:
        return list(lines_of_csv(file))
    except (OSError, csv.Error) as error:
        raise DataError(f"cannot read {file}", why=str(error)) from error


def _training_row(row: Mapping[str, str], shapes: Mapping[str, ModelShape]) -> TrainingRow:
    """Return one row as numbers. Raises SkipRowError for a row that lacks what a prediction needs."""

    def text(column: str) -> str:
        return (row.get(column) or "").strip()

    def share(column: str) -> float | None:
        value = number(row, column)
        return None if value is None else value / 100

    def tera(column: str) -> float | None:
        value = number(row, column)
        return None if value is None else value * 1e12

    n_gpus, seq_len, batch = whole(row, "n_gpus"), whole(row, "seq_len"), whole(row, "global_batch")
    if n_gpus is None:
        raise UsageError("number of GPUs not stated")
    speed, step = above_zero(row, "tokens_per_s_per_gpu"), above_zero(row, "step_time_s")
    total = above_zero(row, "tokens_per_s_total")
    if speed is None and total is not None:
        speed = total / n_gpus
    if speed is None and step and seq_len and batch:
        speed = batch * seq_len / step / n_gpus
    memory, unit = above_zero(row, "peak_mem_gb"), _UNIT.get(text("mem_unit").lower())
    return TrainingRow(
        source=text("source"), row_id=text("row_id"), hardware=text("hardware"), accelerator=text("accelerator"),
        network=text("inter_node"), n_gpus=n_gpus, gpus_per_node=whole(row, "gpus_per_node"), model=text("model"),
        model_key=text("model_key"), shape=_row_shape(row, shapes), params=number(row, "params"), seq_len=seq_len,
        micro_batch=whole(row, "micro_batch"), global_batch=batch, grad_accum=whole(row, "grad_accum"),
        precision=text("precision"), dp=whole(row, "dp"), tp=whole(row, "tp"), pp=whole(row, "pp"),
        cp=whole(row, "cp"), ep=whole(row, "ep"), vpp=whole(row, "vpp"), sharding=text("sharding"),
        recompute=text("activation_ckpt"), compiled=text("compile"), tokens_per_s=speed,
        flop_rate=tera("tflops_per_gpu"), mfu=share("mfu_pct"), hfu=share("hfu_pct"),
        convention=text("flops_convention"), peak=tera("peak_tflops_assumed"),
        memory_bytes=None if memory is None or unit is None else memory * unit,
        memory_unit=text("mem_unit") if memory is not None and unit is None else "",
        framework=text("framework"), status=text("status"), flags=text("flags"), notes=text("notes"),
    )  # fmt: skip


@cache
def _model_of(key: str) -> ModelShape | None:
    """A model that stepscope knows, where the folder has no models.csv."""
    try:
        return find_model(key) if key else None
    except UsageError:
        return None


def _row_shape(row: Mapping[str, str], shapes: Mapping[str, ModelShape]) -> ModelShape | None:
    """Return the named model, with the row's own number of layers (a proxy), else one of the dimensions in the row."""
    layers, key = whole(row, "layers"), (row.get("model_key") or "").strip()
    if layers is not None and layers > MOST_LAYERS:
        return None
    named = shapes.get(key) or _model_of(key)
    if named is not None:
        return replace(named, layers=layers) if layers else named
    hidden, vocab, name = whole(row, "hidden"), whole(row, "vocab"), (row.get("model") or "").strip()
    if not hidden or not vocab:
        by_name = None if key else _model_of(name)
        return replace(by_name, layers=layers) if by_name and layers else by_name
    params, heads, ffn = above_zero(row, "params"), whole(row, "heads"), whole(row, "ffn")
    gpt = name.upper().startswith("GPT")
    if gpt:
        layers = layers or _layers_of(params, hidden, vocab, whole(row, "pp") or 1)
        heads, ffn = heads or max(1, hidden // 128), ffn or 4 * hidden
    if not (layers and heads and ffn) or heads > hidden:
        return None
    shape = ModelShape(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=whole(row, "kv_heads") or heads,
        head_dim=max(1, hidden // heads), ffn=ffn, gated=not gpt, vocab=vocab, tied=gpt,
        source="the row's own dimensions; a GPT: MLP of two matrices, tied embedding",
    )  # fmt: skip
    return shape if gpt or not params else _shape_nearest(shape, params)


def _shape_nearest(shape: ModelShape, params: float) -> ModelShape | None:
    """Give ``shape`` two or three matrices an MLP and one or two embeddings, to come nearest to ``params``; None: none
    does."""
    offered = [replace(shape, gated=gated, tied=tied) for gated in (True, False) for tied in (False, True)]
    best = min(offered, key=lambda one: abs(one.params - params))
    return best if abs(best.params / params - 1) <= _NEAR_PARAMS else None


def _layers_of(params: float | None, hidden: int, vocab: int, pp: int) -> int | None:
    """Layers of a GPT of ``params``, printed with or without its embedding: the count nearest a whole one.

    A multiple of ``pp`` where one of the two is. None: no count comes close.
    """
    if not params:
        return None
    per_layer = 12.0 * hidden * hidden
    counts = [n / per_layer for n in (params, params - vocab * hidden)]
    counts.sort(key=lambda n: (round(n) % pp > 0, abs(n - round(n))))
    return round(counts[0]) if counts[0] >= 1 else None


NAMES = {
    "a100_sxm_40gb": "a100-sxm4-40gb", "a100_sxm_80gb": "a100-sxm4-80gb", "a800_sxm_80gb": "a800-sxm4-80gb",
    "v100_sxm_16gb": "v100-sxm2-16gb", "v100_sxm_32gb": "v100-sxm2-32gb", "v100_pcie": "v100-pcie-16gb",
    "gh200": "gh200-96gb", "h800_sxm": "h800-sxm",
}  # fmt: skip
"""Keys of published tables that are not those of the accelerator table with other punctuation."""


class SkipRowError(Exception):
    """Why a row cannot be used."""


def gpu_key(name: str) -> str:
    """Return the table's key of a GPU as rows name it. Raises SkipRowError for an unknown one."""
    key = name.lower()
    key = NAMES.get(key, key.replace("_", "-"))
    accelerator = find(key)
    if isinstance(accelerator, Unavailable):
        raise SkipRowError(accelerator.reason)
    return accelerator.key
