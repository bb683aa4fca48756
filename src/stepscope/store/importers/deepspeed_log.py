"""Output of DeepSpeed: its throughput timer, its pipeline engine's steps, and ``wall_clock_breakdown``, any version.

Samples a second are those of all ranks (the timer counts the batch of the data-parallel world).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any, Self

from stepscope.store.importer import Candidate
from stepscope.store.log_lines import LogLines, finite, without_prefix
from stepscope.store.step_log import LoggedJob, job_log, number_of
from stepscope.store.training_runs import GIB, MS, LoggedStep, label

_TIMER = re.compile(rb"(global_step=|\b\d{1,9}/)(\d{1,12}), (?:RunningAvg)?SamplesPerSec=([\d.e+-]{1,24})(?=[,\s]|$)")
"""A line of the timer; its old form counts micro-steps behind the slash."""
_CURRENT = re.compile(rb"CurrSamplesPerSec=([\d.e+-]{1,24})")
_WHOLE_RATE = re.compile(rb"SamplesPerSec=[\d.e+-]{1,24}(?=[,\s]|$)")
_MEMORY = re.compile(rb"MaxMemAllocated=([\d.]{1,20})GB")
_PIPELINE = re.compile(
    rb"\bsteps?: +(\d{1,12})(?: / +(\d{1,12}))? loss: (\S{1,20}) .*?"
    rb"iter time \(s\): ([\d.]{1,20}) samples/sec: ([\d.]{1,20})(?=\s|$)"
)
_STAGED_STEP = re.compile(rb"\bsteps?: +\d")
_STEP = re.compile(rb"\[Rank 0\] step=(\d{1,12}), skipped=(\d{1,12}),")
_BREAKDOWN = re.compile(rb"time \(ms\) \| ((?:forward|fwd)(?:_microstep)?: .*)")
_PART = re.compile(rb"([a-z_]{1,40}): ([\d.]{1,20})(?=[\s|]|$)")
_PARTS = ("forward", "backward", "communication", "optimizer")
_STEPS = tuple(
    (f"{forward}{micro}", f"{backward}_inner{micro}", f"{backward}_allreduce{micro}", f"step{micro}")
    for micro in ("", "_microstep")
    for forward, backward in (("fwd", "bwd"), ("forward", "backward"))
)
"""Names of their timers, by version, of a whole step and of a micro-step."""
_SETTING = re.compile(rb"\[config\.py:\d+:print\]\s+([a-z]\w{0,60}) \.* (\S{1,60})")
_BEGINS = b"DeepSpeedEngine configuration:"
_WHEN = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\]")
_KEPT = ("zero_optimization_stage", "gradient_clipping", "steps_per_print", "optimizer_name", "pld_enabled")
_STAGED = "a log of the pipeline engine names its data-parallel ranks, not how many there are in all"
_TIMED = "the log does not name the model: logs of one folder count as one model; its timer leaves out the first steps"


def _knows_deepspeed(candidate: Candidate) -> bool:
    text = candidate.start  # the words first: an expression looks at each digit
    timed = b"SamplesPerSec=" in text and _TIMER.search(text)
    staged = b"samples/sec: " in text and _PIPELINE.search(text)
    return bool(timed or staged or (b"DeepSpeed" in text and _STEP.search(text)))


def _is_torn(line: bytes, *, goes_on: bool) -> bool:
    """Whether a line of steps has lost its middle or its end, or holds another one. goes_on: others end in memory."""
    timed, staged = line.count(b"SamplesPerSec="), line.count(b"samples/sec: ")
    if timed:
        whole = len(_WHOLE_RATE.findall(line)) == timed == (2 if b"RunningAvg" in line else 1)
        whole = whole and not (goes_on and line.rstrip()[-1:].isdigit())
        return not whole or len(_TIMER.findall(line)) != 1
    return staged > 1 or (staged == 1 and (_PIPELINE.search(line) is None or len(_STAGED_STEP.findall(line)) > 1))


def _line_time_s(line: bytes) -> float | None:
    """Return when the line was written, seconds; None where it does not say, or the time is damaged."""
    when = _WHEN.search(line)
    try:
        moment = None if when is None else datetime.strptime(when[1].decode(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return None if moment is None or when is None else moment.timestamp() + int(when[2]) / 1e3


def _deepspeed_precision(settings: Mapping[str, str]) -> str | None:
    for key, name in (("bfloat16_enabled", "bf16"), ("fp16_enabled", "fp16"), ("float16_enabled", "fp16")):
        if settings.get(key) == "True":
            return name
    return "fp32" if "fp16_enabled" in settings or "bfloat16_enabled" in settings else None


@dataclass(kw_only=True)
class _Job(LoggedJob):
    """facts: settings of the engine. parts: of its step, ms. numbered: lines with the step's own number are among its
    lines; staged: lines of the pipeline engine."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    skipped: int = 0
    peak_gb: float = 0.0
    numbered: bool = False
    staged: bool = False

    def read(self, lines: LogLines, number: int, raw: bytes, _form: bytes) -> Self | None:
        """Read one line; return the job that it begins or continues, None where it says nothing of one."""
        _, line = without_prefix(raw)
        job = type(self)(line=number) if _BEGINS in line and self.points else self
        if match := _SETTING.search(line):
            job.facts.setdefault(match[1].decode(), match[2].decode(errors="replace"))
        elif _is_torn(line, goes_on=job.peak_gb > 0):
            lines.leave_out(number)
            return None if job is self else job
        elif match := _PIPELINE.search(line):
            job = job._at(number, int(match[1]), line, loss=match[3], step_time_s=match[4], samples_per_s=match[5])
            job.total, job.staged = int(match[2]) if match[2] else None, True
        elif match := _TIMER.search(line):
            step = job.last if job.numbered and not match[1].startswith(b"global") else int(match[2])
            current = _CURRENT.search(line)
            job = job._at(number, step, line, samples_per_s=current[1] if current else match[3])
        elif match := _STEP.search(line):
            job = job._at(number, int(match[1]), line)
            job.numbered = True
            job.skipped = int(match[2])
        elif match := _BREAKDOWN.search(line):
            for name, value in _PART.findall(match[1]):
                job.parts.setdefault(name.decode(), []).append(finite(value) or 0.0)
        if memory := _MEMORY.search(line):
            job.peak_gb = max(job.peak_gb, finite(memory[1]) or 0.0)
        return None if job is self else job

    def _at(self, number: int, step: int, line: bytes, **values: bytes) -> Self:
        """Put a step into its job and return that: a step before the last one is of a job that was appended to the log."""
        job = type(self)(line=number, facts=dict(self.facts)) if step < self.last else self
        if step != job.last:
            job.points.append(LoggedStep(step))
        point = job.points[-1]
        point.wall_s = point.wall_s or _line_time_s(line)
        point.values |= {name: number_of(text) for name, text in values.items()}
        return job

    def run_fields(self) -> dict[str, Any]:
        """Return the fields of the run: ranks, strategy, batch, and mean ns of the parts of its step."""
        data, batch = self.count("world_size"), self.count("train_batch_size")
        world = None if self.staged else data
        stage = self.facts.get("zero_optimization_stage")
        strategy = f"zero-{stage}" if stage and stage != "0" else "deepspeed"
        if batch:  # without iter time, a step is its batch over the samples a second
            for point in self.points:
                rate = point.values.get("samples_per_s")
                if rate and "step_time_s" not in point.values:
                    point.values["step_time_s"] = batch / rate
        return {
            "world_size": world,
            "parts_ns": self._means(),
            "strategy": strategy,
            "label": label(strategy, world),
            "precision": _deepspeed_precision(self.facts),
            "global_batch": batch,
            "micro_batch": self.count("train_micro_batch_size_per_gpu"),
            "accumulation": self.count("gradient_accumulation_steps"),
            "device": "cuda",
            "peak_memory_bytes": round(self.peak_gb * GIB) or None,
            "settings": {key: self.facts[key] for key in _KEPT if self.facts.get(key, "None") != "None"}
            | ({"data_parallel": data} if self.staged and data else {}),
            "missing": {"world_size": _STAGED} if self.staged else {},
        }

    def so_far(self) -> str:
        return f"after step {self.last}"

    def _means(self) -> dict[str, float] | None:
        """Return the parts of its step, ns: of a whole one where those are logged, else of a micro-step."""
        for names in _STEPS:
            series = {part: self.parts.get(name, []) for part, name in zip(_PARTS, names, strict=True)}
            if all(series.values()):
                return {part: fmean(values[1:] or values) * MS for part, values in series.items()}
        return None

    def notes(self) -> list[str]:
        """Return notes on what the loss scaler skipped and where the step's time goes."""
        notes = [_TIMED]
        if self.skipped:
            notes.append(f"{self.skipped} of {self.last} steps were skipped by the loss scaler")
        if self.parts:
            steady = {name: median(values[1:] or values) for name, values in self.parts.items()}
            medians = ", ".join(f"{name.replace('_', ' ')} {value:.4g} ms" for name, value in steady.items())
            notes.append(f"parts of its step on rank 0, medians: {medians}")
        return notes


IMPORTER = job_log(
    "deepspeed_log",
    title="log of DeepSpeed",
    job=lambda line: _Job(line=line),
    recognises=_knows_deepspeed,
    marks=("SamplesPerSec=", "samples/sec: ", "DeepSpeed"),
    deep=True,
    rank=45,
)
