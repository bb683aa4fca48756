"""Cells of `bench` as training runs: what a run folder's samples say, one run a cell. Derived, never edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.words import counted
from stepscope.records import codec, mesh
from stepscope.records.cell import CellSpec, CellStatus
from stepscope.records.injection import injection_of
from stepscope.records.nouns import Measured, Scaling
from stepscope.records.parts import SAMPLED
from stepscope.records.samples import CellResult, EpochResult
from stepscope.records.training import Epoch, PhaseTimes, TrainingRun
from stepscope.results.epochs import epoch_time, mfu, per_second
from stepscope.results.labels import cell_labels, settings_of, varied_settings
from stepscope.results.scaling import with_baselines
from stepscope.stats import measured
from stepscope.stats.step_table import CommonSteps, cell_table, common_steps
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_bytes, read_cell, read_cells, read_if_there, read_run


@record
class Planned:
    """What registries say of a cell. num_parameters: trainable elements of the model. comm_bytes_per_step: payload of one
    rank's optimizer step. train_flop_per_sample: forward and backward, 3 x forward. recomputed_flop_per_sample: what
    activation checkpointing computes again; None: unknown.
    """

    num_parameters: int
    comm_bytes_per_step: int
    train_flop_per_sample: int | None = None
    recomputed_flop_per_sample: int | None = 0


def plan_of(spec: CellSpec) -> Planned | Unavailable:
    """Parameters and payload bytes per rank and optimizer step of a cell, from its workload's and strategy's
    specs.

    Payload: the sum over the collectives of the strategy's ``comm_plan`` of the bytes passed in. Nothing is
    run and no file is read. Unavailable where a plugin is not installed here or refuses the cell's options.
    """
    from stepscope.predict.specs import specs_of

    try:
        specs = specs_of(spec)
    except (UsageError, ValueError) as error:  # ValueError: pydantic refuses the options
        return Unavailable(f"no plan for cell {spec.cell_id}: {error}")
    return Planned(
        num_parameters=specs.facts.num_parameters,
        comm_bytes_per_step=specs.comm_bytes_per_step,
        train_flop_per_sample=specs.facts.train_flops_per_sample or None,
        recomputed_flop_per_sample=0
        if spec.activation_checkpointing == "none"
        else specs.facts.recomputed_flops_per_sample.get(spec.activation_checkpointing),
    )


NOT_IN_MATRIX = "not in this matrix: kept from an earlier run in the same folder"

Plans = Mapping[str, Planned | Unavailable]


def folder_runs(layout: RunLayout) -> tuple[TrainingRun, ...]:
    """All cells of a run folder as runs; those that its matrix has no more come last and say so."""
    earlier = frozenset(read_run(layout.root).earlier_cells)
    return tuple(
        replace(run, notes=(*run.notes, NOT_IN_MATRIX)) if run.run_id in earlier else run
        for run in build_runs(layout, read_cells(layout))
    )


def baselines_of(layout: RunLayout) -> frozenset[str]:
    """Ids of the cells to which the speed-up of others refers (:func:`stepscope.results.scaling.find_baseline`)."""
    runs = build_runs(layout, read_cells(layout), plans={})  # which run is whose baseline needs no plan
    return frozenset(run.baseline_id for run in runs if run.baseline_id is not None)


def build_runs(layout: RunLayout, cells: Sequence[CellSpec], *, plans: Plans | None = None) -> tuple[TrainingRun, ...]:
    """One run for every cell, in order, from what lies in the run folder; cells that did not run have one too.

    plans: cell id -> what its registries say; None: worked out here.
    """
    if plans is None:
        plans = {cell.cell_id: plan_of(cell) for cell in cells}
    runs = [
        replace(_cell_run(layout, cell, plans.get(cell.cell_id)), varied=varied)
        for cell, varied in zip(cells, varied_settings(cells), strict=True)
    ]
    return with_baselines(labelled(runs))


def read_runs(path: Path) -> tuple[TrainingRun, ...]:
    """The runs of a ``results.jsonl``, also of one that an earlier stepscope wrote."""
    runs = tuple(codec.decode_lines(read_bytes(path), TrainingRun, source=str(path)))
    return labelled([replace(run, source=str(path)) for run in runs])


def labelled(runs: Sequence[TrainingRun]) -> tuple[TrainingRun, ...]:
    """``runs`` of one set with the names that tell them apart in it: model, strategy, label and group."""
    return tuple(
        replace(
            run,
            model=label.model,
            strategy=label.mode,
            label=f"{label.mode} on {counted(run.world_size or 0, 'rank')}",
            group=_group_name(run, label.model),
        )
        for run, label in zip(runs, cell_labels(runs), strict=True)
    )


def run_of(cell: CellResult, plan: Planned | Unavailable | None = None) -> TrainingRun:
    """The run that a cell's samples make, as if it were alone: without baseline, not told apart from others."""
    (run,) = labelled([_measured_run(cell, plan)])
    return run


