"""A cell of `bench` -> the measured step that a prediction starts from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from stepscope.core.errors import DataError, Unavailable, UsageError
from stepscope.core.units import format_duration
from stepscope.core.words import counted, named
from stepscope.machine.peaks import find
from stepscope.predict.job import Gradient, JobCall, JobPipeline, MeasuredJob
from stepscope.predict.overlap import Transport, transport_of
from stepscope.predict.run_buckets import profile_of, same_work
from stepscope.predict.specs import Specs, specs_of
from stepscope.predict.timeline import timings
from stepscope.records import mesh as meshes
from stepscope.records.cell import CellSpec
from stepscope.records.network import hosts_of
from stepscope.records.prediction import BackwardProfile
from stepscope.records.samples import CellResult
from stepscope.results.pipeline import measured_pipeline
from stepscope.stats.order import deviation_within, median
from stepscope.stats.step_table import StepTable, cell_table
from stepscope.strategies.pipeline import PipelineOptions, message_bytes


def job_of_cell(cell: CellResult, others: Sequence[CellResult], *, transport: Transport | None = None) -> MeasuredJob:
    """The job of a finished cell of `bench`; others: cells of its run, for what was measured of it on other ranks.

    Raises UsageError for a strategy without collectives and for groups that share an emulated host's link, DataError for a
    cell without steps or profile.
    """
    spec = cell.spec
    table = cell_table(cell)
    if table is None:
        raise DataError(f"cell {spec.cell_id} has no timed steps", fix="run it again, or name another with --cell")
    specs = specs_of(_spec_on_two_replicas(spec))
    if not specs.strategy.collective:
        raise UsageError(
            f"{spec.strategy} sends nothing, on any number of ranks",
            fix="name a cell of ddp or another strategy of several ranks with --cell",
        )
    _require_own_links(spec)
    names = {summary.device_name for summary in cell.summaries}
    entry = find(names.pop()) if spec.device == "cuda" and len(names) == 1 else Unavailable("no GPU")
    spread, values, of = _rank_spread(spec, table)
    common = MeasuredJob(
        name=f"{spec.strategy} on {counted(spec.world_size, 'rank')} (cell {spec.cell_id})",
        source="run",
        ranks=spec.world_size,
        seen_ranks=spec.world_size,
        nodes=len({summary.host for summary in cell.summaries}) or None,
        backend=spec.backend,
        device="CPU" if spec.device == "cpu" else cell.summaries[0].device_name,
        gpu=None if isinstance(entry, Unavailable) else entry.key,
        step_ns=median(table.step_ns.tolist()),
        length_ns=0.0,
        compute_ns=0.0,
        copies_ns=0.0,
        input_ns=0.0,
        tail_ns=0.0,
        spread_ns=spread,
        spread_from=values,
        spread_of=of,
        transport=transport or transport_of(spec.backend),
        calls=(),
        dtype={"amp_bf16": "bf16", "amp_fp16": "fp16"}.get(spec.precision, spec.precision),
        global_batch=spec.global_batch,
        network=spec.network,
        points=_step_ns_by_ranks(cell, others),
        mesh=spec.mesh,
    )
    return (
        _pipeline_job(cell, common, specs) if spec.strategy == "pipeline" else _planned_job(cell, others, common, specs)
    )


def _spec_on_two_replicas(spec: CellSpec) -> CellSpec:
    """Return ``spec`` on two replicas where it has one: only then its plan holds what replicas send to each other."""
    if spec.world_size > 1 and meshes.size(spec.mesh, spec.world_size, "dp") > 1:
        return spec
    mesh = meshes.canonical({**spec.mesh, "dp": 2}) if spec.mesh else {}
    return replace(spec, world_size=2 * spec.world_size, mesh=mesh)


def _require_own_links(spec: CellSpec) -> None:
    """Raise UsageError where several ranks of a mesh share one link of an emulated network."""
    hosts = hosts_of(spec.network, spec.world_size)
    if spec.mesh and hosts is not None and hosts < spec.world_size:
        raise UsageError(
            f"{spec.strategy} on {meshes.text(spec.mesh)} with several ranks on a host of network {spec.network}",
            why="some of its groups stay within a host, others share its one link: not in the model",
            fix="measure it with a host for each rank: --emulate-network without a number of hosts",
        )


def _rank_spread(spec: CellSpec, table: StepTable) -> tuple[float, int, str]:
    """Return the spread between ranks that do the same work: of a pipeline, ranks of one stage."""
    stages = meshes.size(spec.mesh, spec.world_size, "pp")
    stage = [meshes.coordinates(spec.mesh, spec.world_size, rank).get("pp", 0) for rank in range(spec.world_size)]
    own = [
        [ns for ns, at in zip(ranks, stage, strict=True) if at == number]
        for ranks in table.own_ns.T.tolist()
        for number in range(stages)
    ]
    return deviation_within(own)


def _planned_job(cell: CellResult, others: Sequence[CellResult], common: MeasuredJob, specs: Specs) -> MeasuredJob:
    """Return the job of a cell whose calls are planned: profile of its backward pass, gradients and calls in order of
    time."""
    profile, notes = _backward_profile(cell, others)
    calls = tuple(
        JobCall(
            op=op.op,
            size_bytes=op.size_bytes,
            ready_ns=t.ready_ns,
            needed_ns=t.needed_ns,
            blocking=t.blocking,
            group=op.group,
            activations=bool(op.module) and not op.members,
        )
        for op, t in zip(specs.comm_plan, timings(profile, specs.comm_plan), strict=True)
    )
    ready = {
        gradient.name: profile.before_ns + min(gradient.ready_ns, profile.backward_ns) for gradient in profile.ready
    }
    order = sorted(ready.items(), key=lambda item: item[1])
    sizes = {parameter.name: parameter.size_bytes for parameter in specs.facts.parameters}
    return replace(
        common,
        length_ns=profile.step_ns,
        compute_ns=profile.step_ns - profile.data_wait_ns,
        input_ns=profile.data_wait_ns,
        tail_ns=profile.after_ns,
        calls=calls,
        gradients=tuple(Gradient(ready_ns=float(at), size_bytes=sizes[name]) for name, at in order)
        if "bucket_cap_mb" in specs.strategy.options.model_fields
        else (),
        notes=notes,
    )


def _pipeline_job(cell: CellResult, common: MeasuredJob, specs: Specs) -> MeasuredJob:
    """Describe a pipeline: its stages as they computed, and what of the step is neither theirs nor communication."""
    spec, measured = cell.spec, measured_pipeline(cell)
    if measured is None:
        raise DataError(f"cell {spec.cell_id} has no pipeline profile", fix="run it again with this version")
    assert isinstance(specs.strategy_options, PipelineOptions)
    plans = [
        specs.plan_of_rank(at * specs.setting.world_size // measured.layout.ranks)
        for at in range(measured.layout.ranks)
    ]
    pipeline = JobPipeline(
        layout=measured.layout,
        took_ns=measured.took_ns,
        messages=message_bytes(specs.facts, specs.setting, specs.strategy_options),
        reductions=tuple(tuple(op.size_bytes for op in plan if op.phase == "after_backward") for plan in plans),
        meeting=measured.meeting,
        rounds=spec.accumulation,
    )
    table = cell_table(cell)
    assert table is not None

    def usual(*parts: str) -> float:
        """Return the median ns that the parts take together, on the rank where they take longest."""
        return float(np.median(sum(table.parts_ns[part] for part in parts), axis=1).max())

    data, after = usual("data"), usual("optimizer", "other")
    schedules = pipeline.alone_ns
    return replace(
        common,
        length_ns=data + schedules + after,
        compute_ns=schedules + after,
        input_ns=data,
        tail_ns=after,
        pipeline=pipeline,
    )


def _backward_profile(cell: CellResult, others: Sequence[CellResult]) -> tuple[BackwardProfile, tuple[str, ...]]:
    """Return the cell's own profile, with notes. Where it cannot leave its collectives out (sharded ones need them), that of
    the same work whole, with the strategy's own copies as one rank measured them."""
    spec = cell.spec
    if any(summary.backward for summary in cell.summaries):
        return profile_of(cell), ()
    whole = next((o for o in others if same_work(o, cell) and any(s.backward for s in o.summaries)), None)
    if whole is None:
        return profile_of(cell), ()
    profile = profile_of(whole)
    note = (
        f"{spec.strategy} cannot run without its collectives: computation is that of {whole.spec.strategy} "
        f"(cell {whole.spec.cell_id}), the same work on the same ranks"
    )
    alone = dict(_step_ns_by_ranks(cell, others)).get(1)
    if alone is None or alone <= profile.step_ns:
        return profile, (note,)
    passes = profile.forward_ns + profile.backward_ns
    longer = 1 + (alone - profile.step_ns) / passes
    copied = replace(
        profile,
        forward_ns=round(profile.forward_ns * longer),
        backward_ns=round(profile.backward_ns * longer),
        ready=tuple(replace(gradient, ready_ns=round(gradient.ready_ns * longer)) for gradient in profile.ready),
    )
    extra = format_duration(alone - profile.step_ns)
    return copied, (f"{note}; with the {extra} more that {spec.strategy} takes on one rank, for its own copies",)


