"""JSON of a cluster acceptance test: an all-reduce table and the throughput of one training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._collectives import StatedRate, comm_row, reading_of, readings
from stepscope.store.importers._fields import Fields, read_fields
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._training import (
    MS,
    label,
    measured,
    require_agreement,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".json",)
_METRIC_OPS: Mapping[str, str] = {
    "all_reduce_bandwidth": "all_reduce",
    "all_gather_bandwidth": "all_gather",
    "reduce_scatter_bandwidth": "reduce_scatter",
}
_SIZES = {"MiB": 2.0**20, "MB": 1e6}
_RATES = {"GB/s": 1e9, "Gbit/s": 1e9 / 8}
_ROUNDED = 0.001


def _knows(candidate: Candidate) -> bool:
    text = candidate.text
    return (
        text.lstrip().startswith("{")
        and '"cluster_info"' in text
        and any(f'"{key}"' in text for key in ("nccl_benchmark", "training_benchmark"))
    )


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_unique_ids(run for part in parts for run in part.runs)
    hardware = sorted({part.hardware for part in parts if part.hardware})
    return Imported(
        format="cluster_check",
        path=str(path),
        runs=with_stated(runs, stated),
        comm_rows=tuple(row for part in parts for row in part.comm_rows),
        hardware=", ".join(hardware) or None,
        notes=(*dict.fromkeys(note for part in parts for note in part.notes), *notes),
    )


def _read_file(path: Path) -> Imported:
    found = read_fields(path)
    cluster, results = found.part("cluster_info"), found.part("results")
    nodes, gpu = cluster.maybe(cluster.count, "nodes"), cluster.maybe(cluster.text, "gpu_model")
    known = ("nccl_benchmark", "training_benchmark")
    nccl = results.maybe(results.part, known[0])
    training = results.maybe(results.part, known[1])
    others = sorted(set(results.values) - set(known))
    return Imported(
        format="cluster_check",
        path=str(path),
        runs=() if training is None else (_run(path, training, cluster, gpu),),
        comm_rows=() if nccl is None else _collectives(path, nccl, nodes=nodes),
        hardware=gpu,
        notes=(f"{path.name}: results not read: {', '.join(others)}",) if others else (),
    )


def _collectives(path: Path, found: Fields, *, nodes: int | None) -> tuple[CommRow, ...]:
    metric, details = found.text("metric_name"), found.part("details")
    if metric not in _METRIC_OPS:
        raise found.wrong("metric_name", f"one of {', '.join(_METRIC_OPS)}")
    op, world_size, lines = _METRIC_OPS[metric], details.count("world_size"), details.parts("results_by_size")
    if found.text("status") != "PASS" and not lines:
        return ()
    reading = reading_of(
        str(path),
        [
            StatedRate(
                where=line.at,
                op=op,
                world_size=world_size,
                size=line.positive("size_mb"),
                time=line.positive("latency_ms"),
                rate=line.positive("bandwidth_gbps"),
            )
            for line in lines
        ],
        readings(_SIZES, _RATES),
        time_unit_s=1e-3,
    )
    note = f"its bandwidth_gbps is {reading.text}: the only reading that fits its times; ours is worked out from them"
    return tuple(
        comm_row(
            cell_id=f"{path.stem}/{op}",
            op=op,
            world_size=world_size,
            dtype="unknown",
            device="cuda",
            backend="nccl",
            size_bytes=round(line.positive("size_mb") * reading.size_scale),
            time_ns_mean=line.positive("latency_ms") * MS,
            hosts=nodes,
            notes=(note, "the file does not say the data type, nor whether times are means"),
        )
        for line in lines
    )


def _run(path: Path, found: Fields, cluster: Fields, gpu: str | None) -> TrainingRun:
    details, passed = found.part("details"), found.text("status") == "PASS"
    world_size = details.count("world_size")
    rate = _rate(path, found, details, world_size) if passed else None
    return TrainingRun(
        run_id=f"{path.stem}-training",
        label=label(None, world_size),
        group="training of the cluster check",
        source=str(path),
        status="ok" if passed else "error",
        error=None if passed else found.text("status"),
        world_size=world_size,
        device="cuda",
        hardware=gpu,
        samples_per_s=measured(rate, n=details.maybe(details.count, "num_steps")),
        unit="tokens",
        settings={
            **details.plain("batch_size", "seq_length", "num_steps"),
            **cluster.plain("nodes", "gpus_per_node", "cuda_version", "pytorch_version", "nccl_version"),
        },
        notes=(
            "one run on one number of GPUs: no speed-up can be told",
            "the file names neither model, precision nor strategy, nor whether batch_size is of a rank or of all",
        ),
    )


def _rate(path: Path, found: Fields, details: Fields, world_size: int) -> float:
    if found.text("metric_name") != "tokens_per_second":
        raise found.wrong("metric_name", "tokens_per_second")
    rate, per_gpu = found.positive("metric_value"), details.maybe(details.positive, "tokens_per_gpu")
    if per_gpu is not None:
        require_agreement(
            str(path),
            "metric_value",
            stated=rate,
            derived=per_gpu * world_size,
            formula="tokens_per_gpu x world_size",
            tolerance=_ROUNDED,
        )
    return rate


IMPORTER = Importer(
    title="cluster check with NCCL and training benchmark (JSON)", recognises=_recognises, read=_read, rank=30
)