def _cell_run(layout: RunLayout, spec: CellSpec, plan: Planned | Unavailable | None) -> TrainingRun:
    """Return the run of a cell; names that tell it apart are filled in afterwards (:func:`labelled`)."""
    folder = layout.cell(spec.cell_id)
    empty = replace(planned_run(spec, plan), source=layout.root.name)
    try:
        status = read_if_there(folder.status, CellStatus)
    except DataError as error:
        return replace(empty, status="error", error=f"status unreadable: {error.what}")
    if status is None:
        return replace(empty, status="interrupted", error="not run yet")
    run = replace(empty, status=status.status, error=_why_no_result(status))
    try:
        cell = read_cell(folder)
    except DataError as error:
        if status.status != "ok":
            return replace(run, notes=(f"partial samples unreadable: {error.what}",))
        return replace(run, status="error", error=f"samples unreadable: {error.what}")
    return replace(_measured_run(replace(cell, spec=spec, status=status), plan), source=empty.source)


def _measured_run(cell: CellResult, plan: Planned | Unavailable | None) -> TrainingRun:
    run = planned_run(cell.spec, plan)
    if cell.status is not None:
        run = replace(run, status=cell.status.status, error=_why_no_result(cell.status))
    run = _run_with_rank_facts(run, cell)
    return _run_with_figures(run, cell, plan) if run.status == "ok" else _partial_run(run, cell)


_OF_SPEC = (
    "world_size", "dataset", "precision", "accumulation", "micro_batch", "global_batch", "device", "backend", "workload",
    "strategy_options",
)  # fmt: skip
"""Fields of a run that are its cell's."""


def planned_run(spec: CellSpec, plan: Planned | Unavailable | None = None) -> TrainingRun:
    """Return the run of a cell that has not run, from its spec; it still lacks its names (:func:`labelled`)."""
    return TrainingRun(
        run_id=spec.cell_id,
        label="",
        group="",
        source="",
        status="interrupted",
        **{name: getattr(spec, name) for name in _OF_SPEC},
        scaling=_spec_scaling(spec),
        num_parameters=plan.num_parameters if isinstance(plan, Planned) else None,
        settings={
            **settings_of(spec),
            **{f"strategy_options.{k}": v for k, v in spec.strategy_options.items()},
            "data_digest": spec.data_digest,
        },
        model_options=spec.model,
        strategy_key=spec.strategy,
        epochs_asked=spec.epochs,
    )


def _spec_scaling(spec: CellSpec) -> Scaling | None:
    """Return what is kept as ranks are added. Ranks that divide the model leave the global batch as it is; None: ranks of
    both kinds, where the batches of the run and its baseline decide."""
    shards = mesh.size(spec.mesh, spec.world_size, "dp")
    if spec.batch_rule == "micro_batch" and shards == spec.world_size:
        return "weak"
    return "strong" if spec.batch_rule == "global_batch" or shards == 1 else None


def _group_name(run: TrainingRun, model: str) -> str:
    parts = [f"{model} on {run.dataset}", run.precision or ""]
    if (run.accumulation or 1) > 1:
        parts.append(f"accumulation {run.accumulation}")
    return ", ".join(parts)


