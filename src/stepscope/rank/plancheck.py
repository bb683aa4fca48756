"""Which collectives a step really launched, and whether they are those that its strategy declared.

torch's flight recorder keeps every collective of a process in a ring, with its sizes and dtypes, on gloo as on
NCCL. The step to watch is enclosed by a mark of our own, a tiny all-reduce: if the recorder does not show the mark,
it does not record, and nothing is claimed about the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import _world as c10d_groups

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.words import counted
from stepscope.rank.mesh import Mesh
from stepscope.rank.timer import Regions
from stepscope.records.nccl import DTYPES, OPS
from stepscope.records.plan import CommOp
from stepscope.records.samples import PlanCheck

SOURCE = "flight recorder"
_MESSAGES = ("send", "recv")
_PHASE = {
    Regions.FORWARD: "forward",
    Regions.LOSS: "forward",
    Regions.BACKWARD: "backward",
    Regions.COMMUNICATION: "after_backward",
    Regions.OPTIMIZER: "optimizer",
}


@record
class ObservedOp:
    """One collective as recorded: its name as in plans, elements and dtype of the whole buffer, mesh dimension.

    phase: as in plans; empty: not told.
    """

    op: str
    numel: int
    dtype: str
    group: str = "dp"
    phase: str = ""


class Phases(Regions):
    """Regions of a step that note which calls each group launched in each of them."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self._launches: list[tuple[dict[str, int], dict[str, int], str]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        before = _launched_counts()
        yield
        self._launches.append((before, _launched_counts(), _PHASE.get(name, "")))

    def of(self, group: str, number: int) -> str:
        """Return the phase that launched the group's call of this number; empty: none did."""
        within = (
            phase for before, last, phase in self._launches if before.get(group, 0) < number <= last.get(group, 0)
        )
        return next(within, "")


def observe(
    run: Callable[[], object], mesh: Mesh | None = None, *, phases: Phases | None = None
) -> tuple[ObservedOp, ...] | Unavailable:
    """Return the collectives that ``run`` launches, in launch order, without sends and receives: gloo's recorder has none.

    mesh: names the groups (None: all ranks are data parallel); one that is not of the mesh is named by its size.
    phases: the regions that ``run`` goes through, to name each call's phase.
    ``run`` is called exactly once whatever the recorder does. All ranks must call this together.
    """
    if not dist.is_initialized():
        run()
        return ()
    if _json_dump() is None:
        run()
        return Unavailable("this torch has no flight recorder that can be read")
    mark = _leave_mark()
    run()
    entries = _calls_held()
    first = next((i for i, e in enumerate(entries) if _group_and_number(e) == mark), None)
    if first is None:
        return Unavailable(
            f"the flight recorder kept only the last {counted(len(entries), 'collective')}, fewer than the step made: "
            "set TORCH_FR_BUFFER_SIZE higher"
            if entries
            else "the flight recorder does not record (TORCH_FR_BUFFER_SIZE is 0?)"
        )
    names = {dist.group.WORLD.group_name: "dp"} if mesh is None else mesh.group_names()  # type: ignore[union-attr]
    sizes = {name: mesh.size(dimension) if mesh else dist.get_world_size() for name, dimension in names.items()}
    collectives = [e for e in entries[first + 1 :] if not e["is_p2p"]]
    return tuple(
        _observed_op(e, names, sizes, "" if phases is None else phases.of(*_group_and_number(e))) for e in collectives
    )


def check(
    plan: Sequence[CommOp],
    observed: tuple[ObservedOp, ...] | Unavailable,
    *,
    backend: str = "gloo",
    messages: Sequence[ObservedOp] = (),
) -> PlanCheck:
    """Whether op, elements, dtype and group of what was observed, and their order in each group, are those of ``plan``;
    the phases, too, where they were observed.

    messages: sends and receives as the strategy saw them; they come first, and a schedule may choose their order.
    """
    recorded = [op for op in plan if op.op not in _MESSAGES]
    if backend == "gloo":  # it runs a reduce_scatter as an all_reduce of its whole input
        recorded = [replace(op, op="all_reduce") if op.op == "reduce_scatter" else op for op in recorded]
    recorded.sort(key=attrgetter("group"))
    planned = sorted(_op_text(op) for op in plan if op.op in _MESSAGES)
    phased = not isinstance(observed, Unavailable) and any(op.phase for op in observed)
    expected = (*planned, *(_op_text(op, phased=phased) for op in recorded))
    if isinstance(observed, Unavailable):
        return PlanCheck(matches=False, expected=expected, observed=(), source=SOURCE, unavailable=observed.reason)
    seen = (
        *sorted(_op_text(op) for op in messages),
        *(_op_text(op, phased=phased) for op in sorted(observed, key=attrgetter("group"))),
    )
    return PlanCheck(matches=seen == expected, expected=expected, observed=seen, source=SOURCE)


