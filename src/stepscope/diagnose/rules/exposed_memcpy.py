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
from stepscope.core.words import counted, grouped
from stepscope.diagnose.rule import WORTH, Limit, Statement, advise
from stepscope.diagnose.trace_facts import RankShares, on_device, share_rule, window_ns
from stepscope.records.trace_work import CopyRow

_WORTH = Limit(
    WORTH / 2,
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

_ADVICE = {
    "unified": "the driver moves pages of managed memory on demand: prefetch them before the kernels (cudaMemPrefetchAsync)",
    "DtoH": "read results less often: .item(), .cpu() and logging copy to the host and wait",
    "DtoD": "avoid copies within the device: .clone(), .contiguous(), torch.cat; use views instead",
    "PtoP": "copy between devices on a stream of its own, beside other work, or keep both tensors on one device",
    "memset": "clear memory less often: zero_grad(set_to_none=True), torch.empty where the code overwrites everything",
    "HtoD pageable": "pin what is copied, and copy beside the work: DataLoader(pin_memory=True), "
    ".to(device, non_blocking=True)",
    "HtoD": "copy the next batch on a stream of its own while this one computes (non_blocking=True)",
}
"""Against the memory or the kind of copy with most exposed time; pinning only where host memory is copied to the device."""


def _exposed_memcpy_statement(part: RankShares) -> Statement:
    """Return the finding, or why there is none: exposed copies: nothing runs beside them."""
    rows = [row for p in part.ranks if p.copies is not None for row in p.copies.rows]
    kinds = grouped(rows, lambda row: (row.kind, row.memory))
    ranked = sorted(kinds.items(), key=lambda item: -sum(r.exposed_ns for r in item[1]))
    most, memory = ranked[0][0] if ranked else ("other", None)
    keys = (memory, f"{most} {memory}", most)
    return part.finding(
        f"{part} is exposed copies, mostly {_DIRECTION.get(most, 'of other kinds')}"
        + (f" ({memory} memory)" if memory else ""),
        [_copies_text(*kind, some) for kind, some in ranked[:3]],
        advice=[
            advise(
                next((_ADVICE[key] for key in keys if key in _ADVICE), "find the operators that copy"),
                key="other copies",
            ),
            ("see the kinds of copies", "--show copies,operators"),
        ],
    )


def _copies_text(kind: str, memory: str | None, rows: list[CopyRow]) -> str:
    """Write one kind of copy: its rate, number and exposed time."""
    size = sum(r.size_bytes or 0 for r in rows)
    seconds = sum((r.size_bytes or 0) / r.bytes_per_s for r in rows if r.bytes_per_s)
    rate = f" at {format_bandwidth(size / seconds)}" if seconds else ""
    of = f" ({memory})" if memory else ""
    copies = counted(sum(r.calls for r in rows), "memset" if kind == "memset" else "copy")
    where = "" if kind == "memset" else f" {_DIRECTION.get(kind, 'of another kind')}{of}"
    return f"{copies}{where}{rate}: {format_duration(sum(r.exposed_ns for r in rows))} of them exposed"


RULE = share_rule(
    symptom="exposed copies: nothing runs beside them",
    ranks=on_device,
    without="no device work: a CPU job has no device copies",
    measure=lambda ranks: [p.budget.parts.exposed_memory_ns / window_ns(p) if p.budget else 0.0 for p in ranks],
    limit=_WORTH,
    figures=lambda part: f"exposed copies take {part}",
    report=_exposed_memcpy_statement,
    claims=("copies",),
    whole=True,
    protocol=4,
)
