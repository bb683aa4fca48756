"""One cell on one rank: data, model, strategy; warm-up and timed steps or epochs; then the checks and the summary.

Three profiled steps, after and apart from the timed ones; every rank profiles the same steps.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.words import counted
from stepscope.datasets import Prepared
from stepscope.datasets.batches import Options as BatchOptions
from stepscope.predict.specs import Specs, specs_of
from stepscope.rank import flight, plancheck
from stepscope.rank.backward import backward_profile
from stepscope.rank.loading import Batch, Loader, MadeBatches, Seen, maker
from stepscope.rank.memory import PeakTracker, Recomputed, TensorAccount
from stepscope.rank.mesh import reset
from stepscope.rank.pace import Pace
from stepscope.rank.precision import Numerics
from stepscope.rank.recorder import Recorder, StepFacts
from stepscope.rank.sampling import Sampling, StepSamples
from stepscope.rank.startup import RankContext
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.strategies import Session
from stepscope.rank.timer import GradientReadiness, Regions, step_timer
from stepscope.rank.training import PlantedFaults, Training, correct_answers, parameter_checksum, recompute
from stepscope.rank.workloads import REGISTRY as MODULES
from stepscope.rank.workloads import Task
from stepscope.records import codec
from stepscope.records.cell import CellSpec
from stepscope.records.plan import CommOp
from stepscope.records.samples import EpochResult, RankSummary, SamplesHeader
from stepscope.store.layout import CellLayout
from stepscope.store.writer import make_dir, write_record, writing

WARMUP_STEPS = 1
PROFILED_STEPS = 3


def profile_steps(
    cell: CellSpec,
    context: RankContext,
    training: Training,
    windows: Iterator[tuple[StepSamples, Iterator[Batch]]],
    plan: tuple[CommOp, ...],
    files: CellLayout,
) -> str:
    """Write this rank's trace (Kineto JSON, gzip) and return its path relative to the cell's folder."""
    rank = context.mesh.rank
    make_dir(files.traces)
    path = files.trace(rank)
    activities = [ProfilerActivity.CPU]
    if context.mesh.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    regions = Regions(enabled=True)
    # Only what changes between ranks and cells; the profiler itself adds the world and its groups (distributedInfo).
    metadata = {
        "rank": rank,
        "world_size": cell.world_size,
        "host": context.pulse.host,
        "strategy": cell.strategy,
        "cell_id": cell.cell_id,
        "mesh": dict(cell.mesh),
        "communication_plan": codec.to_builtins(plan),
    }
    context.control.barrier()
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=PROFILED_STEPS, repeat=1),
        on_trace_ready=lambda profiler: _export_trace(profiler, path),
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        for number in range(WARMUP_STEPS + PROFILED_STEPS):
            window, batches = next(windows)
            with regions(Regions.STEP):
                training.step(window, batches, regions)
            if number == WARMUP_STEPS + PROFILED_STEPS - 1:
                # Before the last step(): metadata added later is lost without a word.
                for key, value in metadata.items():
                    profiler.add_metadata_json(f"stepscope.{key}", json.dumps(value))
            profiler.step()
    if context.group.tensorboard_dir is not None:
        _copy_trace_for_tensorboard(path, Path(context.group.tensorboard_dir), cell, context)
    return str(path.relative_to(files.root))


def _export_trace(profiler: torch.profiler.profile, path: Path) -> None:
    with writing(path):
        profiler.export_chrome_trace(str(path))


def _copy_trace_for_tensorboard(path: Path, folder: Path, cell: CellSpec, context: RankContext) -> None:
    """Copy the trace to RUN/WORKER.TIME.pt.trace.json.gz, where TensorBoard's profiler page looks for it."""
    run = make_dir(folder / cell.cell_id)
    worker = f"{context.pulse.host}_rank{context.mesh.rank}"
    target = run / f"{worker}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
    with writing(target):
        shutil.copyfile(path, target)


@record
class _Subject:
    """Everything built for one round of a cell."""

    prepared: Prepared
    tracker: PeakTracker
    specs: Specs
    task: Task
    session: Session
    training: Training
    planted: PlantedFaults | None
    loader: Loader | MadeBatches
    readiness: GradientReadiness | None
    numerics: Numerics
    recomputed: Recomputed | None