def _op_text(op: CommOp | ObservedOp, *, phased: bool = False) -> str:
    group = "" if op.group == "dp" else f" on {op.group}"
    return f"{op.op} {op.dtype}[{op.numel}]{group}" + (f" in {op.phase or 'no phase'}" if phased else "")


def _leave_mark() -> tuple[str, int]:
    """Make an all-reduce; return its place, so that later entries are the step's."""
    device = f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
    dist.all_reduce(torch.zeros(1, device=device))
    world = dist.group.WORLD.group_name  # type: ignore[union-attr]
    return world, _launched_counts()[world]


def _launched_counts() -> dict[str, int]:
    """Count the calls that each group of this process has launched, by its name.

    Asked of the groups: the recorder tells its calls all at once, and a full ring takes a third of a second.
    """
    if not dist.is_initialized():
        return {}
    groups = c10d_groups.pg_names.items()
    return {name: group._get_sequence_number_for_group() for group, name in groups}  # type: ignore[attr-defined]


def _group_and_number(entry: Mapping[str, Any]) -> tuple[str, int]:
    """Return (group, number among its calls) of a recorded call. gloo counts messages, too, and has that count in
    ``op_id``."""
    name = entry["process_group"][0]
    number = entry["op_id" if str(entry["profiling_name"]).startswith("gloo:") else "collective_seq_id"]
    return name, int(number)


def _json_dump() -> Callable[..., str | bytes] | None:
    """Return the recorder's JSON dump; NCCL's collectives are kept apart from those of the other backends."""
    names = ["_dump_fr_trace_json"]
    if dist.get_backend() == "nccl":
        names.insert(0, "_dump_nccl_trace_json")
    return next((getattr(c10d, name) for name in names if hasattr(c10d, name)), None)


def _calls_held() -> list[dict[str, Any]]:
    """Return the recorded calls, oldest first."""
    dump = _json_dump()
    entries = [] if dump is None else json.loads(dump(True, False)).get("entries", [])
    return sorted(entries, key=lambda e: e["record_id"])


def _observed_op(entry: dict[str, Any], groups: Mapping[str, str], sizes: Mapping[str, int], phase: str) -> ObservedOp:
    """Return a recorded call as an operation of a plan."""
    name = entry["profiling_name"].partition(":")[2].partition(" ")[0]  # "send 0->1" on NCCL
    op = OPS.get(name, name)
    dtypes = {DTYPES.get(d, d) for d in entry["input_dtypes"]}
    group = entry["process_group"][0]
    # The list form of all_gather records the first of its outputs alone: where the group is known, inputs tell the whole.
    by_inputs = op != "all_gather" or group in sizes
    numel = sum(math.prod(shape) for shape in entry["input_sizes" if by_inputs else "output_sizes"])
    return ObservedOp(
        op=op,
        numel=numel * sizes[group] if by_inputs and op == "all_gather" else numel,
        dtype="+".join(sorted(dtypes)),
        group=groups.get(group) or _group_by_size(group),
        phase=phase,
    )


def _group_by_size(group: str) -> str:
    """Name a group that is not of the mesh, such as those that ``fully_shard`` makes, by its size."""
    ranks = dist.get_process_group_ranks(c10d._resolve_process_group(group))  # type: ignore[arg-type]
    return f"{len(ranks)} ranks"


def last_enqueued() -> tuple[int, str | None] | None:
    """Return (collectives enqueued so far, the last one as ``all_reduce [[1024]]``) of the default group; None: not
    recorded.

    Reads the recorder only, so that it may be asked from another thread while this one hangs in a collective.
    """
    if not dist.is_initialized():
        return None
    entries = [e for e in _calls_held() if e["process_group"][0] == dist.group.WORLD.group_name and not e["is_p2p"]]  # type: ignore[union-attr]
    if not entries:
        return None
    last = entries[-1]
    name = str(last["profiling_name"]).partition(":")[2]
    return int(last["record_id"]) + 1, f"{name} {last['input_sizes']}"