def choose_cell(cells: Sequence[CellResult], cell_id: str | None) -> CellResult:
    """The cell asked for by the beginning of its id; else the only strategy that communicates, on its most ranks.

    Raises UsageError that lists the cells.
    """
    able = [c for c in cells if c.samples and c.summaries and specs_of(c.spec).strategy.collective]
    if cell_id is not None:
        ids = named(cell_id, [c.spec.cell_id for c in able])
        if len(ids) != 1:
            others = named(cell_id, [c.spec.cell_id for c in cells if c not in able])
            raise UsageError(
                f"--cell {cell_id!r} names {counted(len(ids), 'cell')} that communicate",
                why=f"{', '.join(others)}: not finished, or of a strategy that sends nothing"
                if others and not ids
                else None,
                fix=_cell_options_text(able) if able else "run one of ddp on 2 ranks",
            )
        return next(c for c in able if c.spec.cell_id == ids[0])
    if not able:
        raise UsageError("no cell of this run communicates", fix="run one of ddp on 2 ranks, or name traces of a job")
    most = max(able, key=lambda c: c.spec.world_size)
    kinds = [c for c in able if _but_for_ranks(c) != _but_for_ranks(most)]
    if kinds:
        raise UsageError("this run has several kinds of cells", fix=_cell_options_text(able))
    return most


