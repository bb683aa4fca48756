"""Published training runs as rows: the csv layout of the shared measurements, its columns joined with models.csv.

A cell that a source leaves open stays ``None``; what must be assumed to predict it is decided in
:mod:`stepscope.predict.published.as_layout`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.step.model import LatentAttention, ModelShape
from stepscope.predict.step.named_models import find_model
from stepscope.store.files import require_there

_NEEDED = {"source", "row_id", "accelerator", "n_gpus", "model", "tokens_per_s_per_gpu", "step_time_s"}
_UNIT = {"GB": 1e9, "GiB": 2.0**30, "MiB": 2.0**20, "MB": 1e6, "": 1e9}
_LATENT = re.compile(r"MLA \(q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One published measurement, as printed. accelerator: key of the table; hardware, network: as the source writes it.

    shape: the model's dimensions, None where the files do not have them. tokens_per_s: per GPU; derived from step time
    and global batch where only those are printed. flop_rate: FLOP/s per GPU; mfu, hfu: shares of ``peak`` (FLOP/s) as the
    source computes them, in ``convention``. memory_bytes: peak of the fullest GPU. tp, pp, cp, ...: None: not stated.
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
    status: str
    flags: str
    notes: str

    @property
    def failed(self) -> bool:
        return "oom" in self.status or "crash" in self.status


def is_training_table(columns: Iterable[str]) -> bool:
    return set(columns) >= _NEEDED


def read_training_rows(folder: Path) -> tuple[list[TrainingRow], list[str]]:
    """Every row of every table of training runs in ``folder``, and a text for each row with a value that is not a number.

    Other tables are left alone. Raises DataError for a folder that is not there and files that cannot be read.
    """
    require_there(folder)
    tables = {file: _read(file) for file in sorted(folder.glob("*.csv"))}
    models = next((rows for file, rows in tables.items() if file.name == "models.csv"), [])
    shapes = {row["model_key"]: shape for row in models if (shape := _published_shape(row)) is not None}
    found: list[TrainingRow] = []
    unread: list[str] = []
    for file, rows in tables.items():
        if not rows or not is_training_table(rows[0]):
            continue
        for line, row in enumerate(rows, start=2):
            try:
                found.append(_row(row, shapes))
            except ValueError as error:
                unread.append(f"{file.name}, line {line}: a value that is not a number ({error})")
    return found, unread


def _read(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}", why=str(error)) from error


def _number(row: Mapping[str, str], column: str) -> float | None:
    """``250k`` is 250000, empty is None."""
    text = (row.get(column) or "").strip().lower()
    if not text:
        return None
    value = float(text[:-1]) * 1000 if text.endswith("k") else float(text)
    return value if math.isfinite(value) else None


def _whole(row: Mapping[str, str], column: str) -> int | None:
    value = _number(row, column)
    return None if value is None else round(value)


def _row(row: Mapping[str, str], shapes: Mapping[str, ModelShape]) -> TrainingRow:
    def text(column: str) -> str:
        return (row.get(column) or "").strip()

    def share(column: str) -> float | None:
        value = _number(row, column)
        return None if value is None else value / 100

    def tera(column: str) -> float | None:
        value = _number(row, column)
        return None if value is None else value * 1e12

    n_gpus, seq_len, batch = _whole(row, "n_gpus") or 1, _whole(row, "seq_len"), _whole(row, "global_batch")
    speed, step = _number(row, "tokens_per_s_per_gpu"), _number(row, "step_time_s")
    total = _number(row, "tokens_per_s_total")
    if speed is None and total is not None:
        speed = total / n_gpus
    if speed is None and step and seq_len and batch:
        speed = batch * seq_len / step / n_gpus
    memory = _number(row, "peak_mem_gb")
    return TrainingRow(
        source=text("source"), row_id=text("row_id"), hardware=text("hardware"), accelerator=text("accelerator"),
        network=text("inter_node"), n_gpus=n_gpus, gpus_per_node=_whole(row, "gpus_per_node"), model=text("model"),
        model_key=text("model_key"), shape=_shape(row, shapes), params=_number(row, "params"), seq_len=seq_len,
        micro_batch=_whole(row, "micro_batch"), global_batch=batch, grad_accum=_whole(row, "grad_accum"),
        precision=text("precision"), dp=_whole(row, "dp"), tp=_whole(row, "tp"), pp=_whole(row, "pp"),
        cp=_whole(row, "cp"), ep=_whole(row, "ep"), vpp=_whole(row, "vpp"), sharding=text("sharding"),
        recompute=text("activation_ckpt"), compiled=text("compile"), tokens_per_s=speed,
        flop_rate=tera("tflops_per_gpu"), mfu=share("mfu_pct"), hfu=share("hfu_pct"),
        convention=text("flops_convention"), peak=tera("peak_tflops_assumed"),
        memory_bytes=None if memory is None else memory * _UNIT.get(text("mem_unit"), 1e9), status=text("status"),
        flags=text("flags"), notes=text("notes"),
    )  # fmt: skip


def _published_shape(row: Mapping[str, str]) -> ModelShape | None:
    """From models.csv; None where a dimension is missing."""
    layers, hidden, heads = _whole(row, "layers"), _whole(row, "hidden"), _whole(row, "heads")
    ffn, vocab = _whole(row, "ffn"), _whole(row, "vocab")
    if not (layers and hidden and heads and ffn and vocab):
        return None
    attention, notes = row.get("attention", ""), row.get("notes", "")
    found, experts = _LATENT.search(attention), _whole(row, "n_experts") or 0
    latent, head_dim = None, _whole(row, "head_dim") or hidden // heads
    if found:
        q, kv, nope, rope, value = (int(part) for part in found.groups())
        latent, head_dim = LatentAttention(q_rank=q, kv_rank=kv, rope_dim=rope, value_dim=value), nope + rope
    return ModelShape(
        name=row["model_key"], layers=layers, hidden=hidden, heads=heads, kv_heads=_whole(row, "kv_heads") or heads,
        head_dim=head_dim, ffn=ffn, gated=row.get("gated_mlp") == "1", vocab=vocab,
        tied=row.get("tied_embeddings") == "1", causal="bidirectional" not in attention,
        window=_after(r"sliding window (\d+)", notes), experts=experts, top_k=_whole(row, "experts_per_token") or 0,
        moe_ffn=_whole(row, "moe_ffn") or 0, shared=_after(r"(\d+) shared expert", notes),
        dense_layers=_after(r"first (\d+) layers", notes), latent=latent, source=row.get("source", ""),
    )  # fmt: skip


@cache
def _named(key: str) -> ModelShape | None:
    """A model that stepscope knows, where the folder has no models.csv."""
    try:
        return find_model(key) if key else None
    except UsageError:
        return None


def _after(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _shape(row: Mapping[str, str], shapes: Mapping[str, ModelShape]) -> ModelShape | None:
    """The named model's; a row's own number of layers counts (a proxy). A GPT from its printed dimensions alone."""
    layers, key = _whole(row, "layers"), (row.get("model_key") or "").strip()
    known = shapes.get(key) or _named(key)
    if known is not None:
        return replace(known, layers=layers) if layers else known
    hidden, vocab, name = _whole(row, "hidden"), _whole(row, "vocab"), (row.get("model") or "").strip()
    if not hidden or not vocab or not name.upper().startswith("GPT"):
        return None
    layers = layers or _layers_of(_number(row, "params"), hidden, vocab, _whole(row, "pp") or 1)
    if not layers:
        return None
    heads = _whole(row, "heads") or max(1, hidden // 128)
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=_whole(row, "kv_heads") or heads,
        head_dim=max(1, hidden // heads), ffn=_whole(row, "ffn") or 4 * hidden, gated=False, vocab=vocab, tied=True,
        source="the row's own dimensions; MLP of 4 x hidden, tied embedding",
    )  # fmt: skip


def _layers_of(params: float | None, hidden: int, vocab: int, pp: int) -> int | None:
    """Layers of a GPT of ``params``, printed with or without its embedding: the count nearest a whole one.

    A multiple of ``pp`` where one of the two is. None: no count comes close.
    """
    if not params:
        return None
    each = 12.0 * hidden * hidden
    counts = [n / each for n in (params, params - vocab * hidden)]
    counts.sort(key=lambda n: (round(n) % pp > 0, abs(n - round(n))))
    return round(counts[0]) if counts[0] >= 1 else None
