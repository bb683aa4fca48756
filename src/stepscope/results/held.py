"""What each rank of a cell holds, tensor by tensor, beside what its strategy planned, and what that costs in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_bytes, format_percent
from stepscope.core.words import grouped, listed
from stepscope.predict.specs import specs_of
from stepscope.records.plan import MemoryPlan
from stepscope.results.evidence import CellEvidence

STATES = ("parameters", "gradients", "optimizer")
KINDS = (*STATES, "gathered", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One cell. sizes: kind -> bytes of the rank that holds most of it; a kind that was not counted is not there."""

    cell: CellEvidence
    sizes: dict[str, int]
    plan: MemoryPlan

    @property
    def states(self) -> int:
        return sum(self.sizes.get(kind, 0) for kind in STATES)

    @property
    def total(self) -> int | None:
        """None: activations were not counted."""
        return sum(self.sizes.values()) if "activations" in self.sizes else None

    @property
    def planned_states(self) -> int:
        return self.plan.parameter_bytes + self.plan.gradient_bytes + self.plan.optimizer_bytes

    @property
    def planned_buffers(self) -> int:
        """Of communication, beside the parameters that are whole between the passes."""
        return self.plan.communication_bytes - self.plan.gathered_bytes

    @property
    def planned_activations(self) -> int | None:
        return None if self.plan.activations is None else sum(self.plan.activations.values())


def held_by(cell: CellEvidence) -> Held | None:
    """None where not all ranks counted their tensors."""
    ranks = [summary.memory for summary in cell.result.summaries]
    if cell.run.status != "ok" or not ranks or not all(ranks):
        return None
    sizes = {kind: max(rank.get(kind, 0) for rank in ranks) for kind in KINDS if all(kind in rank for rank in ranks)}
    return Held(cell=cell, sizes=sizes, plan=specs_of(cell.spec).memory_plan)


def held(cells: Sequence[CellEvidence]) -> tuple[Held, ...]:
    """Cells whose ranks counted their tensors."""
    return tuple(each for cell in cells if (each := held_by(cell)) is not None)


def differing(found: Sequence[Held]) -> tuple[Held, ...]:
    """Those among whose like some hold more than others."""
    alike: dict[tuple[object, ...], set[tuple[int, ...]]] = defaultdict(set)
    for each in found:
        alike[_group(each)].add(tuple(each.sizes.values()))
    return tuple(each for each in found if len(alike[_group(each)]) > 1)


def _group(each: Held) -> tuple[object, ...]:
    spec = each.cell.spec
    batch = (spec.micro_batch, spec.accumulation)
    return (spec.workload, repr(spec.model), spec.world_size, spec.optimizer, *batch, spec.precision, spec.network)


def conclusions(found: Sequence[Held]) -> tuple[str, ...]:
    """For each group whose cells hold different sizes what holding less costs: against the cell that holds most."""
    texts = []
    for group in _by_strategy(grouped(differing(found), _group).values()):
        known = sorted(((each.total, each) for each in group if each.total is not None), key=lambda pair: -pair[0])
        texts += [_against(*known[0], *pair) for pair in known[1:]]
    return tuple(texts)


def _by_strategy(groups: Iterable[list[Held]]) -> Iterator[list[Held]]:
    """Groups that vary recomputation are told strategy by strategy."""
    for group in groups:
        if len({each.cell.spec.activation_checkpointing for each in group}) == 1:
            yield group
        else:
            yield from grouped(group, lambda each: each.cell.spec.strategy).values()


def in_words(found: Sequence[Held]) -> tuple[str, ...]:
    """``a rank holds 26.8 MB: parameters 4.25 MB, ...``, once for all cells that hold the same."""
    texts = []
    for sizes, group in grouped(found, lambda each: tuple(each.sizes.items())).items():
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in sizes if size or kind != "gathered")
        who = listed([f"{each.cell.run.model}, {each.cell.run.label}" for each in group], at_most=4)
        texts.append(f"a rank holds {format_bytes(sum(dict(sizes).values()))}: {kinds} ({who})")
    return tuple(texts)


def _against(most: int, first: Held, bytes_held: int, each: Held) -> str:
    ours, theirs = each.cell.run.step_ns, first.cell.run.step_ns
    share = format_percent(1 - bytes_held / most)
    text = f"{each.cell.run.label}: {format_bytes(bytes_held)} a rank, {share} less than {first.cell.run.label}"
    if ours is None or theirs is None:
        return f"{text}; no step time"
    ratio = ours.over(theirs)
    text += f"; a step takes {ratio.value:.2f}x as long"
    if ratio.low is None:
        return f"{text}, without an interval: too few steps"
    return f"{text} ({ratio.low:.2f} to {ratio.high:.2f}){'' if ratio.leaves_out(1) else ': no difference is shown'}"
