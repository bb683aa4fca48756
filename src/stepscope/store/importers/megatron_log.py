"""Output of Megatron-LM and Megatron-DeepSpeed jobs: read line by line, of any length, all ranks' output mixed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from stepscope.core.errors import DataError
from stepscope.core.words import grouped
from stepscope.records.imported import Imported
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate
from stepscope.store.log_lines import LogLines, finite, without_colours
from stepscope.store.step_log import LoggedJob, job_log, number_of
from stepscope.store.training_runs import MIB, NO_REASON, LoggedStep, label

_MEMORY_RANKS = 1 << 17
_WORLD = re.compile(rb"using world size: (\d{1,7})(?:, data-parallel[- ]size: (\d{1,7}),| and model-parallel size: \d)")
_TENSOR = re.compile(rb"(?:tensor-|and )model-parallel size: (\d{1,7})")
_PIPELINE = re.compile(rb"pipeline-model-parallel size: (\d{1,7})")
_ARGUMENT = re.compile(rb"(?:^|[\]: ])\s{2}([A-Za-z_]\w{0,60}) \.{2,} (.{1,200})$")
_ITERATION = re.compile(rb"iteration\s+(\d{1,12})/(?:\s*(\d{1,12})|infinity) \|")
_ELAPSED = re.compile(rb"elapsed time per iteration \((ms|s)\): ([\d.]{1,20})(?: *\||/|$)")
_FIELDS = (b"elapsed time per iteration", b"global batch size:", b"number of skipped iterations:")
_BATCH = re.compile(rb"global batch size: +(\d{1,9})(?: |\||$)")
_LOSS = re.compile(rb"lm loss:? (-?[\d.]{1,20}E[+-]\d{1,3})(?=[ |]|$)", re.I)
_ODD = re.compile(rb"number of (skipped|nan) iterations: +(\d{1,9})(?=[ |]|$)")
_PARAMETERS = re.compile(
    rb"number of parameters on \(tensor, pipeline\) model parallel rank \((\d{1,6}), (\d{1,6})\): (\d{1,15})(?=\s|$)"
)
_MEMORY = re.compile(rb"\[Rank (\d{1,7})\][^\[|]*memory \(MB\) \|[^\[]*?\bmax allocated: ([\d.]{1,20})(?=[ |]|$)")
_VALIDATION = re.compile(rb"validation loss at (?:the end of training|iteration \d+)[^|]*\| lm loss value: (\S{1,30})")
_GPU = re.compile(rb"^\|\s+\d+\s+((?:NVIDIA|Tesla|Quadro|GeForce) [\w. -]{1,40}?)\.*\s+(?:On|Off)\s")
_KEPT = (
    "hidden_size", "num_layers", "num_attention_heads", "ffn_hidden_size", "optimizer", "lr",
    "checkpoint_activations", "recompute_granularity", "num_layers_per_virtual_pipeline_stage", "seed",
    "zero_stage", "sequence_parallel", "use_distributed_optimizer",
)  # fmt: skip
_ARGUMENTS_KEPT = 2000
_NO_WORLD = (
    "no line before its iterations says `using world size`: this version does not print it, or the log was cut off"
)


def _knows_megatron(candidate: Candidate) -> bool:
    text = candidate.start
    return _WORLD.search(text) is not None or (
        _ITERATION.search(text) is not None and b"elapsed time per iteration" in text
    )


def _with_strong_scaling(runs: tuple[TrainingRun, ...]) -> tuple[TrainingRun, ...]:
    """Call runs on several numbers of ranks strong scaling: those of one group have the same model and global batch."""
    groups = grouped(runs, lambda run: run.group)
    several = [name for name, members in groups.items() if len({run.world_size for run in members}) > 1]
    return tuple(replace(run, scaling="strong") if run.group in several and run.global_batch else run for run in runs)


_NO_COMPARISON = "jobs with different models or batches are not compared: each has its own group"


def _items_per_s(items: int, step: Measured) -> Measured:
    """Return items a second, as sure as the step."""
    value, low, high = (None if ns is None else items / ns * 1e9 for ns in (step.value, step.high, step.low))
    return Measured(value=value or 0.0, low=low, high=high, n=step.n)


def _accumulation_steps(batch: int | None, micro: int | None, data: int | None) -> int | None:
    if batch is None or micro is None or data is None or batch % (micro * data):
        return None
    return batch // (micro * data)


def _megatron_precision(arguments: Mapping[str, str]) -> str | None:
    if not arguments:
        return None
    flags = [key for key in ("bf16", "fp16") if arguments.get(key) == "True"]
    return flags[0] if flags else "fp32"


_PARTS = {
    "forward": "part_forward_ms", "forward-compute": "part_forward_ms", "backward": "part_backward_ms",
    "backward-compute": "part_backward_ms", "forward-backward": "part_computation_ms", "optimizer": "part_optimizer_ms",
    "batch generator": "part_data_ms", "batch-generator": "part_data_ms",
} | dict.fromkeys(
    (
        "allreduce", "backward-allreduce", "backward-params-all-reduce", "backward-reduce-model-grads", "grads-all-reduce",
        "grads-reduce-scatter", "all-grads-sync",
    ),
    "part_communication_ms",
)  # fmt: skip
"""Timer of a line ``time (ms) | forward: ..``, or of a block of lines, one each -> the figure that it is."""
_NAMES = b"|".join(name.encode() for name in _PARTS)
_TIMERS = re.compile(rb"\| (" + _NAMES + rb"): ([\d.]{1,20})(?=[ |]|$)")
_RANGE = re.compile(rb"(?:^|\s)(" + _NAMES + rb") \.{2,}: \([\d.]{1,20}, ([\d.]{1,20})\)")
"""A timer of a block: the least and the most of all ranks."""


def _take_timers(values: dict[str, float], timers: Sequence[tuple[bytes, bytes]]) -> None:
    """Put timers of one iteration into the parts of its step; of sums that hold others, nothing counts twice."""
    for name, text in timers:
        part, value = _PARTS[name.decode()], number_of(text)
        values[part] = max(value, values.get(part, 0.0))  # a sum beside what it is of
        if name == b"backward-allreduce" and "part_backward_ms" in values:
            values["part_backward_ms"] -= value


def _without_doubles(values: dict[str, float]) -> None:
    """Take what is timed within another part out of that one: batches are made within the forward pass, and in some versions
    gradients are summed within ``forward-backward``."""
    if "part_forward_ms" in values:
        values.pop("part_computation_ms", None)
    data_ms, sent_ms = values.get("part_data_ms", 0.0), values.get("part_communication_ms", 0.0)
    for outer in ("part_forward_ms", "part_computation_ms"):
        if values.get(outer, 0.0) > data_ms:
            values[outer] -= data_ms
    timed_ms = sum(value for name, value in values.items() if name.startswith("part_"))
    if timed_ms > values["step_time_ms"] and values.get("part_computation_ms", 0.0) > sent_ms:
        values["part_computation_ms"] -= sent_ms


@dataclass(kw_only=True)
class _Job(LoggedJob):
    """facts: the arguments, as printed. A step is a line of iterations, its time the mean over those since the last line.
    begun: it has a line of its own. gpu: from nvidia-smi's table. odd: iterations skipped, or with a NaN loss.

    world_size, data, tensor, pipeline: of its line `using world size`; None: the log has none. Before version 2 that line
    and the lines of iterations name fewer figures, and ``batch_size`` is that of one data-parallel rank.
    """

    begun: bool = False
    gpu: str | None = None
    world_size: int | None = None
    data: int | None = None
    tensor: int = 1
    pipeline: int = 1
    batches: set[int] = field(default_factory=set)
    validation_loss: float | None = None
    odd: Counter[str] = field(default_factory=Counter)
    parameters: dict[tuple[int, int], int] = field(default_factory=dict)
    peak_mib: float = 0.0
    memory_ranks: set[int] = field(default_factory=set)

    def read(self, lines: LogLines, number: int, raw: bytes, _form: bytes) -> Self | None:
        """Read one line; return the job that it begins or continues, None where it says nothing of one."""
        line, job = without_colours(raw), self
        if b"using world size" in line and (world := _WORLD.search(line)):
            return self._begins(lines.path, number, line, world)
        at = _ITERATION.search(line) if b"iteration" in line else None
        if not self.begun and not (at and _ELAPSED.search(line)):
            if self.gpu is None and (match := _GPU.match(line)):
                self.gpu = match[1].decode("ascii", errors="replace").strip()
            return None
        # An iteration before the last one: a job was restarted from a checkpoint.
        back = at is not None and int(at[1]) < self.last and b"elapsed time per iteration" in line
        if not self.begun or back:
            job = self.again(number, "gpu", "world_size", "data", "tensor", "pipeline", "parameters")
            job.begun = True
        job._read_line(lines, number, line, at)
        return None if job is self else job

    def _begins(self, path: Path, number: int, line: bytes, world: re.Match[bytes]) -> Self:
        """Return the job that a line of its layout begins. Raises DataError where ranks and layout contradict each other."""
        tensor, pipeline = (int(match[1]) if (match := part.search(line)) else 1 for part in (_TENSOR, _PIPELINE))
        ranks = int(world[1])
        data = int(world[2]) if world[2] else ranks // max(1, tensor)
        if min(ranks, data, tensor, pipeline) < 1 or ranks % (data * tensor * pipeline):
            raise DataError(
                f"{path}:{number}: {ranks} ranks are not {data} x {tensor} x {pipeline}",
                why="the job's settings contradict each other",
                fix="copy the file again",
            )
        job = type(self)(line=number, begun=True, gpu=self.gpu)
        job.world_size, job.data, job.tensor, job.pipeline = ranks, data, tensor, pipeline
        return job

    def _read_line(self, lines: LogLines, number: int, line: bytes, at: re.Match[bytes] | None) -> None:
        """Take in one line, in which several ranks may speak. at: its iteration."""
        if b"max allocated" in line:
            for memory in _MEMORY.finditer(line):
                if len(self.memory_ranks) < _MEMORY_RANKS:
                    self.memory_ranks.add(int(memory[1]))
                self.peak_mib = max(self.peak_mib, finite(memory[2]) or 0.0)
        if b"elapsed time per iteration" in line:
            self._iteration(lines, number, line, at)
        elif b"..." in line and (match := _ARGUMENT.search(line)):
            if not self.points and len(self.facts) < _ARGUMENTS_KEPT:
                self.facts[match[1].decode()] = match[2].decode("utf-8", errors="replace").strip()
        elif b"number of parameters on" in line:
            for part in _PARAMETERS.finditer(line):
                place = int(part[1]), int(part[2])
                if place[0] < self.tensor and place[1] < self.pipeline:
                    self.parameters[place] = int(part[3])
        elif b"time (ms) |" in line and self.points and b"rank=" not in line:
            _take_timers(self.points[-1].values, _TIMERS.findall(line))
        elif b".: (" in line and self.points and (timers := _RANGE.findall(line)):
            _take_timers(self.points[-1].values, timers)
        elif b"validation loss at" in line and (match := _VALIDATION.search(line)):
            self.validation_loss = finite(match[1])

    def _iteration(self, lines: LogLines, number: int, line: bytes, at: re.Match[bytes] | None) -> None:
        """Add a line of an iteration; a torn one is left out."""
        elapsed, batch = _ELAPSED.search(line), _BATCH.search(line)
        if at is None:
            if elapsed is not None:  # its beginning went to another line; others only speak of such lines
                lines.leave_out(number)
            return
        several = len(_ITERATION.findall(line)) > 1 or any(line.count(field) > 1 for field in _FIELDS)
        if several or (lines.rest and not line.endswith(b"|")):
            lines.leave_out(number)
            return
        ends = elapsed is not None and elapsed.end() == len(line)
        short = ends and any("loss" in point.values for point in self.points)  # others went on
        no_batch = (self.batches or b"consumed" in line) if batch is None else int(batch[1]) == 0
        if elapsed is None or short or no_batch:
            if lines.rest or not line.rstrip().endswith(b"|"):
                lines.leave_out(number)
                return
            raise DataError(
                f"{lines.path}:{number}: damaged iteration line",
                why=line.decode("utf-8", errors="replace").strip()[:120],
                fix="copy the file again",
            )
        time_ms = (finite(elapsed[2]) or 0.0) * (1.0 if elapsed[1] == b"ms" else 1e3)
        if time_ms <= 0:
            raise DataError(
                f"{lines.path}:{number}: elapsed time per iteration is {elapsed[2].decode()}",
                why="expected a number above 0",
            )
        if int(at[1]) == self.last:
            return  # logged twice
        self.points.append(LoggedStep(int(at[1]), values={"step_time_ms": time_ms}))
        self.total = int(at[2] or 0)
        self.batches |= {int(batch[1])} if batch is not None else set()
        self.odd.update({name.decode(): int(count) for name, count in _ODD.findall(line)})
        if loss := _LOSS.search(line):
            self.points[-1].values["loss"] = number_of(loss[1])

    def _batch(self) -> tuple[int | None, int | None]:
        """Return (the global batch, that of a rank)."""
        micro = self.count("micro_batch_size") or self.count("batch_size")
        batch = next(iter(self.batches)) if len(self.batches) == 1 else None
        if not self.batches and micro is not None and self.data is not None and "micro_batch_size" not in self.facts:
            batch = micro * self.data
        return batch, micro

    @property
    def _model(self) -> str:
        return f"GPT {self.facts.get('num_layers', '?')} x {self.facts.get('hidden_size', '?')}"

    def group(self, _: Path) -> str:
        batch = self._batch()[0]
        sequence, precision = self.count("seq_length"), _megatron_precision(self.facts)
        size = f"batch {batch or ('ramped' if self.batches else '?')}"
        return ", ".join([self._model, size, f"sequences of {sequence or '?'}", *([precision] if precision else [])])

    def run_fields(self) -> dict[str, Any]:
        """Return the fields of the run: layout, batches, settings."""
        batch, micro = self._batch()
        layout = None if self.data is None else f"dp{self.data} tp{self.tensor} pp{self.pipeline}"
        split = {"tensor_parallel": self.tensor, "pipeline_parallel": self.pipeline, "data_parallel": self.data}
        named = {"pipeline_chunks": self._chunks(), "sequence_length": self.count("seq_length")}
        kept = {key: self.facts[key] for key in _KEPT if self.facts.get(key, "None") != "None"}
        settings = {**(split if layout else {}), "pipeline_chunks": None, **kept, **named}
        return {
            "label": label(layout, self.world_size),
            "world_size": self.world_size,
            "model": self._model,
            "strategy": layout,
            "precision": _megatron_precision(self.facts),
            "accumulation": _accumulation_steps(batch, micro, self.data),
            "micro_batch": micro,
            "global_batch": batch,
            "device": "cuda",
            "backend": self.facts.get("distributed_backend"),
            "hardware": self.gpu,
            "num_parameters": self.num_parameters,
            "unit": "tokens" if named["sequence_length"] else "samples",
            "peak_memory_bytes": round(self.peak_mib * MIB) or None,
            "settings": {key: value for key, value in settings.items() if value is not None},
            "missing": {} if self.world_size is not None else {"world_size": _NO_WORLD},
        }

    def run(self, path: Path, run_id: str, unread: Sequence[str]) -> Imported:
        """Return the run with its items a second, and no change of the step where the batch grew."""
        for point in self.points:
            _without_doubles(point.values)
        imported = super().run(path, run_id, unread)
        (run,) = imported.runs
        items = (run.global_batch or 0) * (self.count("seq_length") or 1)
        rate = None if run.step_ns is None or not items else _items_per_s(items, run.step_ns)
        change = None if len(self.batches) > 1 else run.step_change
        return replace(imported, runs=(replace(run, samples_per_s=rate, step_change=change),))

    def _chunks(self) -> int | None:
        """Chunks of layers a pipeline rank holds (virtual stages); None: not interleaved, or not stated."""
        layers, per_chunk = self.count("num_layers"), self.count("num_layers_per_virtual_pipeline_stage")
        stages = self.pipeline * (per_chunk or 0)
        return layers // stages if layers and stages and layers % stages == 0 else None

    def so_far(self) -> str:
        return f"after iteration {self.last} of {self.total or 'unknown'}"

    @property
    def complete(self) -> bool:
        return self.last >= (self.total or 0)

    def notes(self) -> list[str]:
        """Return notes on what the step time rests on, and where the log ends."""
        interval = self.count("log_interval")
        figures = f"means of {interval} iterations" if interval and interval > 1 else "iterations"
        kept = max(1, len(self.points) - 1)
        notes = [f"step time is the median of {kept} {figures}, the first left out (warm-up)"]
        if not self.explained:
            notes.append(f"the log ends at iteration {self.last} of {self.total} {NO_REASON}")
        if skipped := self.odd["skipped"]:
            notes.append(f"{skipped} of {self.last} iterations were skipped by the loss scaler")
        if self.validation_loss is not None:
            notes.append(f"last validation loss {self.validation_loss:g}")
        if self.odd["nan"]:
            notes.append(f"{self.odd['nan']} iterations had a NaN loss")
        if len(self.batches) > 1:
            low, high = min(self.batches), max(self.batches)
            notes.append(f"the global batch changes from {low} to {high}: throughput is left out")
        if self.world_size is None:
            notes.append(_NO_WORLD)
        elif 0 < len(self.memory_ranks) < self.world_size:
            notes.append(f"memory of {len(self.memory_ranks)} of {self.world_size} ranks")
        if self.num_parameters:
            notes.append(
                "parameters are the sum over tensor and pipeline ranks: parameters that several ranks hold count "
                "several times"
            )
        return notes

    @property
    def num_parameters(self) -> int | None:
        """Sum over (tensor, pipeline) ranks; None until all were read."""
        complete = len(self.parameters) == self.tensor * self.pipeline
        return sum(self.parameters.values()) if complete else None

    def none(self, lines: LogLines) -> DataError:
        why = self.stopped or f"the job on {self.world_size} ranks exited before one, or the log was cut off"
        if not self.begun:
            why = f"none of its {lines.count} lines is one of an iteration" if lines.count else "the file is empty"
        fix = "pass the log of a job that trained; --log-interval sets how often it prints"
        return DataError(f"{lines.path}: no iteration was logged", why=why, fix=fix)


IMPORTER = job_log(
    "megatron_log",
    title="log of a Megatron-LM or Megatron-DeepSpeed job",
    job=lambda line: _Job(line=line),
    recognises=_knows_megatron,
    marks=("using world size", "elapsed time per iteration"),
    deep=True,
    compared=_with_strong_scaling,
    remarks=lambda runs: (_NO_COMPARISON,) if len({run.group for run in runs}) > 1 else (),
    rank=40,
)
