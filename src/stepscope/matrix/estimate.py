"""Worker groups of a plan, and how long they may take before anything of it has run.

Deliberately on the long side: a first run has nothing to go by but budgets, deadlines and arithmetic at a rate that any
machine reaches. Cells that an earlier run has measured count with the time they really took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from stepscope.core.dataclass import record
from stepscope.matrix.expand import PlannedCell
from stepscope.matrix.machine import Backend, Device, threads_per_rank
from stepscope.records.cell import Cell, CellSpec, MeasureSettings


@record
class WorkerGroup:
    """Cells in order, and what their processes have in common.

    env: the swept environment variables of these cells, to be laid over ``launch.env``.
    """

    world_size: int
    backend: Backend
    device: Device
    threads_per_rank: int
    env: Mapping[str, str]
    network: str | None
    cells: tuple[Cell, ...]


def group_cells(
    cells: Iterable[Cell], *, usable_cores: Callable[[Cell], int], isolate: bool = False
) -> tuple[WorkerGroup, ...]:
    """Make one group per (world size, backend, device, threads, swept environment, network), in order of first appearance.

    usable_cores: for all ranks of a cell together. isolate: a group for each cell.
    """
    members: dict[tuple[object, ...], list[Cell]] = {}
    for index, cell in enumerate(cells):
        env = tuple(sorted(cell.env.items()))
        threads = _rank_threads(cell, usable_cores(cell))
        alone = index if isolate else None
        key = (cell.world_size, cell.backend, cell.device, threads, env, cell.network, alone)
        members.setdefault(key, []).append(cell)
    return tuple(
        WorkerGroup(
            world_size=member[0].world_size,
            backend=member[0].backend,
            device=member[0].device,
            threads_per_rank=_rank_threads(member[0], usable_cores(member[0])),
            env=dict(member[0].env),
            network=member[0].network,
            cells=tuple(member),
        )
        for member in members.values()
    )


def _rank_threads(cell: Cell, usable_cores: int) -> int:
    return threads_per_rank(cell.threads_per_rank, usable_cores=usable_cores, world_size=cell.world_size)


S = 1_000_000_000

GROUP_STARTUP_NS = 15 * S
"""Starting a worker group: interpreter, import of torch, rendezvous. 2 to 6 s on 2 cores without load."""

STARTUP_PER_RANK_NS = 2 * S
"""Added for each rank: they load torch from the same disk and share the cores."""

CELL_SETUP_NS = 3 * S
"""Building the model, preparing data that is already cached, writing the results."""

SLOW_FLOPS_PER_S = {"cpu": 2e10, "cuda": 2e12}
"""Training FLOP/s of the whole CPU, or of one GPU, that small layers still reach: a floor, not a peak."""

SLOW_HALF_FLOPS_PER_S = 1e9
"""The same for float16, and for bfloat16 where the CPU has no instruction for it, on a CPU."""

SLOW_BYTES_PER_S = {"cpu": 2e8, "cuda": 2e9}
"""Reduction bandwidth (payload over time) of ranks on one machine that loopback and PCIe still reach."""

CALL_NS = 2_000_000
"""A collective call, an optimizer step and the loop around them, each with a scheduler that is busy elsewhere."""

AUTO_WARMUP_STEPS = 60
"""Warm-up found by measurement ends after this many steps at the latest (rank/pace.py)."""

LEAST_STEPS = 10
"""A round runs about this many steps even when its budget is over sooner: shortest warm-up and fewest timed steps."""


@record
class CellEstimate:
    """The time of one cell. basis: ``measured`` (an earlier run), ``budget``, ``arithmetic``, or ``deadline`` (nothing
    better is known)."""

    cell_id: str
    duration_ns: int
    basis: str


@record
class PlanEstimate:
    """The time of a plan. total_ns: start-up of all groups and all cells. upper_bound: False when every cell was measured
    before."""

    cells: tuple[CellEstimate, ...]
    startup_ns: int
    total_ns: int
    upper_bound: bool


def estimate_plan(
    groups: tuple[WorkerGroup, ...],
    planned: Mapping[str, PlannedCell],
    *,
    measure: MeasureSettings,
    usable_cores: int,
    known_ns: Mapping[str, int] | None = None,
) -> PlanEstimate:
    """Estimate the time of running these groups. planned: cells by id. known_ns: wall time of cells that an earlier run
    finished."""
    wall_ns = known_ns or {}
    cells = tuple(
        _measured_estimate(spec.cell_id, wall_ns[spec.cell_id])
        if spec.cell_id in wall_ns
        else estimate_cell(planned[spec.cell_id], measure=measure, usable_cores=usable_cores)
        for group in groups
        for spec in group.cells
    )
    startup = sum(GROUP_STARTUP_NS + STARTUP_PER_RANK_NS * group.world_size for group in groups)
    return PlanEstimate(
        cells=cells,
        startup_ns=startup,
        total_ns=startup + sum(cell.duration_ns for cell in cells),
        upper_bound=any(cell.basis != "measured" for cell in cells),
    )


def _measured_estimate(cell_id: str, duration_ns: int) -> CellEstimate:
    return CellEstimate(cell_id=cell_id, duration_ns=duration_ns, basis="measured")


def estimate_cell(cell: PlannedCell, *, measure: MeasureSettings, usable_cores: int) -> CellEstimate:
    """Estimate the time of one cell, never more than its deadline."""
    work_ns, basis = _work_ns_and_basis(cell, measure, usable_cores)
    if work_ns is None or CELL_SETUP_NS + work_ns >= measure.timeout_ns:
        return CellEstimate(cell_id=cell.spec.cell_id, duration_ns=measure.timeout_ns, basis="deadline")
    return CellEstimate(cell_id=cell.spec.cell_id, duration_ns=CELL_SETUP_NS + work_ns, basis=basis)


def _work_ns_and_basis(cell: PlannedCell, measure: MeasureSettings, usable_cores: int) -> tuple[int | None, str]:
    """Return the time of a cell, ns, and what it rests on; None: nothing but the deadline is known."""
    spec = cell.spec
    step_ns = slow_step_ns(cell, usable_cores=usable_cores)
    if step_ns is None:
        return None, "deadline"
    if spec.steps == "auto":
        # Warm-up counts against the budget when it is found by measurement, and comes on top when it is fixed.
        warmup_ns = step_ns * (measure.warmup_steps or 0)
        return round(measure.rounds * (warmup_ns + max(measure.budget_ns, LEAST_STEPS * step_ns))), "budget"
    steps = spec.steps if spec.steps is not None else _steps_of_epochs(spec)
    if steps is None:
        return None, "deadline"
    warmup_steps = AUTO_WARMUP_STEPS if measure.warmup_steps is None else measure.warmup_steps
    if spec.epochs is not None:
        warmup_steps = 0  # the first steps of the first epoch
    return round(step_ns * (steps + warmup_steps) * measure.rounds), "arithmetic"


def _steps_of_epochs(spec: CellSpec) -> int | None:
    """Count the steps of the cell's epochs, for a dataset with an option ``samples``; None for others."""
    samples = spec.dataset_options.get("samples")
    if spec.epochs is None or not isinstance(samples, int):
        return None
    return spec.epochs * math.ceil(samples / spec.global_batch)