def _run_with_rank_facts(run: TrainingRun, cell: CellResult) -> TrainingRun:
    """Return what the ranks said about the machine, the model and the data; it goes before the spec's word."""
    run = replace(run, phases=_phase_times(cell), epochs=_cell_epochs(cell))
    if not cell.summaries:
        return run
    first = cell.summaries[0]
    return replace(
        run,
        hardware=", ".join(sorted({summary.device_name for summary in cell.summaries})) or None,
        num_parameters=first.num_parameters,
        dataset_size=first.train_samples or None,  # batches without end
        threads_per_rank=first.num_threads,
        steps_per_epoch=-(-first.train_samples // cell.spec.global_batch) or None,
    )


def _partial_run(run: TrainingRun, cell: CellResult) -> TrainingRun:
    """Return the run of a cell that did not finish: what it measured is kept and counted, but is no result."""
    timed = max((sum(not step.warmup for step in rank.steps) for rank in cell.samples), default=0)
    if not timed:
        return run
    note = (
        f"{counted(timed, 'timed step')} from before it stopped {'is' if timed == 1 else 'are'} kept in "
        f"cells/{run.run_id}; {'it is' if timed == 1 else 'they are'} not a result"
    )
    return replace(run, notes=(note,))


def _run_with_figures(run: TrainingRun, cell: CellResult, plan: Planned | Unavailable | None) -> TrainingRun:
    """Return the run with its measured figures: step, throughput, communication, memory, learning, and notes on what
    lacks."""
    spec = cell.spec
    common, table = common_steps(cell.samples, spec.world_size), cell_table(cell)
    timed = {} if table is None else table.by_round(table.step_ns)
    step = measured.estimate(timed)
    notes = list(_cell_notes(cell, common, step, plan))
    notes += measured.stability_notes(timed)
    run = replace(
        run,
        step_ns=step,
        samples_per_s=None if step is None else per_second(step, spec.global_batch),
        exposed_comm_ns=None
        if table is None or "communication" not in table.parts_ns
        else measured.estimate(table.by_round(table.comm_ns.max(axis=0))),
        comm_bytes_per_step=plan.comm_bytes_per_step if isinstance(plan, Planned) else None,
        comm_source=cell.samples[0].header.comm_source if cell.samples else None,
        model_flop=_model_flop(spec, plan),
        peak_memory_bytes=measured.peak_memory(cell.summaries),
        train_loss=measured.mean_loss(common.timed),
    )
    used = mfu(run)
    if not isinstance(used, Unavailable):
        run = replace(run, mfu=used, hfu=hfu_of(used, plan))
    if spec.epochs is None:
        run = _estimated_epoch(run)
    else:
        figures = measured.epoch_figures(cell, measured.warmup_epochs(cell.samples))
        notes += figures.notes
        epoch = epoch_time(run)
        run = replace(
            run,
            train_loss=figures.train_loss,
            test_accuracy=figures.test_accuracy,
            samples_seen_per_rank=figures.samples_seen_per_rank,
            epoch_ns=epoch,
            epoch_estimated=None if epoch is None else False,
        )
    return replace(run, notes=tuple(dict.fromkeys(notes)))


def _model_flop(spec: CellSpec, plan: Planned | Unavailable | None) -> float | None:
    flop = plan.train_flop_per_sample if isinstance(plan, Planned) else None
    return None if flop is None else float(flop * spec.global_batch)


def hfu_of(mfu: float, plan: Planned | Unavailable | None) -> float | None:
    """Return HFU: MFU with the FLOP that activation checkpointing computes again."""
    if not isinstance(plan, Planned) or not plan.train_flop_per_sample or plan.recomputed_flop_per_sample is None:
        return None
    return mfu * (1 + plan.recomputed_flop_per_sample / plan.train_flop_per_sample)


def _estimated_epoch(run: TrainingRun) -> TrainingRun:
    """Estimate an epoch: steps per epoch (the tail step counted as a whole one) x median step."""
    count, step = run.steps_per_epoch, run.step_ns
    if step is None or count is None:
        return run
    epoch = Measured(
        value=count * step.value,
        low=None if step.low is None else count * step.low,
        high=None if step.high is None else count * step.high,
    )
    return replace(run, epoch_ns=epoch, epoch_estimated=True)


def _phase_times(cell: CellResult) -> PhaseTimes | None:
    """Return medians of what the slowest rank spends in each phase; None where communication was not measured."""
    table = cell_table(cell)
    if table is None or "communication" not in table.parts_ns:
        return None
    return PhaseTimes(
        **{f"{phase}_ns": float(np.median(table.parts_ns[key].max(axis=0))) for phase, key in SAMPLED.items()}
    )


def _cell_epochs(cell: CellResult) -> tuple[Epoch, ...]:
    """Return the epochs of the last round that all ranks have; times are the slowest rank's."""
    per_rank = [_epochs_of_last_round(summary.epochs) for summary in cell.summaries]
    if len(per_rank) < cell.spec.world_size or not all(per_rank):
        return ()
    warmup = measured.warmup_epochs(cell.samples)
    common = sorted(set.intersection(*({e.epoch for e in ranks} for ranks in per_rank)))
    of = [{e.epoch: e for e in ranks} for ranks in per_rank]
    return tuple(
        Epoch(
            number=number,
            duration_ns=float(max(ranks[number].epoch_ns for ranks in of)),
            train_loss=of[0][number].train_loss,
            validation_accuracy=of[0][number].test_accuracy,
            samples_seen=sum(ranks[number].samples_seen for ranks in of),
            warmup=number in warmup,
        )
        for number in common
    )


def _epochs_of_last_round(epochs: Sequence[EpochResult]) -> list[EpochResult]:
    last = max((e.round for e in epochs), default=0)
    return [e for e in epochs if e.round == last]


def _cell_notes(
    cell: CellResult, common: CommonSteps, step: Measured | None, plan: Planned | Unavailable | None
) -> list[str]:
    """Return the notes of a cell: its ranks', its planted fault, and why a figure lacks."""
    notes = [note for summary in cell.summaries for note in summary.notes]
    if cell.spec.inject is not None:
        notes.append(f"planted: {injection_of(cell.spec.inject).words} (inject {cell.spec.inject})")
    if common.missing_ranks:
        ranks = ", ".join(map(str, common.missing_ranks))
        notes.append(f"no step time: rank {ranks} left no samples")
    elif step is None:
        notes.append("no step time: no full step was timed after warm-up")
    if isinstance(plan, Unavailable):
        notes.append(plan.reason)
    notes += measured.replica_notes(cell.summaries)
    return notes


def _why_no_result(status: CellStatus) -> str | None:
    """Say why a cell has no result, in one line: rank and host, then the reason or the exception's last line."""
    if status.status == "ok":
        return None
    text = status.reason or _last_line(status.exception) or _last_line(status.stderr_tail)
    where = "" if status.failing_rank is None else f"rank {status.failing_rank}"
    if where and status.failing_host:
        where += f" on {status.failing_host}"
    if text is None:
        text = f"in phase {status.phase}" if status.phase else "no reason recorded"
    return text if not where or f"rank {status.failing_rank}" in text else f"{where}: {text}"


def _last_line(text: str | None) -> str | None:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else None
