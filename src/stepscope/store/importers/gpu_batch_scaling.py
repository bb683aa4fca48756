"""JSON of a benchmark over GPUs and batches: a run a file (``gpu_scaling``) or a sweep of batches (``batch_scaling``)."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, Stated
from stepscope.records.run import Status
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._fields import Fields, read_fields
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._training import (
    GIB,
    MS,
    label,
    measured,
    require_agreement,
    with_own_baselines,
    with_unique_ids,
)
from stepscope.store.stated import with_stated

_SUFFIXES = (".json", ".txt")
_KIND = re.compile(r'"experiment"\s*:\s*"(gpu_scaling|batch_scaling)"')
_MACHINE = "ENVIRONMENT REPORT"
_MACHINE_LINE = re.compile(r"^\s{2}(PyTorch|CUDA|NVIDIA Driver|CPU|OS):\s+(\S.*)$", re.M)
_ROUNDED = 0.002
_MEMORY_NOTE = "peak_memory_gb is taken as GiB (2^30), as torch's tools print it; the file does not say"
_OUT_OF_MEMORY = ("OOM", "OUT_OF_MEMORY")


def _knows(candidate: Candidate) -> bool:
    text = candidate.text
    return _is_machine(text) or (text.lstrip().startswith("{") and _KIND.search(text) is not None)


def _is_machine(text: str) -> bool:
    return _MACHINE in text[:400] and "GPU count:" in text


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    runs = with_unique_ids(run for part in parts if isinstance(part, tuple) for run in part)
    if not runs:
        raise DataError(
            f"{path}: describes a machine and holds no measurement",
            why="it is the environment report of a benchmark",
            fix="pass the folder with the benchmark's JSON files",
        )
    machines = [part for part in parts if isinstance(part, str)]
    hardware = sorted({run.hardware for run in runs if run.hardware})
    return Imported(
        format="gpu_batch_scaling",
        path=str(path),
        runs=with_stated(with_own_baselines(runs), stated),
        hardware=", ".join(hardware) or None,
        notes=(_MEMORY_NOTE, *machines, *notes),
    )


def _read_file(path: Path) -> tuple[TrainingRun, ...] | str:
    """Runs, or of an environment report what it says of the machine."""
    if _is_machine(Candidate(path).text):
        lines = _MACHINE_LINE.findall(Candidate(path).text)
        return f"{path.name}: " + ", ".join(f"{key} {value.strip()}" for key, value in lines)
    found = read_fields(path)
    kind = found.text("experiment")
    if kind == "gpu_scaling":
        return (_run(path, found),)
    if kind == "batch_scaling":
        return tuple(_of_sweep(path, found, line) for line in found.parts("sweep_results"))
    raise found.wrong("experiment", "gpu_scaling or batch_scaling")


def _run(path: Path, found: Fields) -> TrainingRun:
    batch, ranks = found.count("batch_size_per_gpu"), found.count("num_gpus")
    total = found.count("effective_batch_size")
    if total != batch * ranks:
        raise found.wrong("effective_batch_size", f"batch_size_per_gpu x num_gpus = {batch * ranks}")
    step_ms, rate = _figures(found, total)
    steps, millions = found.count("num_steps"), found.maybe(found.positive, "num_params_M")
    model, mode = found.text("model"), found.text("mode")
    return TrainingRun(
        run_id=path.stem,
        label=label(mode, ranks, f"{batch} a rank"),
        group=model,
        source=str(path),
        status="ok",
        world_size=ranks,
        model=model,
        strategy=mode,
        micro_batch=batch,
        global_batch=total,
        hardware=found.maybe(found.text, "gpu_name"),
        num_parameters=None if millions is None else round(millions * 1e6),
        step_ns=measured(step_ms, scale=MS, n=steps),
        samples_per_s=measured(rate, n=steps),
        train_loss=found.maybe(found.number, "final_loss"),
        peak_memory_bytes=_bytes(found.maybe(found.positive, "max_peak_memory_gb")),
        settings=found.plain("num_steps"),
        notes=("the number of parameters is rounded to 0.1 million",) if millions else (),
    )


def _of_sweep(path: Path, found: Fields, line: Fields) -> TrainingRun:
    batch, ranks = line.count("batch_size_per_gpu"), found.count("num_gpus")
    model, mode, status = found.text("model"), found.text("mode"), _status(line.text("status"))
    step_ms, rate = _figures(line, batch * ranks) if status == "ok" else (None, None)
    return TrainingRun(
        run_id=f"{path.stem}-b{batch}",
        label=label(mode, ranks, f"{batch} a rank"),
        group=f"{model}, sweep of batches",
        source=str(path),
        status=status,
        error=None if status == "ok" else line.text("status"),
        world_size=ranks,
        model=model,
        strategy=mode,
        micro_batch=batch,
        global_batch=batch * ranks,
        hardware=found.maybe(found.text, "gpu_name"),
        step_ns=measured(step_ms, scale=MS),
        samples_per_s=measured(rate),
        peak_memory_bytes=_bytes(line.maybe(line.positive, "peak_memory_gb")) if status == "ok" else None,
    )


def _status(text: str) -> Status:
    if text == "SUCCESS":
        return "ok"
    return "oom" if text.upper() in _OUT_OF_MEMORY else "error"


def _figures(line: Fields, samples: int) -> tuple[float, float]:
    """(step in ms, samples/s), which must agree."""
    step_ms, rate = line.positive("avg_step_time_ms"), line.positive("throughput_samples_per_sec")
    require_agreement(
        line.source,
        f"{line.at}.throughput_samples_per_sec" if line.at else "throughput_samples_per_sec",
        stated=rate,
        derived=samples / step_ms * 1e3,
        formula=f"{samples} samples / avg_step_time_ms",
        tolerance=_ROUNDED,
    )
    return step_ms, rate


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)


IMPORTER = Importer(
    title="GPU and batch scaling results (JSON with `experiment`)",
    recognises=_recognises,
    read=_read,
    rank=30,
)
