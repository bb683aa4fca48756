"""Output of DeepSpeed: its throughput timer, its pipeline engine's steps, and ``wall_clock_breakdown``, any version.

Samples a second are those of all ranks (the timer counts the batch of the data-parallel world).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.log_lines import SUFFIXES, Ending, LogLines, finite, without_prefix
from stepscope.store.training_runs import GIB, LoggedStep, ReadRun, Scalars, imported_runs, label, run_of

_TIMER = re.compile(rb"(global_step=|\b\d{1,9}/)(\d{1,12}), (?:RunningAvg)?SamplesPerSec=([\d.e+-]{1,24})(?=[,\s]|$)")
"""The old form counts micro-steps behind the slash."""
_CURRENT = re.compile(rb"CurrSamplesPerSec=([\d.e+-]{1,24})")
_WHOLE_RATE = re.compile(rb"SamplesPerSec=[\d.e+-]{1,24}(?=[,\s]|$)")
_MEMORY = re.compile(rb"MaxMemAllocated=([\d.]{1,20})GB")
_PIPELINE = re.compile(
    rb"\bsteps?: +(\d{1,12})(?: / +(\d{1,12}))? loss: (\S{1,20}) .*?"
    rb"iter time \(s\): ([\d.]{1,20}) samples/sec: ([\d.]{1,20})(?=\s|$)"
)
_STAGED_STEP = re.compile(rb"\bsteps?: +\d")
_STEP = re.compile(rb"\[Rank 0\] step=(\d{1,12}), skipped=(\d{1,12}),")
_BREAKDOWN = re.compile(rb"time \(ms\) \| ((?:forward|fwd): .*)")
_PART = re.compile(rb"([a-z_]{1,40}): ([\d.]{1,20})(?=[\s|]|$)")
_SETTING = re.compile(rb"\[config\.py:\d+:print\]\s+([a-z]\w{0,60}) \.* (\S{1,60})")
_BEGINS = b"DeepSpeedEngine configuration:"
_WHEN = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\]")
_KEPT = ("zero_optimization_stage", "gradient_clipping", "steps_per_print", "optimizer_name", "pld_enabled")
_STAGED = "a log of the pipeline engine names its data-parallel ranks, not how many there are in all"
_TIMED = "the log does not name the model: logs of one folder count as one model; its timer leaves out the first steps"


@dataclass(kw_only=True)
class _Job:
    """What one engine printed so far. numbered: lines with the step's own number are among them; staged: lines of the
    pipeline engine."""

    line: int
    settings: dict[str, str] = field(default_factory=dict)
    points: dict[int, LoggedStep] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)
    total: int | None = None
    skipped: int = 0
    peak_gb: float = 0.0
    last: int = -1
    numbered: bool = False
    staged: bool = False
    ending: Ending = field(default_factory=Ending)


def _knows(candidate: Candidate) -> bool:
    text = candidate.start  # the words first: an expression looks at each digit
    timed = b"SamplesPerSec=" in text and _TIMER.search(text)
    staged = b"samples/sec: " in text and _PIPELINE.search(text)
    return bool(timed or staged or (b"DeepSpeed" in text and _STEP.search(text)))


def _read(source: Candidate) -> Imported:
    parts, left_out = read_each(source, _knows, _read_file, suffixes=SUFFIXES)
    return imported_runs("deepspeed_log", source, (run for part in parts for run in part), left_out=left_out)


def _read_file(path: Path) -> tuple[ReadRun, ...]:
    jobs, lines = [_Job(line=1)], LogLines(path)
    for number, raw in lines:
        _, line = without_prefix(raw)
        if _BEGINS in line and jobs[-1].points:
            jobs.append(_Job(line=number))
        job = jobs[-1]
        if found := _SETTING.search(line):
            job.settings.setdefault(found[1].decode(), found[2].decode(errors="replace"))
        elif _is_torn(line, goes_on=job.peak_gb > 0):
            lines.leave_out(number)
            continue
        elif found := _PIPELINE.search(line):
            job = _at(jobs, number, int(found[1]))
            job.total, job.staged = int(found[2]) if found[2] else None, True
            _point(job, int(found[1]), line, loss=found[3], step_time_s=found[4], samples_per_s=found[5])
        elif found := _TIMER.search(line):
            step = job.last if job.numbered and not found[1].startswith(b"global") else int(found[2])
            job, current = _at(jobs, number, step), _CURRENT.search(line)
            _point(job, step, line, samples_per_s=current[1] if current else found[3])
        elif found := _STEP.search(line):
            job = _at(jobs, number, int(found[1]))
            job.numbered = True
            job.skipped = int(found[2])
            _point(job, int(found[1]), line)
        elif found := _BREAKDOWN.search(line):
            for name, value in _PART.findall(found[1]):
                job.parts.setdefault(name.decode(), []).append(finite(value) or 0.0)
        else:
            job.ending.read(line)
        if memory := _MEMORY.search(line):
            job.peak_gb = max(job.peak_gb, finite(memory[1]) or 0.0)
    jobs[-1].ending.read(lines.rest)
    timed = [job for job in jobs if job.points]
    if not timed:
        raise DataError(
            f"{path}: no step was logged", why="the log was cut off, or the job exited before its first step"
        )
    return tuple(_run(path, job, lines.notes() if job is timed[-1] else (), alone=len(timed) == 1) for job in timed)


def _is_torn(line: bytes, *, goes_on: bool) -> bool:
    """Whether a line of steps has lost its middle or its end, or holds another one. goes_on: others end in memory."""
    timed, staged = line.count(b"SamplesPerSec="), line.count(b"samples/sec: ")
    if timed:
        whole = len(_WHOLE_RATE.findall(line)) == timed == (2 if b"RunningAvg" in line else 1)
        whole = whole and not (goes_on and line.rstrip()[-1:].isdigit())
        return not whole or len(_TIMER.findall(line)) != 1
    return staged > 1 or (staged == 1 and (_PIPELINE.search(line) is None or len(_STAGED_STEP.findall(line)) > 1))


def _at(jobs: list[_Job], number: int, step: int) -> _Job:
    """The job that a step is of: one before the last is of a job that was appended to the log."""
    if step < jobs[-1].last:
        jobs.append(_Job(line=number, settings=dict(jobs[-1].settings)))
    jobs[-1].last = step
    return jobs[-1]


def _point(job: _Job, step: int, line: bytes, **values: bytes) -> None:
    point = job.points.setdefault(step, LoggedStep(step))
    point.wall_s = point.wall_s or _moment(line)
    for name, text in values.items():
        point.values[name] = value if (value := finite(text)) is not None else float("nan")


def _moment(line: bytes) -> float | None:
    """When the line was written, seconds; None: it does not say, or the time is damaged."""
    when = _WHEN.search(line)
    try:
        moment = None if when is None else datetime.strptime(when[1].decode(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return None if moment is None or when is None else moment.timestamp() + int(when[2]) / 1e3


def _run(path: Path, job: _Job, left_out: Iterable[str], *, alone: bool) -> ReadRun:
    data, batch = _count(job, "world_size"), _count(job, "train_batch_size")
    world = None if job.staged else data
    status, error = job.ending.status(f"after step {job.last}", complete=job.last == job.total)
    stage = job.settings.get("zero_optimization_stage")
    strategy = f"zero-{stage}" if stage and stage != "0" else "deepspeed"
    points = [job.points[step] for step in sorted(job.points)]
    micro = _count(job, "train_micro_batch_size_per_gpu")
    known: dict[str, Any] = {
        "status": status,
        "error": error,
        "world_size": world,
        "strategy": strategy,
        "label": label(strategy, world),
        "precision": _precision(job),
        "global_batch": batch,
        "micro_batch": micro,
        "accumulation": _count(job, "gradient_accumulation_steps"),
        "device": "cuda",
        "peak_memory_bytes": round(job.peak_gb * GIB) or None,
        "settings": {key: job.settings[key] for key in _KEPT if job.settings.get(key, "None") != "None"}
        | ({"data_parallel": data} if job.staged and data else {}),
        "missing": {"world_size": _STAGED} if job.staged else {},
    }
    if batch:  # without iter time, a step is its batch over the samples a second
        for point in points:
            rate = point.values.get("samples_per_s")
            if rate and "step_time_s" not in point.values:
                point.values["step_time_s"] = batch / rate
    return run_of(
        Scalars(
            source=f"{path}:{job.line}",
            run_id=path.stem if alone else f"{path.stem}-line{job.line}",
            group=path.absolute().parent.name,
            points=points,
            known=known,
            notes=_notes(job),
            unread=tuple(left_out),
        )
    )


def _notes(job: _Job) -> list[str]:
    notes = [_TIMED]
    if job.skipped:
        notes.append(f"{job.skipped} of {job.last} steps were skipped by the loss scaler")
    if job.parts:
        each = ", ".join(f"{name.replace('_', ' ')} {_steady(values):.4g} ms" for name, values in job.parts.items())
        notes.append(f"parts of its step on rank 0, medians: {each}")
    return notes


def _steady(values: Sequence[float]) -> float:
    return median(values[1:] or values)


def _count(job: _Job, key: str) -> int | None:
    text = job.settings.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None


def _precision(job: _Job) -> str | None:
    for key, name in (("bfloat16_enabled", "bf16"), ("fp16_enabled", "fp16"), ("float16_enabled", "fp16")):
        if job.settings.get(key) == "True":
            return name
    return "fp32" if "fp16_enabled" in job.settings or "bfloat16_enabled" in job.settings else None


IMPORTER = Importer(
    title="log of DeepSpeed",
    recognises=_knows,
    read_files=_read,
    rank=45,
    deep=True,
    marks=("SamplesPerSec=", "samples/sec: ", "DeepSpeed"),
)