def run_cell(cell: CellSpec, context: RankContext, *, round_index: int) -> None:
    """Run one round; the last round writes the summary that tells the controller that this rank is through."""
    files = context.layout.cell(cell.cell_id)
    context = replace(context, mesh=context.mesh.shaped(cell.mesh))
    context.pulse.enter("data")
    device = context.mesh.device
    reset(device, seed=cell.seed, threads=context.group.threads_per_rank, cudnn_benchmark=cell.cudnn_benchmark)
    tracker = PeakTracker(device)
    tracker.start()
    specs = specs_of(cell, warmup_steps=context.group.measure.warmup_steps)
    prepared = _prepared_data(cell, context, specs)
    context.pulse.enter("build")
    subject = _built_subject(cell, context, specs, prepared, tracker)
    try:
        with Recorder(files.samples(context.mesh.rank), _samples_header(cell, context, subject)) as recorder:
            summary = _measured_round(cell, context, subject, recorder, round_index)
        if round_index == context.group.measure.rounds - 1:
            summary = _concluded_summary(cell, context, subject, summary, files)
            write_record(files.summary(context.mesh.rank), summary)
    finally:
        _close_subject(subject)


def _samples_header(cell: CellSpec, context: RankContext, subject: _Subject) -> SamplesHeader:
    """Return the header of the samples: clock, columns and what they count."""
    timed = subject.session.scheduled is not None or not subject.specs.strategy.sharded
    return SamplesHeader(
        cell_id=cell.cell_id,
        rank=context.mesh.rank,
        world_size=cell.world_size,
        clock=step_timer(context.mesh.device).clock,
        comm_source="hook" if timed else "none",
    )


def _prepared_data(cell: CellSpec, context: RankContext, specs: Specs) -> Prepared:
    """Return the cell's arrays: the first rank of each host builds the cache, the others map it."""
    dataset, options = specs.dataset, specs.dataset_options
    data_dir = None if context.group.data_dir is None else Path(context.group.data_dir)
    files = dataset.locate(options, data_dir)
    prepare = partial(dataset.prepare, options, specs.needs, files, Path(context.group.cache_dir))
    first = context.place.local_rank == 0
    prepared = prepare() if first else None
    context.control.barrier()
    prepared = prepared or prepare()
    if not cell.facts and len(prepared.train) < cell.global_batch:
        raise UsageError(
            f"{cell.dataset} has {counted(len(prepared.train), 'training sample')}, fewer than one global batch of "
            f"{cell.global_batch}",
            fix="use a smaller batch or more data",
        )
    return prepared


