"""Output of torchtitan: ``step: 10  loss: 7.1  memory: 40.2GiB(42%)  tps: 7,120  tflops: 300.1  mfu: 30.2%``.

``tps`` (``wps`` before 2025) is tokens a second of one device. Every rank may print; the first one that does counts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from stepscope.core.words import counted
from stepscope.records.nouns import Measured
from stepscope.store.importer import Candidate
from stepscope.store.log_lines import LogLines, finite, without_prefix
from stepscope.store.step_log import Job, job_log, number_of
from stepscope.store.training_runs import GIB, LoggedStep, label

_STEP = re.compile(rb"(?<!validate )\bstep:\s*(\d{1,12})\s+loss:\s*(\S{1,20})")
_RATE = re.compile(rb"\b(?:tps|wps):\s*([\d,.]{1,20})(?=\s+(?:tflops|mfu)|\s*$)")
"""The rate with what follows it in its line: where another process wrote into it, the number may be cut."""
_MEMORY = re.compile(rb"\bmemory:\s*([\d.]{1,20})GiB\(")
_MFU = re.compile(rb"\bmfu:\s*([\d.]{1,20})%")
_BEGINS = re.compile(rb"Starting job|Building .{0,30}device mesh|Trainer is initialized|Training starts at step \d")
"""What a job prints before its first step, also one that was appended to the log."""
_HEAD = {
    "batch": re.compile(rb"global batch size:? (\d{1,12})"),
    "local": re.compile(rb"local batch size:? (\d{1,12})"),
    "accumulation": re.compile(rb"gradient accumulation steps:? (\d{1,9})"),
    "sequence": re.compile(rb"sequence length:? (\d{1,12})"),
    "total": re.compile(rb"total steps:? (\d{1,12})"),
}
_DONE = b"Training completed"
_MESH = re.compile(rb"Building \d-D device mesh with (\[.*?\]), \[([\d, ]*)\]")
_SCHEDULE = re.compile(rb"pipeline schedule (\w{1,40}) with (\d{1,6}) microbatches and (\d{1,6}) stages")
_PARALLEL = re.compile(rb"Building device mesh with parallelism: (.*)")
_DEGREE = re.compile(rb"\b(pp|dp_replicate|dp_shard|cp|tp)=(-1|\d{1,7})")
_GPU = re.compile(rb"(?:CUDA|XPU|HIP|GPU) capacity: (.{1,60}?) with [\d.]+GiB")
_MODEL = re.compile(rb"Model (.{1,60}?) size: ([\d,]{1,20}) total parameters")
_PER_DEVICE = "tps is per device: throughput is tps of the printing rank times the number of ranks"


def _knows(candidate: Candidate) -> bool:
    return any(
        _STEP.search(line) and _RATE.search(line) and b"GiB(" in line
        for line in (without_prefix(word)[1] for word in candidate.head.split(b"\n"))
    )


@dataclass(kw_only=True)
class _Job(Job):
    """numbers: of the head. layout, pipeline, world_size: of its mesh. peak_gib: of all ranks. mfu: per cent, by step."""

    world_size: int | None = None
    layout: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    pipeline: dict[str, int | str] = field(default_factory=dict)
    model: str | None = None
    parameters: int | None = None
    gpu: str | None = None
    steps: set[int] = field(default_factory=set)
    mfu: list[float] = field(default_factory=list)
    peak_gib: float = 0.0

    def read(self, lines: LogLines, number: int, raw: bytes) -> Self | None:
        rank, line = without_prefix(raw)
        self.ending.read(line)
        if b"step:" in line and (match := _STEP.search(line)):
            rate = _RATE.search(line)
            short = rate is not None and rate.end() == len(line) and self.mfu  # other lines went on
            if rate is None or short or line.count(b"step:") > 1:
                lines.leave_out(number)
                return None
            return self._step(number, rank, line, {"loss": match[2], "tokens/s/gpu": rate[1]}, int(match[1]))
        begins, job = _BEGINS.search(line) is not None, self
        # The first step may be logged between what ranks without a prefix print before it.
        under_way = len(self.points) > (1 if self.rank is None else 0)
        if begins and under_way and (rank is None or rank == self.rank):
            job = type(self)(line=number)
        if begins and (b"Training starts" in line or b"Trainer is" in line):
            job.numbers |= {name: int(match[1]) for name, pattern in _HEAD.items() if (match := pattern.search(line))}
            job.total = job.numbers.get("total")
        elif _DONE in line:
            job.done = True
        else:
            _facts(job, line)
        return None if job is self else job

    def finish(self, rest: bytes) -> None:
        super().finish(rest)
        self.done = self.done or _DONE in rest

    def _step(self, number: int, rank: int | None, line: bytes, printed: dict[str, bytes], step: int) -> Self | None:
        if memory := _MEMORY.search(line):
            self.peak_gib = max(self.peak_gib, finite(memory[1]) or 0.0)
        if self.points and (rank != self.rank or (rank is None and step in self.steps)):
            return None  # of another rank, or again
        job = self
        if self.points and step <= self.last:
            again = ("world_size", "layout", "numbers", "gpu", "model", "parameters", "pipeline", "total")
            job = type(self)(line=number, **{name: getattr(self, name) for name in again})
        job.rank = rank
        job.steps.add(step)
        job.points.append(LoggedStep(step, values={name: number_of(text) for name, text in printed.items()}))
        if (mfu := _MFU.search(line)) and (share := finite(mfu[1])):
            job.mfu.append(share)
        return None if job is self else job

    @property
    def rates(self) -> list[float]:
        return [rate for point in self.points if math.isfinite(rate := point.values["tokens/s/gpu"])]

    def step_ns(self) -> Measured | None:
        batch, sequence = self.numbers.get("batch"), self.numbers.get("sequence")
        steady = self.rates[1:] or self.rates
        tokens = median(steady) if steady else 0.0
        if not (batch and sequence and self.world_size and tokens > 0):
            return None
        return Measured(value=batch * sequence / (tokens * self.world_size) * 1e9, n=len(steady))

    def run_fields(self) -> dict[str, Any]:
        sequence = self.numbers.get("sequence")
        return {
            "world_size": self.world_size,
            "model": self.model,
            "strategy": self.layout or None,
            "label": label(self.layout or None, self.world_size),
            "global_batch": self.numbers.get("batch"),
            "micro_batch": self.numbers.get("local"),
            "accumulation": self.numbers.get("accumulation"),
            "hardware": self.gpu,
            "device": "cuda",
            "num_parameters": self.parameters,
            "step_ns": self.step_ns(),
            "peak_memory_bytes": round(self.peak_gib * GIB) or None,
            "mfu": sorted(self.mfu)[len(self.mfu) // 2] / 100 if self.mfu else None,
            "settings": self.pipeline | ({"sequence_length": sequence} if sequence else {}),
        }

    def notes(self) -> list[str]:
        what = "throughput" if self.step_ns() is None else "step time and throughput"
        return [f"{what} of {counted(len(self.rates), 'logged step')}: {_PER_DEVICE}", *super().notes()]

    def group(self, path: Path) -> str:
        sequence = self.numbers.get("sequence")
        parts = [part for part in (self.model, f"sequences of {sequence}" if sequence else None) if part]
        return ", ".join(parts) or path.parent.name


def _facts(job: _Job, line: bytes) -> None:
    """Take facts from a line before the first step: mesh, device and model."""
    if b"device mesh" in line and job.world_size is None:
        degrees = {name.decode(): int(value) for name, value in _DEGREE.findall(line)} if _PARALLEL.search(line) else {}
        if match := _MESH.search(line):
            names = [name.strip(" '\"[]") for name in match[1].decode(errors="replace").split(",")]
            degrees = dict(zip(names, map(int, re.findall(rb"\d{1,7}", match[2])), strict=False))
        if degrees:
            job.world_size = math.prod(degrees.values()) if min(degrees.values()) > 0 else None  # -1: what is left
            job.layout = " ".join(f"{name}{value}" for name, value in degrees.items() if value > 1)
            job.pipeline |= {"pipeline_parallel": degrees.get("pp", 1)}
    elif match := _SCHEDULE.search(line):
        stages, ranks = int(match[3]), job.pipeline.get("pipeline_parallel")
        job.pipeline |= {"pipeline_schedule": match[1].decode(errors="replace"), "micro_batches": int(match[2])}
        if isinstance(ranks, int) and ranks > 1 and stages % ranks == 0:
            job.pipeline |= {"pipeline_chunks": stages // ranks}
    elif match := _GPU.search(line):
        job.gpu = match[1].decode(errors="replace")
    elif match := _MODEL.search(line):
        job.model, job.parameters = match[1].decode(errors="replace"), int(match[2].replace(b",", b""))


IMPORTER = job_log(
    "torchtitan_log",
    title="log of torchtitan",
    job=lambda line: _Job(line=line),
    recognises=_knows,
    marks=("step:",),
    rank=40,
)
