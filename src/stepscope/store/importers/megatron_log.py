"""Output of Megatron-LM and Megatron-DeepSpeed jobs: read line by line, of any length, all ranks' output mixed."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.records.nouns import Measured
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.log_lines import SUFFIXES, Ending, LogLines, finite, without_colours
from stepscope.store.training_runs import MIB, MS, ReadRun, imported_runs, label, steady_median, step_change

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


@dataclass(kw_only=True)
class _Job:
    """What one job of a log printed so far. elapsed_ms: one value a line, mean over the iterations since the last; numbers:
    the iteration of each.

    world_size, data, tensor, pipeline: of its line `using world size`; None: the log has none. Before version 2 that line
    and the lines of iterations name fewer figures, and ``batch_size`` is that of one data-parallel rank.
    """

    line: int
    world_size: int | None = None
    data: int | None = None
    tensor: int = 1
    pipeline: int = 1
    arguments: dict[str, str] = field(default_factory=dict)
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
    ending: Ending = field(default_factory=Ending)


def _knows(candidate: Candidate) -> bool:
    text = candidate.start
    return _WORLD.search(text) is not None or (
        _ITERATION.search(text) is not None and b"elapsed time per iteration" in text
    )


def _read(source: Candidate) -> Imported:
    parts, left_out = read_each(source, _knows, _read_file, suffixes=SUFFIXES)
    runs = [run for part in parts for run in part]
    several = len({each.run.group for each in runs}) > 1
    return imported_runs(
        "megatron_log",
        source,
        runs,
        compared=_with_scaling,
        remarks=(_NO_COMPARISON,) if several else (),
        left_out=left_out,
    )


def _with_scaling(runs: tuple[TrainingRun, ...]) -> tuple[TrainingRun, ...]:
    """Runs of one group have the same model and global batch: on several numbers of ranks, that is strong scaling."""
    sizes: dict[str, set[int | None]] = {}
    for run in runs:
        sizes.setdefault(run.group, set()).add(run.world_size)
    return tuple(
        replace(run, scaling="strong") if len(sizes[run.group]) > 1 and run.global_batch else run for run in runs
    )


_NO_COMPARISON = "jobs with different models or batches are not compared: each has its own group"


def _read_file(path: Path) -> tuple[ReadRun, ...]:
    """Every job of a log that printed at least one iteration. Raises DataError where none did."""
    lines = LogLines(path)
    jobs, gpu = _jobs(lines)
    timed = [job for job in jobs if job.elapsed_ms]
    if not timed:
        raise DataError(
            f"{path}: no iteration was logged",
            why=_why_none(jobs, lines.count),
            fix="pass the log of a job that trained; --log-interval sets how often it prints",
        )
    return tuple(
        _run(path, job, gpu, lines.notes() if job is timed[-1] else (), alone=len(timed) == 1) for job in timed
    )


def _why_none(jobs: list[_Job], lines: int) -> str:
    if not lines:
        return "the file is empty"
    if not jobs:
        return f"none of its {lines} lines is one of an iteration"
    return (
        jobs[-1].ending.stopped or f"the job on {jobs[-1].world_size} ranks exited before one, or the log was cut off"
    )


def _jobs(lines: LogLines) -> tuple[list[_Job], str | None]:
    """(jobs, name of the GPU from nvidia-smi's table)."""
    jobs: list[_Job] = []
    gpu = None
    for number, raw in lines:
        line = without_colours(raw)
        if b"using world size" in line and _WORLD.search(line):
            jobs.append(_new_job(lines.path, number, line))
        elif not jobs and _ITERATION.search(line) and _ELAPSED.search(line):
            jobs.append(_Job(line=number))
            _read_line(jobs[-1], lines, number, line)
        elif jobs:
            if _goes_back(jobs[-1], line):
                jobs.append(_restarted(jobs[-1], number))
            _read_line(jobs[-1], lines, number, line)
        elif gpu is None and (found := _GPU.match(line)):
            gpu = found[1].decode("ascii", errors="replace").strip()
    if jobs:
        jobs[-1].ending.read(lines.rest)
    return jobs, gpu


def _goes_back(job: _Job, line: bytes) -> bool:
    """Whether an iteration before the last one is logged: a job was restarted from a checkpoint."""
    if b"elapsed time per iteration" not in line or not job.elapsed_ms:
        return False
    found = _ITERATION.search(line)
    return found is not None and int(found[1]) < job.iteration


def _restarted(job: _Job, number: int) -> _Job:
    """The same job from line ``number`` on."""
    again = _Job(line=number, world_size=job.world_size, data=job.data, tensor=job.tensor, pipeline=job.pipeline)
    again.arguments, again.parameters = job.arguments, job.parameters
    return again


def _new_job(path: Path, number: int, line: bytes) -> _Job:
    found, tensor_found, pipeline_found = _WORLD.search(line), _TENSOR.search(line), _PIPELINE.search(line)
    world, tensor, pipeline = (int(each[1]) if each else 1 for each in (found, tensor_found, pipeline_found))
    data = int(found[2]) if found and found[2] else world // max(1, tensor)
    if min(world, data, tensor, pipeline) < 1 or world % (data * tensor * pipeline):
        raise DataError(
            f"{path}:{number}: {world} ranks are not {data} x {tensor} x {pipeline}",
            why="the job's settings contradict each other",
            fix="copy the file again",
        )
    return _Job(line=number, world_size=world, data=data, tensor=tensor, pipeline=pipeline)


def _read_line(job: _Job, lines: LogLines, number: int, line: bytes) -> None:
    """Take in one line, in which several ranks may speak."""
    if b"max allocated" in line:
        for memory in _MEMORY.finditer(line):
            if len(job.memory_ranks) < _MEMORY_RANKS:
                job.memory_ranks.add(int(memory[1]))
            job.peak_mib = max(job.peak_mib, finite(memory[2]) or 0.0)
    if b"elapsed time per iteration" in line:
        _iteration(job, lines, number, line)
    elif b"..." in line and (found := _ARGUMENT.search(line)):
        if not job.elapsed_ms and len(job.arguments) < _ARGUMENTS_KEPT:
            job.arguments[found[1].decode()] = found[2].decode("utf-8", errors="replace").strip()
    elif b"number of parameters on" in line:
        for part in _PARAMETERS.finditer(line):
            place = int(part[1]), int(part[2])
            if place[0] < job.tensor and place[1] < job.pipeline:
                job.parameters[place] = int(part[3])
    elif b"validation loss at" in line and (found := _VALIDATION.search(line)):
        job.validation_loss = finite(found[1])
    else:
        job.ending.read(line)


def _iteration(job: _Job, lines: LogLines, number: int, line: bytes) -> None:
    at, elapsed, batch = _ITERATION.search(line), _ELAPSED.search(line), _BATCH.search(line)
    if at is None:
        if elapsed is not None:  # its beginning went to another line; others only speak of such lines
            lines.leave_out(number)
        return
    several = len(_ITERATION.findall(line)) > 1 or any(line.count(field) > 1 for field in _FIELDS)
    if several or (lines.rest and not line.endswith(b"|")):
        lines.leave_out(number)
        return
    short = elapsed is not None and elapsed.end() == len(line) and job.loss is not None  # others went on
    if (
        elapsed is None
        or short
        or (batch is None and (job.batches or b"consumed" in line))
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
    if job.elapsed_ms and int(at[1]) == job.iteration:
        return  # logged twice
    job.elapsed_ms.append(time_ms)
    job.numbers.append(int(at[1]))
    job.batches |= {int(batch[1])} if batch is not None else set()
    job.iteration, job.iterations = int(at[1]), int(at[2] or 0)
    job.skipped += _counted(_SKIPPED, line)
    job.nan += _counted(_NAN, line)
    if loss := _LOSS.search(line):
        job.loss = finite(loss[1])


def _counted(pattern: re.Pattern[bytes], line: bytes) -> int:
    found = pattern.search(line)
    return int(found[1]) if found else 0


def _run(path: Path, job: _Job, gpu: str | None, left_out: Iterable[str], *, alone: bool) -> ReadRun:
    steady = job.elapsed_ms[1:] or job.elapsed_ms
    step, interval = steady_median([ms * MS for ms in steady]), _whole(job, "log_interval")
    sequence, micro = _whole(job, "seq_length"), _whole(job, "micro_batch_size") or _whole(job, "batch_size")
    batch = next(iter(job.batches)) if len(job.batches) == 1 else None
    if not job.batches and micro is not None and job.data is not None and "micro_batch_size" not in job.arguments:
        batch = micro * job.data
    done = f"after iteration {job.iteration} of {job.iterations or 'unknown'}"
    status, error = job.ending.status(done, complete=job.iteration >= job.iterations)
    model = f"GPT {job.arguments.get('num_layers', '?')} x {job.arguments.get('hidden_size', '?')}"
    layout = None if job.data is None else f"dp{job.data} tp{job.tensor} pp{job.pipeline}"
    precision = _precision(job)
    parts = (
        model,
        f"batch {batch or ('ramped' if job.batches else '?')}",
        f"sequences of {sequence or '?'}",
        precision or "",
    )
    items = None if batch is None else batch * (sequence or 1)
    unread = tuple(left_out)
    run = TrainingRun(
        run_id=path.stem if alone else f"{path.stem}-line{job.line}",
        label=label(layout, job.world_size),
        group=", ".join(part for part in parts if part),
        source=f"{path}:{job.line}",
        status=status,
        error=error,
        world_size=job.world_size,
        model=model,
        strategy=layout,
        precision=precision,
        accumulation=_accumulation(batch, micro, job.data),
        micro_batch=micro,
        global_batch=batch,
        device="cuda",
        backend=job.arguments.get("distributed_backend"),
        hardware=gpu,
        num_parameters=_parameters(job),
        step_ns=step,
        samples_per_s=None if items is None else _rate(items, step),
        unit="tokens" if sequence else "samples",
        train_loss=job.loss,
        peak_memory_bytes=round(job.peak_mib * MIB) or None,
        settings={
            **(
                {"tensor_parallel": job.tensor, "pipeline_parallel": job.pipeline, "data_parallel": job.data}
                if job.data is not None
                else {}
            ),
            **({} if (chunks := _chunks(job)) is None else {"pipeline_chunks": chunks}),
            **{key: job.arguments[key] for key in _KEPT if job.arguments.get(key, "None") != "None"},
            **({} if sequence is None else {"sequence_length": sequence}),
        },
        notes=(*_notes(job, interval), *unread),
        step_change=None if len(job.batches) > 1 else step_change(job.numbers, [ms * MS for ms in job.elapsed_ms]),
        missing={} if job.world_size is not None else {"world_size": _NO_WORLD},
    )
    return ReadRun(run=run, unread=unread)


def _rate(items: int, step: Measured) -> Measured:
    """Items a second, as sure as the step."""
    return Measured(
        value=items / step.value * 1e9,
        low=None if step.high is None else items / step.high * 1e9,
        high=None if step.low is None else items / step.low * 1e9,
        n=step.n,
    )


def _chunks(job: _Job) -> int | None:
    """Chunks of layers a pipeline rank holds (virtual stages); None: not interleaved, or not stated."""
    layers, each = _whole(job, "num_layers"), _whole(job, "num_layers_per_virtual_pipeline_stage")
    return layers // (job.pipeline * each) if layers and each and layers % (job.pipeline * each) == 0 else None


def _accumulation(batch: int | None, micro: int | None, data: int | None) -> int | None:
    if batch is None or micro is None or data is None or batch % (micro * data):
        return None
    return batch // (micro * data)


def _notes(job: _Job, interval: int | None) -> tuple[str, ...]:
    each = f"means of {interval} iterations" if interval and interval > 1 else "iterations"
    kept = max(1, len(job.elapsed_ms) - 1)
    notes = [f"step time is the median of {kept} {each}, the first left out (warm-up)"]
    if job.ending.stopped is None and job.iteration < job.iterations:
        notes.append(f"the log ends at iteration {job.iteration} of {job.iterations} and does not state why")
    if job.skipped:
        notes.append(f"{job.skipped} of {job.iteration} iterations were skipped by the loss scaler")
    if job.validation_loss is not None:
        notes.append(f"last validation loss {job.validation_loss:g}")
    if job.nan:
        notes.append(f"{job.nan} iterations had a NaN loss")
    if len(job.batches) > 1:
        low, high = min(job.batches), max(job.batches)
        notes.append(f"the global batch changes from {low} to {high}: throughput is left out")
    if job.world_size is None:
        notes.append(_NO_WORLD)
    elif 0 < len(job.memory_ranks) < job.world_size:
        notes.append(f"memory of {len(job.memory_ranks)} of {job.world_size} ranks")
    if _parameters(job):
        notes.append(
            "parameters are the sum over tensor and pipeline ranks: parameters that several ranks hold count several times"
        )
    return tuple(notes)


def _parameters(job: _Job) -> int | None:
    """Sum over (tensor, pipeline) ranks; None until all were read."""
    complete = len(job.parameters) == job.tensor * job.pipeline
    return sum(job.parameters.values()) if complete else None


def _precision(job: _Job) -> str | None:
    if not job.arguments:
        return None
    flags = [key for key in ("bf16", "fp16") if job.arguments.get(key) == "True"]
    return flags[0] if flags else "fp32"


def _whole(job: _Job, key: str) -> int | None:
    text = job.arguments.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None


IMPORTER = Importer(
    title="log of a Megatron-LM or Megatron-DeepSpeed job",
    marks=("using world size", "elapsed time per iteration"),
    deep=True,
    recognises=_knows,
    read_files=_read,
    rank=40,
)
