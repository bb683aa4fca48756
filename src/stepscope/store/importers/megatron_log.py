"""Output of Megatron-LM and Megatron-DeepSpeed jobs: read line by line, of any length, all ranks' output mixed."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from stepscope.core.errors import DataError
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate
from stepscope.store.log_lines import LogLines, finite, without_colours
from stepscope.store.step_log import Job, job_log
from stepscope.store.training_runs import MIB, MS, ReadRun, label, steady_median, step_change

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
_SKIPPED = re.compile(rb"number of skipped iterations: +(\d{1,9})(?=[ |]|$)")
_NAN = re.compile(rb"number of nan iterations: +(\d{1,9})(?=[ |]|$)")
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


def _knows(candidate: Candidate) -> bool:
    text = candidate.start
    return _WORLD.search(text) is not None or (
        _ITERATION.search(text) is not None and b"elapsed time per iteration" in text
    )


def _with_scaling(runs: tuple[TrainingRun, ...]) -> tuple[TrainingRun, ...]:
    """Call runs on several numbers of ranks strong scaling: those of one group have the same model and global batch."""
    sizes: dict[str, set[int | None]] = {}
    for run in runs:
        sizes.setdefault(run.group, set()).add(run.world_size)
    return tuple(
        replace(run, scaling="strong") if len(sizes[run.group]) > 1 and run.global_batch else run for run in runs
    )


_NO_COMPARISON = "jobs with different models or batches are not compared: each has its own group"


def _counted(pattern: re.Pattern[bytes], line: bytes) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 0


def _rate(items: int, step: Measured) -> Measured:
    """Return items a second, as sure as the step."""
    return Measured(
        value=items / step.value * 1e9,
        low=None if step.high is None else items / step.high * 1e9,
        high=None if step.low is None else items / step.low * 1e9,
        n=step.n,
    )


def _accumulation(batch: int | None, micro: int | None, data: int | None) -> int | None:
    if batch is None or micro is None or data is None or batch % (micro * data):
        return None
    return batch // (micro * data)


def _precision(arguments: Mapping[str, str]) -> str | None:
    if not arguments:
        return None
    flags = [key for key in ("bf16", "fp16") if arguments.get(key) == "True"]
    return flags[0] if flags else "fp32"


@dataclass(kw_only=True)
class _Job(Job):
    """facts: the arguments, as printed. elapsed_ms: one value a line of iterations, mean over the iterations since the last;
    numbers: the iteration of each. begun: it has a line of its own. gpu: from nvidia-smi's table.

    world_size, data, tensor, pipeline: of its line `using world size`; None: the log has none. Before version 2 that line
    and the lines of iterations name fewer figures, and ``batch_size`` is that of one data-parallel rank.
    """

    begun: bool = False
    gpu: str | None = None
    world_size: int | None = None
    data: int | None = None
    tensor: int = 1
    pipeline: int = 1
    elapsed_ms: array[float] = field(default_factory=lambda: array("d"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    batches: set[int] = field(default_factory=set)
    iteration: int = 0
    iterations: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    skipped: int = 0
    nan: int = 0
    parameters: dict[tuple[int, int], int] = field(default_factory=dict)
    peak_mib: float = 0.0
    memory_ranks: set[int] = field(default_factory=set)

    def read(self, lines: LogLines, number: int, raw: bytes) -> Self | None:
        line, job = without_colours(raw), self
        if b"using world size" in line and _WORLD.search(line):
            return self._begins(lines.path, number, line)
        if not self.begun and not (_ITERATION.search(line) and _ELAPSED.search(line)):
            if self.gpu is None and (match := _GPU.match(line)):
                self.gpu = match[1].decode("ascii", errors="replace").strip()
            return None
        if not self.begun or self._goes_back(line):
            same = ("gpu", "world_size", "data", "tensor", "pipeline", "facts", "parameters")
            job = type(self)(line=number, begun=True, **{name: getattr(self, name) for name in same})
        job._read_line(lines, number, line)
        return None if job is self else job

    def _begins(self, path: Path, number: int, line: bytes) -> Self:
        world_match, tensor_match, pipeline_match = _WORLD.search(line), _TENSOR.search(line), _PIPELINE.search(line)
        world, tensor, pipeline = (
            int(match[1]) if match else 1 for match in (world_match, tensor_match, pipeline_match)
        )
        data = int(world_match[2]) if world_match and world_match[2] else world // max(1, tensor)
        if min(world, data, tensor, pipeline) < 1 or world % (data * tensor * pipeline):
            raise DataError(
                f"{path}:{number}: {world} ranks are not {data} x {tensor} x {pipeline}",
                why="the job's settings contradict each other",
                fix="copy the file again",
            )
        job = type(self)(line=number, begun=True, gpu=self.gpu)
        job.world_size, job.data, job.tensor, job.pipeline = world, data, tensor, pipeline
        return job

    def _goes_back(self, line: bytes) -> bool:
        """Return whether an iteration before the last one is logged: a job was restarted from a checkpoint."""
        if b"elapsed time per iteration" not in line or not self.elapsed_ms:
            return False
        match = _ITERATION.search(line)
        return match is not None and int(match[1]) < self.iteration

    def _read_line(self, lines: LogLines, number: int, line: bytes) -> None:
        """Take in one line, in which several ranks may speak."""
        if b"max allocated" in line:
            for memory in _MEMORY.finditer(line):
                if len(self.memory_ranks) < _MEMORY_RANKS:
                    self.memory_ranks.add(int(memory[1]))
                self.peak_mib = max(self.peak_mib, finite(memory[2]) or 0.0)
        if b"elapsed time per iteration" in line:
            self._iteration(lines, number, line)
        elif b"..." in line and (match := _ARGUMENT.search(line)):
            if not self.elapsed_ms and len(self.facts) < _ARGUMENTS_KEPT:
                self.facts[match[1].decode()] = match[2].decode("utf-8", errors="replace").strip()
        elif b"number of parameters on" in line:
            for part in _PARAMETERS.finditer(line):
                place = int(part[1]), int(part[2])
                if place[0] < self.tensor and place[1] < self.pipeline:
                    self.parameters[place] = int(part[3])
        elif b"validation loss at" in line and (match := _VALIDATION.search(line)):
            self.validation_loss = finite(match[1])
        else:
            self.ending.read(line)

    def _iteration(self, lines: LogLines, number: int, line: bytes) -> None:
        at, elapsed, batch = _ITERATION.search(line), _ELAPSED.search(line), _BATCH.search(line)
        if at is None:
            if elapsed is not None:  # its beginning went to another line; others only speak of such lines
                lines.leave_out(number)
            return
        several = len(_ITERATION.findall(line)) > 1 or any(line.count(field) > 1 for field in _FIELDS)
        if several or (lines.rest and not line.endswith(b"|")):
            lines.leave_out(number)
            return
        short = elapsed is not None and elapsed.end() == len(line) and self.loss is not None  # others went on
        if (
            elapsed is None
            or short
            or (batch is None and (self.batches or b"consumed" in line))
            or (batch is not None and int(batch[1]) == 0)
        ):
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
        if self.elapsed_ms and int(at[1]) == self.iteration:
            return  # logged twice
        self.elapsed_ms.append(time_ms)
        self.numbers.append(int(at[1]))
        self.batches |= {int(batch[1])} if batch is not None else set()
        self.iteration, self.iterations = int(at[1]), int(at[2] or 0)
        self.skipped += _counted(_SKIPPED, line)
        self.nan += _counted(_NAN, line)
        if loss := _LOSS.search(line):
            self.loss = finite(loss[1])

    def run(self, path: Path, run_id: str, unread: Sequence[str]) -> ReadRun:
        steady = self.elapsed_ms[1:] or self.elapsed_ms
        step = steady_median([ms * MS for ms in steady])
        sequence, micro = self.count("seq_length"), self.count("micro_batch_size") or self.count("batch_size")
        batch = next(iter(self.batches)) if len(self.batches) == 1 else None
        if not self.batches and micro is not None and self.data is not None and "micro_batch_size" not in self.facts:
            batch = micro * self.data
        done = f"after iteration {self.iteration} of {self.iterations or 'unknown'}"
        status, error = self.ending.status(done, complete=self.iteration >= self.iterations)
        model = f"GPT {self.facts.get('num_layers', '?')} x {self.facts.get('hidden_size', '?')}"
        layout = None if self.data is None else f"dp{self.data} tp{self.tensor} pp{self.pipeline}"
        precision = _precision(self.facts)
        parts = (
            model,
            f"batch {batch or ('ramped' if self.batches else '?')}",
            f"sequences of {sequence or '?'}",
            precision or "",
        )
        items = None if batch is None else batch * (sequence or 1)
        run = TrainingRun(
            run_id=run_id,
            label=label(layout, self.world_size),
            group=", ".join(part for part in parts if part),
            source=f"{path}:{self.line}",
            status=status,
            error=error,
            world_size=self.world_size,
            model=model,
            strategy=layout,
            precision=precision,
            accumulation=_accumulation(batch, micro, self.data),
            micro_batch=micro,
            global_batch=batch,
            device="cuda",
            backend=self.facts.get("distributed_backend"),
            hardware=self.gpu,
            num_parameters=self.num_parameters,
            step_ns=step,
            samples_per_s=None if items is None else _rate(items, step),
            unit="tokens" if sequence else "samples",
            train_loss=self.loss,
            peak_memory_bytes=round(self.peak_mib * MIB) or None,
            settings={
                **(
                    {"tensor_parallel": self.tensor, "pipeline_parallel": self.pipeline, "data_parallel": self.data}
                    if self.data is not None
                    else {}
                ),
                **({} if (chunks := self._chunks()) is None else {"pipeline_chunks": chunks}),
                **{key: self.facts[key] for key in _KEPT if self.facts.get(key, "None") != "None"},
                **({} if sequence is None else {"sequence_length": sequence}),
            },
            notes=(*self.notes(), *unread),
            step_change=None
            if len(self.batches) > 1
            else step_change(self.numbers, [ms * MS for ms in self.elapsed_ms]),
            missing={} if self.world_size is not None else {"world_size": _NO_WORLD},
        )
        return ReadRun(run=run, unread=tuple(unread))

    def _chunks(self) -> int | None:
        """Chunks of layers a pipeline rank holds (virtual stages); None: not interleaved, or not stated."""
        layers, per_chunk = self.count("num_layers"), self.count("num_layers_per_virtual_pipeline_stage")
        return (
            layers // (self.pipeline * per_chunk)
            if layers and per_chunk and layers % (self.pipeline * per_chunk) == 0
            else None
        )

    def notes(self) -> list[str]:
        interval = self.count("log_interval")
        figures = f"means of {interval} iterations" if interval and interval > 1 else "iterations"
        kept = max(1, len(self.elapsed_ms) - 1)
        notes = [f"step time is the median of {kept} {figures}, the first left out (warm-up)"]
        if self.ending.stopped is None and self.iteration < self.iterations:
            notes.append(f"the log ends at iteration {self.iteration} of {self.iterations} and does not state why")
        if self.skipped:
            notes.append(f"{self.skipped} of {self.iteration} iterations were skipped by the loss scaler")
        if self.validation_loss is not None:
            notes.append(f"last validation loss {self.validation_loss:g}")
        if self.nan:
            notes.append(f"{self.nan} iterations had a NaN loss")
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
        why = self.ending.stopped or f"the job on {self.world_size} ranks exited before one, or the log was cut off"
        if not self.begun:
            why = f"none of its {lines.count} lines is one of an iteration" if lines.count else "the file is empty"
        fix = "pass the log of a job that trained; --log-interval sets how often it prints"
        return DataError(f"{lines.path}: no iteration was logged", why=why, fix=fix)

    @property
    def last(self) -> int:
        return self.iteration if self.elapsed_ms else -1


IMPORTER = job_log(
    "megatron_log",
    title="log of a Megatron-LM or Megatron-DeepSpeed job",
    job=lambda line: _Job(line=line),
    recognises=_knows,
    marks=("using world size", "elapsed time per iteration"),
    deep=True,
    compared=_with_scaling,
    remarks=lambda runs: (_NO_COMPARISON,) if len({run_read.run.group for run_read in runs}) > 1 else (),
    rank=40,
)