def slow_step_ns(cell: PlannedCell, *, usable_cores: int) -> float | None:
    """Return the nanoseconds of an optimizer step on a slow machine, or None when the model's FLOP are not known."""
    spec, facts = cell.spec, cell.facts
    if facts is None:
        return None
    flops = facts.train_flops_per_sample * spec.micro_batch * spec.accumulation
    compute_s = flops / _flops_per_s(spec, usable_cores)
    payload_bytes = sum(op.size_bytes for op in cell.comm_plan)
    # Every rank of a CPU moves its bytes through the same cores.
    sharing = spec.world_size if spec.device == "cpu" else 1
    reduction_s = payload_bytes * sharing / SLOW_BYTES_PER_S[spec.device] if spec.world_size > 1 else 0.0
    calls = 1 + (len(cell.comm_plan) * sharing if spec.world_size > 1 else 0)
    update_s = 4 * facts.gradient_bytes * sharing / SLOW_BYTES_PER_S[spec.device] / 10
    return (compute_s + reduction_s + update_s) * S + calls * CALL_NS


def _flops_per_s(spec: CellSpec, usable_cores: int) -> float:
    """Return the FLOP/s of one rank: ranks on a CPU share its cores."""
    if spec.device == "cuda":
        return SLOW_FLOPS_PER_S["cuda"]
    if spec.precision not in ("fp32", "tf32"):
        return SLOW_HALF_FLOPS_PER_S
    per_core = SLOW_FLOPS_PER_S["cpu"] / 2
    return per_core * min(usable_cores, spec.world_size * _threads(spec, usable_cores)) / spec.world_size


def _threads(spec: CellSpec, usable_cores: int) -> int:
    return usable_cores if spec.threads_per_rank == "auto" else spec.threads_per_rank