def _cell_options_text(cells: Iterable[CellResult]) -> str:
    """Return the options of which one names a cell, a line each."""
    lines = (
        f"    --cell {c.spec.cell_id}  {c.spec.strategy} on {counted(c.spec.world_size, 'rank')}, "
        f"batch {c.spec.micro_batch} a rank"
        for c in cells
    )
    return "\n".join(["choose one:", *lines])


def _but_for_ranks(cell: CellResult) -> str:
    spec = cell.spec
    fixed = {name: n for name, n in spec.mesh.items() if name != meshes.grows(spec.mesh)}
    return repr((spec.workload, dict(spec.model), spec.strategy, dict(spec.strategy_options), fixed, spec.precision,
                 spec.accumulation, spec.network, spec.inject, spec.batch_rule,
                 spec.micro_batch if spec.batch_rule == "micro_batch" else spec.global_batch))  # fmt: skip


def _step_ns_by_ranks(cell: CellResult, others: Sequence[CellResult]) -> tuple[tuple[int, float], ...]:
    """Return (ranks, median step in ns) of the cells that differ from this one in their ranks alone."""
    by_ranks: dict[int, float] = {}
    for other in (*others, cell):
        table = cell_table(other)
        if table is not None and _but_for_ranks(other) == _but_for_ranks(cell):
            by_ranks[other.spec.world_size] = median(table.step_ns.tolist())
    return tuple(sorted(by_ranks.items()))
