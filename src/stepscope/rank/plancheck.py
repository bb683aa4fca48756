"""Which collectives a step really launched, and whether they are those that its strategy declared.

torch's flight recorder keeps every collective of a process in a ring, with its sizes and dtypes, on gloo as on
NCCL. The step to watch is enclosed by a mark of our own, a tiny all-reduce: if the recorder does not show the mark,
it does not record, and nothing is claimed about the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from stepscope.core.errors import Unavailable
from stepscope.core.words import counted
from stepscope.records.flight import DTYPES
from stepscope.records.plan import CommOp
from stepscope.records.samples import PlanCheck

SOURCE = "flight recorder"

# Calls on one flat tensor carry other names than the same collective on a list of tensors.
OPS = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedOp:
    """One collective as recorded: its name as in plans, elements and dtype of the tensors passed in."""

    op: str
    numel: int
    dtype: str


def observe(
    run: Callable[[], object], *, group: dist.ProcessGroup | None = None
) -> tuple[ObservedOp, ...] | Unavailable:
    """Collectives that ``run`` launches on ``group`` (None: the default one), in launch order.

    ``run`` is called exactly once whatever the recorder does. All ranks of the group must call this together.
    """
    if not dist.is_initialized():
        run()
        return ()
    mark = _leave_mark(group)
    run()
    if isinstance(mark, Unavailable):
        return mark
    entries = _entries(group)
    if mark not in {e["record_id"] for e in entries}:
        return Unavailable(
            f"the flight recorder kept only the last {counted(len(entries), 'collective')}, fewer than the step made: "
            "set TORCH_FR_BUFFER_SIZE higher"
        )
    return tuple(_observed(e) for e in entries if e["record_id"] > mark)


def check(plan: Sequence[CommOp], observed: tuple[ObservedOp, ...] | Unavailable) -> PlanCheck:
    """Whether op, elements, dtype and order of what was observed are those of ``plan``."""
    expected = tuple(_text(op) for op in plan)
    if isinstance(observed, Unavailable):
        return PlanCheck(matches=False, expected=expected, observed=(), source=SOURCE, unavailable=observed.reason)
    seen = tuple(_text(op) for op in observed)
    return PlanCheck(matches=seen == expected, expected=expected, observed=seen, source=SOURCE)


def _text(op: CommOp | ObservedOp) -> str:
    return f"{op.op} {op.dtype}[{op.numel}]"


def _leave_mark(group: dist.ProcessGroup | None) -> int | Unavailable:
    """The record id of an all-reduce made here, so that later entries are the step's."""
    if _dump(group) is None:
        return Unavailable("this torch has no flight recorder that can be read")
    before = {e["record_id"] for e in _entries(group)}
    device = f"cuda:{torch.cuda.current_device()}" if dist.get_backend(group) == "nccl" else "cpu"
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    new = [e["record_id"] for e in _entries(group) if e["record_id"] not in before]
    if not new:
        return Unavailable("the flight recorder does not record (TORCH_FR_BUFFER_SIZE is 0?)")
    return int(max(new))


def _dump(group: dist.ProcessGroup | None) -> Callable[..., str | bytes] | None:
    """The recorder's JSON dump; NCCL's collectives are kept apart from those of the other backends."""
    names = ["_dump_fr_trace_json"]
    if dist.get_backend(group) == "nccl":
        names.insert(0, "_dump_nccl_trace_json")
    return next((getattr(c10d, name) for name in names if hasattr(c10d, name)), None)


def _entries(group: dist.ProcessGroup | None) -> list[dict[str, Any]]:
    """The recorded collectives of ``group``, oldest first; point-to-point calls left out."""
    dump = _dump(group)
    if dump is None:
        return []
    name = (group or dist.group.WORLD).group_name  # type: ignore[union-attr]
    entries = json.loads(dump(True, False)).get("entries", [])
    ours = [e for e in entries if e["process_group"][0] == name and not e["is_p2p"]]
    return sorted(ours, key=lambda e: e["record_id"])


def _observed(entry: dict[str, Any]) -> ObservedOp:
    name = entry["profiling_name"].partition(":")[2]
    dtypes = {DTYPES.get(d, d) for d in entry["input_dtypes"]}
    return ObservedOp(
        op=OPS.get(name, name),
        numel=sum(math.prod(shape) for shape in entry["input_sizes"]),
        dtype="+".join(sorted(dtypes)),
    )


def last_enqueued() -> tuple[int, str | None] | None:
    """(collectives enqueued so far, the last one as ``all_reduce [[1024]]``) of the default group; None: not recorded.

    Reads the recorder only, so that it may be asked from another thread while this one hangs in a collective.
    """
    if not dist.is_initialized():
        return None
    entries = _entries(None)
    if not entries:
        return None
    last = entries[-1]
    name = str(last["profiling_name"]).partition(":")[2]
    return int(last["record_id"]) + 1, f"{name} {last['input_sizes']}"
