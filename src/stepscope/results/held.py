"""What each rank of a cell holds, tensor by tensor, beside what its strategy planned, and what that costs in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from stepscope.core.dataclass import record
from stepscope.core.units import format_bytes, format_percent
from stepscope.core.words import grouped, listed
from stepscope.predict.specs import specs_of
from stepscope.records.plan import MemoryPlan
from stepscope.results.evidence import CellEvidence

STATES = ("parameters", "gradients", "optimizer")
KINDS = (*STATES, "gathered", "activations")


@record
class Held:
    """What the ranks of one cell hold. sizes: kind -> bytes of the rank that holds most of it; a kind that was not counted
    is not there."""

    cell: CellEvidence
    sizes: dict[str, int]
    plan: MemoryPlan

    @property
    def states(self) -> int:
        return sum(self.sizes.get(kind, 0) for kind in STATES)

    @property
    def total(self) -> int | None:
        """Bytes of all kinds; None where activations were not counted."""
        return sum(self.sizes.values()) if "activations" in self.sizes else None

    @property
    def planned_states(self) -> int:
        return self.plan.parameter_bytes + self.plan.gradient_bytes + self.plan.optimizer_bytes

    @property
    def planned_buffers(self) -> int:
        """Planned bytes of communication, beside the parameters that are whole between the passes."""
        return self.plan.communication_bytes - self.plan.gathered_bytes

    @property
    def planned_activations(self) -> int | None:
        return None if self.plan.activations is None else sum(self.plan.activations.values())


def held_by(cell: CellEvidence) -> Held | None:
    """Return what the cell's ranks hold; None where not all of them counted their tensors."""
    ranks = [summary.memory for summary in cell.result.summaries]
    if cell.run.status != "ok" or not ranks or not all(ranks):
        return None
    sizes = {kind: max(rank.get(kind, 0) for rank in ranks) for kind in KINDS if all(kind in rank for rank in ranks)}
    return Held(cell=cell, sizes=sizes, plan=specs_of(cell.spec).memory_plan)


def held_states(cells: Sequence[CellEvidence]) -> tuple[Held, ...]:
    """Return what ranks hold in the cells whose ranks counted their tensors."""
    return tuple(holding for cell in cells if (holding := held_by(cell)) is not None)


def differing(holdings: Sequence[Held]) -> tuple[Held, ...]:
    """Keep the cells among whose like some hold more than others."""
    alike: dict[tuple[object, ...], set[tuple[int, ...]]] = defaultdict(set)
    for holding in holdings:
        alike[_work_key(holding)].add(tuple(holding.sizes.values()))
    return tuple(holding for holding in holdings if len(alike[_work_key(holding)]) > 1)


def _work_key(holding: Held) -> tuple[object, ...]:
    spec = holding.cell.spec
    batch = (spec.micro_batch, spec.accumulation)
    return (spec.workload, repr(spec.model), spec.world_size, spec.optimizer, *batch, spec.precision, spec.network)


def conclusions(holdings: Sequence[Held]) -> tuple[str, ...]:
    """Say for each group whose cells hold different sizes what holding less costs, against the cell that holds most."""
    texts = []
    for group in _by_strategy(grouped(differing(holdings), _work_key).values()):
        totals = sorted(
            ((holding.total, holding) for holding in group if holding.total is not None), key=lambda pair: -pair[0]
        )
        texts += [_memory_sentence(*totals[0], *pair) for pair in totals[1:]]
    return tuple(texts)


def _by_strategy(groups: Iterable[list[Held]]) -> Iterator[list[Held]]:
    """Groups that vary recomputation are told strategy by strategy."""
    for group in groups:
        if len({holding.cell.spec.activation_checkpointing for holding in group}) == 1:
            yield group
        else:
            yield from grouped(group, lambda holding: holding.cell.spec.strategy).values()


def in_words(holdings: Sequence[Held]) -> tuple[str, ...]:
    """Say ``a rank holds 26.8 MB: parameters 4.25 MB, ...``, once for all cells that hold the same."""
    texts = []
    for sizes, group in grouped(holdings, lambda holding: tuple(holding.sizes.items())).items():
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in sizes if size or kind != "gathered")
        who = listed([f"{holding.cell.run.model}, {holding.cell.run.label}" for holding in group], at_most=4)
        texts.append(f"a rank holds {format_bytes(sum(dict(sizes).values()))}: {kinds} ({who})")
    return tuple(texts)


def _memory_sentence(most: int, first: Held, bytes_held: int, holding: Held) -> str:
    """Say what a rank holds less than the first, and how much longer the step takes."""
    ours, theirs = holding.cell.run.step_ns, first.cell.run.step_ns
    share = format_percent(1 - bytes_held / most)
    text = f"{holding.cell.run.label}: {format_bytes(bytes_held)} a rank, {share} less than {first.cell.run.label}"
    if ours is None or theirs is None:
        return f"{text}; no step time"
    ratio = ours.over(theirs)
    text += f"; a step takes {ratio.value:.2f}x as long"
    if ratio.low is None:
        return f"{text}, without an interval: too few steps"
    return f"{text} ({ratio.low:.2f} to {ratio.high:.2f}){'' if ratio.leaves_out(1) else ': no difference is shown'}"
