"""Output of torchtitan: ``step: 10  loss: 7.1  memory: 40.2GiB(42%)  tps: 7,120  tflops: 300.1  mfu: 30.2%``.

``tps`` (``wps`` before 2025) is tokens a second of one device. Every rank may print; the first one that does counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.imported import Imported
from stepscope.records.nouns import Measured
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.log_lines import SUFFIXES, Ending, LogLines, finite, without_prefix
from stepscope.store.training_runs import LoggedStep, ReadRun, Scalars, imported_runs, label, run_of

_STEP = re.compile(rb"(?<!validate )\bstep:\s*(\d{1,12})\s+loss:\s*(\S{1,20})")
_RATE = re.compile(rb"\b(?:tps|wps):\s*([\d,.]{1,20})(?=\s+(?:tflops|mfu)|\s*$)")
"""What follows it belongs to the line: where another process wrote into it, the number may be cut."""
_MEMORY = re.compile(rb"\bmemory:\s*([\d.]{1,20})GiB\(")
_MFU = re.compile(rb"\bmfu:\s*([\d.]{1,20})%")
_BEGINS = re.compile(rb"Starting job|Building .{0,30}device mesh|Trainer is initialized|Training starts at step \d")
"""What a job prints before its first step, and one that was appended to the log before its own."""
_BATCH = re.compile(rb"global batch size:? (\d{1,12})")
_LOCAL = re.compile(rb"local batch size:? (\d{1,12})")
_ACCUMULATION = re.compile(rb"gradient accumulation steps:? (\d{1,9})")
_SEQUENCE = re.compile(rb"sequence length:? (\d{1,12})")
_TOTAL = re.compile(rb"total steps:? (\d{1,12})")
_MESH = re.compile(rb"Building \d-D device mesh with (\[.*?\]), \[([\d, ]*)\]")
_SCHEDULE = re.compile(rb"pipeline schedule (\w{1,40}) with (\d{1,6}) microbatches and (\d{1,6}) stages")
_PARALLEL = re.compile(rb"Building device mesh with parallelism: (.*)")
_DEGREE = re.compile(rb"\b(pp|dp_replicate|dp_shard|cp|tp)=(-1|\d{1,7})")
_GPU = re.compile(rb"(?:CUDA|XPU|HIP|GPU) capacity: (.{1,60}?) with [\d.]+GiB")
_MODEL = re.compile(rb"Model (.{1,60}?) size: ([\d,]{1,20}) total parameters")
_PER_DEVICE = "tps is per device: throughput is tps of the printing rank times the number of ranks"


@dataclass(kw_only=True)
class _Job:
    """What one job printed so far."""

    line: int
    rank: int | None = None
    world_size: int | None = None
    layout: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    pipeline: dict[str, int | str] = field(default_factory=dict)
    model: str | None = None
    parameters: int | None = None
    gpu: str | None = None
    points: list[LoggedStep] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)
    mfu: list[float] = field(default_factory=list)
    peak_gib: float = 0.0
    completed: bool = False
    ending: Ending = field(default_factory=Ending)

    @property
    def under_way(self) -> bool:
        """Whether it made steps; the first may be logged between what ranks without a prefix print before it."""
        return len(self.points) > (1 if self.rank is None else 0)


def _knows(candidate: Candidate) -> bool:
    head = candidate.head
    return b"step:" in head and any(
        _STEP.search(line) and _RATE.search(line) and b"GiB(" in line
        for line in (without_prefix(each)[1] for each in head.split(b"\n"))
    )


def _read(source: Candidate) -> Imported:
    parts, left_out = read_each(source, _knows, _read_file, suffixes=SUFFIXES)
    return imported_runs("torchtitan_log", source, (run for part in parts for run in part), left_out=left_out)


def _read_file(path: Path) -> tuple[ReadRun, ...]:
    jobs, lines = [_Job(line=1)], LogLines(path)
    for number, raw in lines:
        rank, line = without_prefix(raw)
        jobs[-1].ending.read(line)
        if b"step:" in line and (found := _STEP.search(line)):
            rate = _RATE.search(line)
            short = rate is not None and rate.end() == len(line) and jobs[-1].mfu  # other lines went on
            if rate is None or short or line.count(b"step:") > 1:
                lines.leave_out(number)
            else:
                _step(jobs, number, rank, line, found, rate)
            continue
        begins = _BEGINS.search(line) is not None
        if begins and jobs[-1].under_way and (rank is None or rank == jobs[-1].rank):
            jobs.append(_Job(line=number))
        if begins and (b"Training starts" in line or b"Trainer is" in line):
            _head(jobs[-1], line)
        elif b"Training completed" in line:
            jobs[-1].completed = True
        else:
            _facts(jobs[-1], line)
    jobs[-1].ending.read(lines.rest)
    jobs[-1].completed = jobs[-1].completed or b"Training completed" in lines.rest
    timed = [job for job in jobs if job.points]
    if not timed:
        raise DataError(
            f"{path}: no step was logged", why="the log was cut off, or the job exited before its first step"
        )
    return tuple(_run(path, job, lines.notes() if job is timed[-1] else (), alone=len(timed) == 1) for job in timed)


def _step(
    jobs: list[_Job], number: int, rank: int | None, line: bytes, found: re.Match[bytes], rate: re.Match[bytes]
) -> None:
    job = jobs[-1]
    if memory := _MEMORY.search(line):
        job.peak_gib = max(job.peak_gib, finite(memory[1]) or 0.0)
    if job.points and rank != job.rank:
        return
    step, tokens = int(found[1]), finite(rate[1])
    if job.points and rank is None and step in job.steps:
        return  # of another rank, or again
    if job.points and step <= job.points[-1].step:
        job = _Job(line=number, world_size=job.world_size, layout=job.layout, numbers=job.numbers, gpu=job.gpu)
        job.model, job.parameters, job.pipeline = jobs[-1].model, jobs[-1].parameters, jobs[-1].pipeline
        jobs.append(job)
    job.rank = rank
    job.steps.add(step)
    values = {"loss": finite(found[2]), "tokens/s/gpu": tokens}
    job.points.append(LoggedStep(step, values={name: math.nan if v is None else v for name, v in values.items()}))
    if (mfu := _MFU.search(line)) and (share := finite(mfu[1])):
        job.mfu.append(share)


def _head(job: _Job, line: bytes) -> None:
    for name, pattern in (
        ("batch", _BATCH),
        ("local", _LOCAL),
        ("accumulation", _ACCUMULATION),
        ("sequence", _SEQUENCE),
        ("total", _TOTAL),
    ):
        if found := pattern.search(line):
            job.numbers[name] = int(found[1])


def _facts(job: _Job, line: bytes) -> None:
    """Lines before the first step: mesh, device and model."""
    if b"device mesh" in line and job.world_size is None:
        degrees = {name.decode(): int(value) for name, value in _DEGREE.findall(line)} if _PARALLEL.search(line) else {}
        if found := _MESH.search(line):
            names = [name.strip(" '\"[]") for name in found[1].decode(errors="replace").split(",")]
            degrees = dict(zip(names, map(int, re.findall(rb"\d{1,7}", found[2])), strict=False))
        if degrees:
            job.world_size = math.prod(degrees.values()) if min(degrees.values()) > 0 else None  # -1: what is left
            job.layout = " ".join(f"{name}{value}" for name, value in degrees.items() if value > 1)
            job.pipeline |= {"pipeline_parallel": degrees.get("pp", 1)}
    elif found := _SCHEDULE.search(line):
        stages, ranks = int(found[3]), job.pipeline.get("pipeline_parallel")
        job.pipeline |= {"pipeline_schedule": found[1].decode(errors="replace"), "micro_batches": int(found[2])}
        if isinstance(ranks, int) and ranks > 1 and stages % ranks == 0:
            job.pipeline |= {"pipeline_chunks": stages // ranks}
    elif found := _GPU.search(line):
        job.gpu = found[1].decode(errors="replace")
    elif found := _MODEL.search(line):
        job.model, job.parameters = found[1].decode(errors="replace"), int(found[2].replace(b",", b""))


def _run(path: Path, job: _Job, left_out: Iterable[str], *, alone: bool) -> ReadRun:
    last, total = job.points[-1].step, job.numbers.get("total")
    batch, sequence, world = job.numbers.get("batch"), job.numbers.get("sequence"), job.world_size
    complete = job.completed or last == total
    status, error = job.ending.status(f"after step {last}" + (f" of {total}" if total else ""), complete=complete)
    rates = [point.values["tokens/s/gpu"] for point in job.points if math.isfinite(point.values["tokens/s/gpu"])]
    steady = sorted(rates[1:] or rates)
    step_ns = None
    if batch and sequence and world and steady and steady[len(steady) // 2] > 0:
        tokens = (steady[len(steady) // 2] + steady[(len(steady) - 1) // 2]) / 2
        step_ns = Measured(value=batch * sequence / (tokens * world) * 1e9, n=len(steady))
    parts = (job.model, f"sequences of {sequence}" if sequence else None)
    known: dict[str, Any] = {
        "status": status,
        "error": error,
        "world_size": world,
        "model": job.model,
        "strategy": job.layout or None,
        "label": label(job.layout or None, world),
        "global_batch": batch,
        "micro_batch": job.numbers.get("local"),
        "accumulation": job.numbers.get("accumulation"),
        "hardware": job.gpu,
        "device": "cuda",
        "num_parameters": job.parameters,
        "step_ns": step_ns,
        "peak_memory_bytes": round(job.peak_gib * 2**30) or None,
        "mfu": sorted(job.mfu)[len(job.mfu) // 2] / 100 if job.mfu else None,
        "settings": dict(job.pipeline),
    }
    if sequence:
        known["settings"] = {**known["settings"], "sequence_length": sequence}
    what = "throughput" if step_ns is None else "step time and throughput"
    ends = [] if complete or job.ending.stopped else [f"the log ends at step {last} and does not state why"]
    return run_of(
        Scalars(
            source=f"{path}:{job.line}",
            run_id=path.stem if alone else f"{path.stem}-line{job.line}",
            group=", ".join(part for part in parts if part) or path.parent.name,
            points=job.points,
            known=known,
            notes=[f"{what} of {counted(len(rates), 'logged step')}: {_PER_DEVICE}", *ends],
            unread=tuple(left_out),
        )
    )


IMPORTER = Importer(title="log of torchtitan", recognises=_knows, read_files=_read, rank=40, marks=("step:",))
