"""Exposed copies take a large share of the time: no computation or communication runs beside them.

What
----
Time of copies and memsets without concurrent computation or communication, over the window, mean over ranks; with their
kinds, memory and rates.

Why
---
The driver stages a copy from pageable memory through a pinned buffer, at a fraction of the link's rate, and blocks the
host. From pinned memory with `non_blocking=True` the copy overlaps device work.

Known problems
--------------
Whether host memory was pinned is known only if the profiler records it (CUPTI does, ROCm mostly does not). Copies
between devices and memsets count too; pinning does not change those.

References
----------
PyTorch, A guide on good usage of non_blocking and pin_memory(); NVIDIA, How to Optimize Data Transfers in CUDA C/C++,
2012.
"""

from __future__ import annotations

from stepscope.core.units import format_bandwidth, format_duration
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, advise, inspect
from stepscope.diagnose.trace_facts import WORTH, RankShares, on_device, share_rule, window_ns
from stepscope.records.finding import Advice, Finding
from stepscope.records.trace_summary import RankPass
from stepscope.records.trace_work import CopyRow

_WORTH = Limit(
    value=WORTH / 2,
    unit="share of the window",
    source="stepscope's choice, 2026-11: half the limit of other parts, since pinning takes one argument",
)

_DIRECTION = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "within the device",
    "PtoP": "device to device",
    "HtoH": "within the host",
    "memset": "memsets",
}


def _report(part: RankShares) -> Finding:
    rows = [row for p in part.ranks if p.copies is not None for row in p.copies.rows]
    kinds = _by_kind(rows)
    most, memory = next(iter(kinds), ("other", None))
    return part.finding(
        f"{part} is exposed copies, mostly {_DIRECTION.get(most, 'of other kinds')}"
        + (f" ({memory} memory)" if memory else ""),
        [_row(kind, of, r) for (kind, of), r in list(kinds.items())[:3]],
        confidence="measured",
        advice=(
            _advice(most, memory),
            inspect("see the kinds of copies", part.command("--show copies,operators")),
        ),
    )


def _share(rank: RankPass) -> float:
    return rank.budget.parts.exposed_memory_ns / window_ns(rank) if rank.budget else 0.0


def _by_kind(rows: list[CopyRow]) -> dict[tuple[str, str | None], list[CopyRow]]:
    """Rows of all ranks by kind and memory, longest exposed first."""
    kinds: dict[tuple[str, str | None], list[CopyRow]] = {}
    for row in rows:
        kinds.setdefault((row.kind, row.memory), []).append(row)
    return dict(sorted(kinds.items(), key=lambda item: -sum(r.exposed_ns for r in item[1])))


def _row(kind: str, memory: str | None, rows: list[CopyRow]) -> str:
    calls, exposed = sum(r.calls for r in rows), sum(r.exposed_ns for r in rows)
    size = sum(r.size_bytes or 0 for r in rows)
    seconds = sum((r.size_bytes or 0) / r.bytes_per_s for r in rows if r.bytes_per_s)
    rate = f" at {format_bandwidth(size / seconds)}" if seconds else ""
    of = f" ({memory})" if memory else ""
    copies = counted(calls, "memset" if kind == "memset" else "copy")
    where = "" if kind == "memset" else f" {_DIRECTION.get(kind, 'of another kind')}{of}"
    return f"{copies}{where}{rate}: {format_duration(exposed)} of them exposed"


def _advice(kind: str, memory: str | None) -> Advice:
    """Advise against the kind of copy with most exposed time; pinning only where host memory is copied to the device."""
    if memory == "unified":
        text = "the driver moves pages of managed memory on demand: prefetch them before the kernels (cudaMemPrefetchAsync)"
    elif kind == "DtoH":
        text = "read results less often: .item(), .cpu() and logging copy to the host and wait"
    elif kind == "DtoD":
        text = "avoid copies within the device: .clone(), .contiguous(), torch.cat; use views instead"
    elif kind == "PtoP":
        text = "copy between devices on a stream of its own, beside other work, or keep both tensors on one device"
    elif kind == "memset":
        text = "clear memory less often: zero_grad(set_to_none=True), torch.empty where the code overwrites everything"
    elif kind == "HtoD" and memory == "pageable":
        text = (
            "pin what is copied, and copy beside the work: DataLoader(pin_memory=True), .to(device, non_blocking=True)"
        )
    elif kind == "HtoD":
        text = "copy the next batch on a stream of its own while this one computes (non_blocking=True)"
    else:
        text = "find the operators that copy"
    return advise(text, key="other copies")


RULE = share_rule(
    symptom="exposed copies: nothing runs beside them",
    ranks=on_device,
    without="no device work: a CPU job has no device copies",
    measure=lambda ranks: list(map(_share, ranks)),
    limit=_WORTH,
    figures=lambda part: f"exposed copies take {part}",
    report=_report,
    claims=("step/copies",),
    protocol=4,
)
