"""Results of MiniTrainBench: one JSON file a training run, or one for a sweep of collectives."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._collectives import Reading, StatedRate, comm_row, reading_of, readings
from stepscope.store.importers._fields import Fields, read_fields
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._training import (
    MIB,
    MS,
    label,
    measured,
    require_agreement,
    with_own_baselines,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".json",)
_KIND = re.compile(r'"benchmark"\s*:\s*"(training|communication)"')
_OWN = re.compile(r'"(?:batch_size_per_rank|all_to_all_mode)"\s*:')
_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
_ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_TIMES = ("forward_backward_ms", "optimizer_step_ms", "data_time_ms")
_KEPT = ("activation_checkpointing", "gradient_sync_mode")
_SAME_STEP = 0.005
"""How far tokens/s may lie from tokens of a step / step time: another mean over the same steps."""


def _knows(candidate: Candidate) -> bool:
    text = candidate.text
    return text.lstrip().startswith("{") and bool(_KIND.search(text) and _OWN.search(text))


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_own_baselines(with_unique_ids(run for run, _, _ in parts if run is not None))
    comm = tuple(row for _, rows, _ in parts for row in rows)
    hardware = sorted({gpu for _, _, gpu in parts if gpu})
    return Imported(
        format="minitrainbench",
        path=str(path),
        runs=with_stated(runs, stated),
        comm_rows=comm,
        hardware=", ".join(hardware) or None,
        notes=notes,
    )


def _read_file(path: Path) -> tuple[TrainingRun | None, tuple[CommRow, ...], str | None]:
    found = read_fields(path)
    environment = found.part("environment")
    gpu = environment.maybe(environment.text, "gpu")
    kind = found.text("benchmark")
    if kind == "training":
        return _run(path, found, environment, gpu), (), gpu
    if kind == "communication":
        return None, _collectives(path, found), gpu
    raise found.wrong("benchmark", "training or communication")


def _run(path: Path, found: Fields, environment: Fields, gpu: str | None) -> TrainingRun:
    model = found.part("model_config")
    tokens = found.count("global_batch_size") * model.count("seq_length")
    step_ms, rate = found.positive("step_time_ms"), found.positive("tokens_per_sec")
    require_agreement(
        str(path),
        "tokens_per_sec",
        stated=rate,
        derived=tokens / step_ms * 1e3,
        formula="global_batch_size x seq_length / step_time_ms",
        tolerance=_SAME_STEP,
    )
    steps, world_size = found.count("steps"), found.count("world_size")
    name = f"GPT {model.count('n_layers')} x {model.count('d_model')}"
    strategy, precision = found.text("strategy"), found.text("precision")
    memory = found.maybe(found.amount, "max_cuda_memory_mb")
    return TrainingRun(
        run_id=path.stem,
        label=label(strategy, world_size),
        group=f"{name}, sequences of {model.count('seq_length')}, {precision}",
        source=str(path),
        status="ok",
        world_size=world_size,
        model=name,
        strategy=strategy,
        precision=precision,
        accumulation=found.count("gradient_accumulation_steps"),
        micro_batch=found.count("batch_size_per_rank"),
        global_batch=found.count("global_batch_size"),
        device=found.text("device").partition(":")[0],
        backend=found.text("backend"),
        hardware=gpu,
        num_parameters=found.count("parameters"),
        step_ns=measured(step_ms, scale=MS, n=steps),
        samples_per_s=measured(rate, n=steps),
        unit="tokens",
        train_loss=found.maybe(found.number, "loss"),
        peak_memory_bytes=None if not memory else round(memory * MIB),
        settings={
            "sequence_length": model.count("seq_length"),
            **model.plain("d_model", "n_layers", "n_heads", "vocab_size", "dropout"),
            **found.plain(*_KEPT),
            **_learning_rate(found),
            **environment.plain("torch", "cuda", "nccl", "driver"),
        },
        notes=_notes(found, steps),
    )


def _learning_rate(found: Fields) -> dict[str, float]:
    """As configured: at the end of a run it is a rounded float32."""
    config = found.maybe(found.part, "config")
    rate = None if config is None else config.maybe(config.amount, "learning_rate")
    return {} if rate is None else {"lr": rate}


def _notes(found: Fields, steps: int) -> tuple[str, ...]:
    warmup = found.values.get("warmup_steps", "an unknown number")
    notes = [f"one run of {steps} steps after {warmup} of warm-up: no spread"]
    times = [
        f"{key.removesuffix('_ms').replace('_', ' ')} {value:.4g} ms"
        for key in _TIMES
        if (value := found.maybe(found.amount, key)) is not None
    ]
    return (*notes, f"parts of its step: {', '.join(times)}") if times else tuple(notes)


def _collectives(path: Path, found: Fields) -> tuple[CommRow, ...]:
    lines = found.parts("results")
    if not lines:
        raise found.wrong("results", "at least one row")
    finished = [line for line in lines if line.text("status") == "ok"]
    reading = _reading(path, finished)
    dtype, device = found.text("dtype"), found.text("device").partition(":")[0]
    return tuple(
        _row(path, line, reading, dtype=dtype, device=device, backend=found.text("backend"),
             iterations=found.maybe(found.count, "iters"))
        for line in lines
    )  # fmt: skip


def _reading(path: Path, lines: list[Fields]) -> Reading | None:
    """What ``bandwidth_gbps`` means; None without any finished row."""
    if not lines:
        return None
    rates = {"GB/s": 1e9, "Gbit/s": 1e9 / 8}
    return reading_of(
        str(path),
        [
            StatedRate(
                where=line.at,
                op=_op(line),
                world_size=line.count("world_size"),
                size=line.count("bytes"),
                time=line.positive("latency_ms"),
                rate=line.positive("bandwidth_gbps"),
            )
            for line in lines
        ],
        readings({"bytes": 1.0}, rates),
        time_unit_s=1e-3,
    )


def _op(line: Fields) -> str:
    op = line.text("operation")
    if op not in _OPS:
        raise line.wrong("operation", f"one of {', '.join(_OPS)}")
    return op


def _row(
    path: Path,
    line: Fields,
    reading: Reading | None,
    *,
    dtype: str,
    device: str,
    backend: str,
    iterations: int | None,
) -> CommRow:
    op, status, uneven = _op(line), line.text("status"), line.values.get("split_mode") == "uneven"
    size = line.count("bytes")
    notes: list[str] = []
    if reading is not None:
        notes.append(f"its bandwidth_gbps is {reading.text}: checked against its times; ours is worked out anew")
    if uneven:
        size, op = _sent_to_others(line, dtype), "all_to_all_v"
        notes.append("the own chunk is left out of the size; splits are those of the rank that wrote the file")
    return comm_row(
        cell_id=f"{path.stem}/{op}",
        op=op,
        world_size=line.count("world_size"),
        dtype=dtype,
        device=device,
        backend=backend,
        size_bytes=size,
        numel=size // _ELEMENT_BYTES[dtype] if dtype in _ELEMENT_BYTES else None,
        time_ns_mean=line.positive("latency_ms") * MS if status == "ok" else None,
        iterations=iterations,
        status="ok" if status == "ok" else "error",
        error=None if status == "ok" else status,
        notes=tuple(notes),
    )


def _sent_to_others(line: Fields, dtype: str) -> int:
    """Bytes that the writing rank (0) sends to others in an uneven all_to_all."""
    splits = line.values.get("input_splits")
    if not isinstance(splits, list) or not splits or not all(isinstance(s, int) and s >= 0 for s in splits):
        raise line.wrong("input_splits", "a list of element counts, one a rank")
    if dtype not in _ELEMENT_BYTES or sum(splits) * _ELEMENT_BYTES[dtype] != line.count("bytes"):
        raise DataError(
            f"{line.source}: {line.at}.bytes contradicts input_splits",
            why=f"{sum(splits)} elements of {dtype} are not {line.values['bytes']} bytes",
        )
    return sum(splits[1:]) * _ELEMENT_BYTES[dtype]


IMPORTER = Importer(title="results of MiniTrainBench (JSON)", recognises=_recognises, read=_read, rank=30)
