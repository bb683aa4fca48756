"""What several rules ask of the cells of `bench`: their shares of a step, and the command that would change a setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration
from stepscope.core.words import counted, grouped, listed
from stepscope.results.evidence import CellEvidence, name_of
from stepscope.stats.order import median

if TYPE_CHECKING:
    from stepscope.records.cell import CellSpec
    from stepscope.records.environment import EnvironmentRecord
    from stepscope.records.nouns import Measured
    from stepscope.records.samples import CellResult
    from stepscope.records.training import PhaseTimes, TrainingRun
    from stepscope.results.evidence import Evidence

NEAR_CAPACITY = 0.90
"""Peak / capacity from which on a cell nearly runs out: torch does not count the CUDA context and NCCL buffers, 0.5 to 1
GB a rank, 1 to 6% of 16 to 80 GB."""


@record
class TimedCell:
    """A finished cell with its median step (ns, slowest rank) and the phases of that step."""

    cell: CellEvidence
    step: Measured
    phases: PhaseTimes

    @property
    def run(self) -> TrainingRun:
        return self.cell.run

    @property
    def spec(self) -> CellSpec:
        return self.cell.spec

    @property
    def step_ns(self) -> float:
        return self.step.value

    @property
    def name(self) -> str:
        """``mlp small on synthetic, fp32: ddp on 2 ranks``."""
        return name_of(self.cell.run)

    @property
    def world_size(self) -> int:
        return self.cell.spec.world_size

    def share(self, phase: str) -> float:
        """Share of the step that ``phase`` (``data_wait``, ``optimizer``, ...) takes."""
        return float(getattr(self.phases, f"{phase}_ns")) / self.step_ns


def planted(cell: CellEvidence, figure_ns: float, kind: str, ranks: Container[int] | None = None) -> tuple[str, ...]:
    """Say that (part of) a time is a fault that the cell was asked to have: a line of evidence, or none.

    kind: of :data:`stepscope.records.injection.KINDS`. ranks: whose it would be; None: any.
    """
    lost = [
        summary.planted_ns.get(kind, 0) for summary in cell.result.summaries if ranks is None or summary.rank in ranks
    ]
    if not any(lost):
        return ()
    own = f"{format_duration(max(lost))} of these {format_duration(figure_ns)}"
    return (f"planted: {own} are the fault that the cell was asked for (inject {cell.spec.inject})",)


def timed_cells(evidence: Evidence, *, least_ranks: int = 1) -> tuple[TimedCell, ...]:
    """Finished cells with a step time, on at least so many ranks."""
    return tuple(
        TimedCell(cell=cell, step=cell.run.step_ns, phases=cell.run.phases)
        for cell in evidence.cells
        if cell.run.status == "ok" and cell.spec.world_size >= least_ranks
        if cell.run.step_ns is not None and cell.run.phases is not None and cell.run.step_ns.value > 0
    )


@record
class Exposed:
    """Communication that no computation hides, medians over steps, ns.

    net_ns: of the rank that came last, which waits for nobody. waiting_ns: what the rank that waited longest had beside.
    """

    net_ns: float
    waiting_ns: float


def exposed(cell: CellResult) -> Exposed | None:
    """Exposed communication of a cell, waiting for the last rank apart; None where it was not measured."""
    from stepscope.stats.step_table import cell_table

    table = cell_table(cell)
    if table is None or "communication" not in table.parts_ns:
        return None
    return Exposed(net_ns=median(table.transfer_ns.tolist()), waiting_ns=median(table.waiting_ns.max(axis=0).tolist()))


def by_model(cells: Iterable[TimedCell]) -> tuple[list[TimedCell], ...]:
    """Cells that train the same model on the same data, whatever the precision and accumulation."""
    return tuple(grouped(cells, lambda cell: (cell.cell.run.model, cell.cell.run.dataset)).values())


def others(cells: Sequence[TimedCell], say: Callable[[TimedCell], str]) -> tuple[str, ...]:
    """One sentence about the cells after the first, which has a finding of its own; none without any."""
    rest = cells[1:]
    if not rest:
        return ()
    return (f"also {listed([f'{among(cell, cells[0])} {say(cell)}' for cell in rest], at_most=3)}",)


def among(cell: TimedCell, first: TimedCell) -> str:
    """A cell's label, with its precision and accumulation where ``first`` has others."""
    group = cell.cell.run.group
    return (
        cell.cell.run.label if group == first.cell.run.group else f"{cell.cell.run.label}, {group.partition(', ')[2]}"
    )


def measured(cell: TimedCell) -> str:
    """How far the cell's medians carry: ``measured``, or how few steps they rest on."""
    if cell.step.low is not None:
        return "measured"
    return f"likely: based on {counted(cell.step.n or 0, 'timed step')}, too few for an interval"


def traced(evidence: Evidence, cell: TimedCell) -> str | None:
    """Return the name of the cell's traces, where it was profiled: what a finding on it is about."""
    job = evidence.trace_of(cell.cell.cell_id)
    return None if job is None else job.name


def capacity_of(cell: CellEvidence, environment: EnvironmentRecord | None) -> int | None:
    """Bytes that the cell's ranks may take: of one device, or of the host for all ranks on it; None: unknown."""
    if environment is not None and cell.spec.device == "cpu":
        return environment.memory_bytes
    return device_capacity(environment)


def device_capacity(environment: EnvironmentRecord | None) -> int | None:
    """Bytes of the smallest device of the machine, as its driver reports them; None: unknown."""
    if environment is None:
        return None
    devices = () if environment.torch is None else environment.torch.device_memory_bytes
    sizes = devices or tuple(g.memory_bytes for g in environment.gpus if g.memory_bytes is not None)
    return min(sizes, default=None)


def memory_share(cell: CellEvidence, environment: EnvironmentRecord | None, *, more_bytes: int = 0) -> float | None:
    """Share of the capacity in use at the peak, with ``more_bytes`` more on each rank; None: not known."""
    capacity, peak = capacity_of(cell, environment), cell.run.peak_memory_bytes
    if not capacity or peak is None or cell.run.status != "ok":
        return None
    hosts = Counter(s.host for s in cell.result.summaries)
    ranks = max(hosts.values(), default=1) if cell.spec.device == "cpu" else 1
    return ranks * (peak + more_bytes) / capacity


def differing(one: CellSpec, other: CellSpec) -> set[str]:
    """Settings in which two cells differ."""
    names = (f.name for f in fields(one) if f.name != "cell_id")
    return {name for name in names if getattr(one, name) != getattr(other, name)}


def same_but(evidence: Evidence, cell: CellEvidence, **changes: Any) -> CellEvidence | None:
    """The finished cell that differs from ``cell`` in these settings alone."""
    candidates = (c for c in evidence.cells if c.run.status == "ok" and differing(c.spec, cell.spec) <= changes.keys())
    return next((c for c in candidates if all(getattr(c.spec, k) == v for k, v in changes.items())), None)


def times_faster(one: CellEvidence, other: CellEvidence) -> float | None:
    """Step time of ``other`` over that of ``one``; None unless the intervals say that ``one`` is faster."""
    fast, slow = one.run.step_ns, other.run.step_ns
    return slow.value / fast.value if fast is not None and slow is not None and fast.below(slow) else None