def _built_subject(
    cell: CellSpec, context: RankContext, specs: Specs, prepared: Prepared, tracker: PeakTracker
) -> _Subject:
    """Return what a cell trains: module, optimizer, loader and their session."""
    device, mesh = context.mesh.device, context.mesh
    task = MODULES.load(cell.workload)(specs.model, specs.needs, cell.loss)
    numerics = Numerics(cell.precision, device)
    module = numerics.prepare(task.module)
    actual = [(name, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
    planned = [(p.name, p.numel) for p in specs.facts.parameters]
    assert actual == planned, f"the module's parameters differ from the workload's spec: {actual} != {planned}"
    if cell.facts and mesh.world_size > 1:
        _same_on_all_ranks(module)  # whatever the user's function drew its first values from
    recomputed = None
    if cell.activation_checkpointing != "none":
        blocks = [module.get_submodule(path) for path in specs.facts.blocks]
        recomputed = recompute(blocks, cell.activation_checkpointing)
    timer = step_timer(device)
    hooked = specs.strategy.collective and not specs.strategy.sharded  # a sharded parameter has no gradient of its own
    readiness = GradientReadiness(module, timer) if hooked else None
    session = IMPLEMENTATIONS.load(cell.strategy)(module, mesh, specs.strategy_options, specs.facts)
    # From here on ranks may draw different numbers (dropout); until here they must not.
    torch.manual_seed(cell.seed + 1 + mesh.data_rank)
    planted = None if cell.inject is None else PlantedFaults(cell, rank=mesh.rank, device=device)
    training = Training(cell, task, session, numerics, timer, readiness, planted=planted)
    sampling = Sampling(
        num_samples=len(prepared.train) or cell.global_batch,
        world_size=mesh.data_size,
        micro_batch=cell.micro_batch,
        accumulation=cell.accumulation,
        seed=cell.seed,
    )
    loader: Loader | MadeBatches
    if isinstance(specs.dataset_options, BatchOptions):
        make = maker(task, specs.dataset_options, numerics)
        loader = MadeBatches(
            make, sampling, rank=mesh.data_rank, device=device, distinct=specs.dataset_options.distinct
        )
    else:
        loader = Loader(
            prepared.train,
            sampling,
            rank=mesh.data_rank,
            device=device,
            num_workers=cell.num_workers,
            pin_memory=cell.pin_memory,
            persistent_workers=cell.persistent_workers,
        )
    return _Subject(
        prepared=prepared,
        tracker=tracker,
        specs=specs,
        task=task,
        session=session,
        training=training,
        planted=planted,
        loader=loader,
        readiness=readiness,
        numerics=numerics,
        recomputed=recomputed,
    )


@torch.no_grad()
def _same_on_all_ranks(module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor, src=0)


def _close_subject(subject: _Subject) -> None:
    subject.loader.close()
    subject.session.close()
    if subject.readiness is not None:
        subject.readiness.close()
    subject.numerics.close()


def _measured_round(
    cell: CellSpec, context: RankContext, subject: _Subject, recorder: Recorder, round_index: int
) -> RankSummary:
    """Train one round: warm-up, timed steps, epochs; return its summary."""
    loader, measure = subject.loader, context.group.measure
    per_epoch = loader.sampling.windows_per_epoch
    pace = Pace(
        cell,
        measure,
        context.control,
        recorder,
        min_warmup=_steps_until_typical(subject),
        epoch_steps=None if cell.epochs is None else cell.epochs * per_epoch,
    )
    plain = Regions(enabled=False)
    queue = _RunQueue()
    step = 0
    counts = context.mesh.counts if subject.session.counts is None else subject.session.counts
    epochs = context.epochs.setdefault(cell.cell_id, [])

    def run(windows: Iterator[tuple[StepSamples, Iterator[Batch]]]) -> None:
        """Train these windows of samples, a step each."""
        nonlocal step, queue
        for window, batches in windows:
            context.pulse.step = step
            stepped = subject.training.step(window, batches, plain)
            facts = StepFacts(
                round=round_index,
                step=step,
                epoch=window.epoch,
                warmup=pace.warming,
                full=window.full,
                samples=stepped.samples if counts else 0,
                global_samples=window.global_samples,
                host_data_ns=stepped.host_data_ns,
            )
            loss_sum = stepped.loss_sum if counts else torch.zeros(())
            recorder.add(facts, stepped.pending, loss_sum)
            warming = pace.warming
            pace.after_step(full=window.full)
            if warming and not pace.warming:
                queue = _RunQueue()
                if subject.planted is not None:
                    subject.planted.forget()
            step += 1
            context.pulse.phase = "warmup" if pace.warming else "measure"
            if pace.stop_reason is not None:
                return

    context.pulse.enter("warmup" if pace.warming else "measure")
    if cell.epochs is None:
        run(loader.endless())
    else:
        assert isinstance(loader, Loader)
        for epoch in range(cell.epochs):
            run(loader.epoch(epoch))
            recorder.flush()
            epochs.append(_finish_epoch(cell, context, subject, loader.seen, recorder, round_index, epoch))
    delay = queue.delay_fraction
    recorder.flush()
    subject.tracker.pause()
    return replace(_rank_summary(cell, context, subject, pace, tuple(epochs)), run_delay_fraction=delay)


class _RunQueue:
    """Measures how long this thread has been ready to run without a processor since the object was made."""

    def __init__(self) -> None:
        self._began = perf_counter_ns(), self._delayed_ns()

    @staticmethod
    def _delayed_ns() -> int | None:
        try:
            return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):  # a kernel without scheduler statistics
            return None

    @property
    def delay_fraction(self) -> float | None:
        began_ns, delayed_ns = self._began
        now_ns = self._delayed_ns()
        if delayed_ns is None or now_ns is None:
            return None
        return (now_ns - delayed_ns) / max(perf_counter_ns() - began_ns, 1)


def _finish_epoch(
    cell: CellSpec,
    context: RankContext,
    subject: _Subject,
    seen: Seen,
    recorder: Recorder,
    round_index: int,
    epoch: int,
) -> EpochResult:
    """Evaluate an epoch; return its loss and accuracy over all ranks."""
    phase = context.pulse.phase
    context.pulse.enter("evaluate", step=context.pulse.step)
    own_loss = recorder.epoch_loss[epoch]
    losses = context.control.all_gather(own_loss if math.isfinite(own_loss) else None)  # as JSON, which knows no NaN
    train_loss = math.fsum(math.nan if loss is None else loss for loss in losses)
    subject.tracker.pause()
    accuracy = _test_accuracy(cell, context, subject)
    subject.tracker.start()
    context.pulse.enter(phase, step=context.pulse.step)
    finite = math.isfinite(train_loss)
    return EpochResult(
        round=round_index,
        epoch=epoch,
        train_loss=train_loss / len(subject.prepared.train) if finite else None,
        non_finite=not finite,
        test_accuracy=accuracy,
        samples_seen=seen.samples if context.mesh.counts else 0,
        distinct_samples_seen=seen.distinct_samples,
        epoch_ns=recorder.epoch_step_ns[epoch],
    )


def _test_accuracy(cell: CellSpec, context: RankContext, subject: _Subject) -> float | None:
    """Return the share of right answers on the test split; None where there is none or its labels mean nothing."""
    test = subject.prepared.test
    if not subject.prepared.real_labels or len(test) == 0:
        return None
    right = correct_answers(subject.task, subject.numerics, test, context.mesh, micro_batch=cell.micro_batch)
    return float(math.fsum(context.control.all_gather(right)) / len(test))


def _rank_summary(
    cell: CellSpec, context: RankContext, subject: _Subject, pace: Pace, epochs: tuple[EpochResult, ...]
) -> RankSummary:
    """Return the summary of a rank: steps, epochs, peak memory."""
    peak, unsure = subject.tracker.peak, subject.tracker.unavailable
    notes = () if unsure is None else (f"peak memory covers the whole process: {unsure.reason}",)
    return RankSummary(
        cell_id=cell.cell_id,
        **context.facts(),
        num_parameters=subject.specs.facts.num_parameters,
        train_samples=len(subject.prepared.train),
        test_samples=len(subject.prepared.test),
        warmup_steps=pace.warmup_steps,
        timed_steps=pace.timed_steps,
        stop_reason=pace.stop_reason or "all epochs",
        parameter_checksum="",
        peak_memory_bytes=None if isinstance(peak, Unavailable) else peak.size_bytes,
        peak_memory_source=peak.reason if isinstance(peak, Unavailable) else peak.source,
        epochs=epochs,
        planted_ns={} if subject.planted is None else subject.planted.lost_ns,
        notes=(*notes, *subject.prepared.notes),
    )


def _concluded_summary(
    cell: CellSpec, context: RankContext, subject: _Subject, summary: RankSummary, files: CellLayout
) -> RankSummary:
    """Conclude after the last timed step: replica checksum, the plan check, the profiled steps, those without reductions."""
    context.pulse.enter("verify")
    checksum = parameter_checksum(subject.session.full_parameters().values())
    endless: Iterator[tuple[StepSamples, Iterator[Batch]]] = subject.loader.endless(start=cell.epochs or 0)
    windows = (step for step in endless if step[0].full)  # the plans are those of full ones
    plain = Regions(enabled=False)
    for _ in range(summary.warmup_steps + summary.timed_steps, _steps_until_typical(subject)):
        subject.training.step(*next(windows), plain)
    window, batches = next(windows)
    phases = plancheck.Phases()
    one_step = partial(subject.training.step, window, batches, phases)
    plan = subject.specs.plan_of_rank(context.mesh.rank)
    observed = plancheck.observe(one_step, context.mesh, phases=phases)
    check = plancheck.check(plan, observed, backend=cell.backend, messages=subject.session.messages)
    memory = _tensor_bytes(subject, windows)
    flight.assert_same_calls(context.control)
    trace: str | None = None
    if context.group.measure.profile:
        context.pulse.enter("profile")
        trace = profile_steps(cell, context, subject.training, windows, plan, files)
    context.control.barrier()  # all ranks are through with their steps, and begin the last ones together
    context.pulse.enter("backward")
    if subject.readiness is not None:
        subject.readiness.armed = False
    backward = None
    alone = subject.specs.replicated
    if alone or (context.mesh.device.type == "cpu" and subject.session.scheduled is None):
        backward = backward_profile(
            cell,
            subject.task,
            subject.session,
            subject.numerics,
            windows,
            device=context.mesh.device,
            optimizer=subject.training.optimizer,
            sharded=subject.specs.strategy.sharded,
            together=not alone,
        )
    pipeline = None
    if subject.session.scheduled is not None:
        from stepscope.rank.backward import pipeline_profile

        pipeline = pipeline_profile(subject.session, subject.training, windows, context.control.barrier)
    context.control.barrier()
    return replace(
        summary,
        parameter_checksum=checksum,
        model_part=subject.session.model_part,
        plan_check=check,
        memory=memory,
        trace_file=trace,
        backward=backward,
        pipeline=pipeline,
    )


def _tensor_bytes(subject: _Subject, windows: Iterator[tuple[StepSamples, Iterator[Batch]]]) -> dict[str, int]:
    """Return bytes of this rank's tensors by kind, in one full step of its own."""
    session, training = subject.session, subject.training
    account = TensorAccount(subject.task.module, session.parameters, training.optimizer, recomputed=subject.recomputed)
    window, batches = next(windows)
    with account.step():
        training.step(window, batches, Regions(enabled=False))
    return account.sizes


def _steps_until_typical(subject: _Subject) -> int:
    """Count the steps before the strategy launches what its plan says: DDP rebuilds its buckets in the second one."""
    return subject.specs.strategy.min_warmup_steps(subject.specs.strategy_options)
