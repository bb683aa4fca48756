"""Memory copies by kind: how much, how fast, and how much of their time nothing hid."""

from __future__ import annotations

import re

import numpy as np

from stepscope.records.trace_work import CopyRow, CopyTable
from stepscope.stats import spans
from stepscope.stats.spans import distinct
from stepscope.traces.events import Category, Events, Ints, RankTrace
from stepscope.traces.kernel_names import Work, work_of

_DIRECTION = re.compile(r"\b(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH|AtoA|AtoD|DtoA)\b")
_WORDS = re.compile(r"Copy(Host|Device)To(Host|Device)")


def copy_kind(name: str) -> tuple[str, str | None]:
    """Direction and host memory (pinned, pageable, unified or None) from a copy's name, as CUPTI and ROCm spell them."""
    if found := _DIRECTION.search(name):
        kind = found[1]
    elif words := _WORDS.search(name):
        kind = f"{words[1][0]}to{words[2][0]}"
    elif "memset" in name.lower() or "fillbuffer" in name.lower():
        kind = "memset"
    else:
        kind = "other"
    memory = next((word.lower() for word in ("Pageable", "Pinned", "Unified") if word in name), None)
    return kind, memory


def copy_table(trace: RankTrace) -> CopyTable | None:
    """The rank's copies and memsets by kind, longest first; None when the trace has none."""
    events = trace.events
    chosen = events.where(Category.MEMCPY, Category.MEMSET)
    if not len(chosen):
        return None
    work = work_of(events)
    kernels = np.flatnonzero((work == Work.COMPUTE) | (work == Work.COMMUNICATION))
    hidden_by = spans.union(events.ts_ns[kernels], events.end_ns[kernels])
    kinds: dict[tuple[str, str | None], int] = {}
    by_name = np.full(len(events.names), -1, dtype=np.int64)
    for code in distinct(events.name[chosen]).tolist():
        by_name[code] = kinds.setdefault(copy_kind(events.names[code]), len(kinds))
    kind_of = by_name[events.name[chosen]]
    size = _sizes(events, chosen)
    rows = []
    for (kind, memory), number in kinds.items():
        mine = kind_of == number
        indices, sizes = chosen[mine], size[mine]
        busy = spans.union(events.ts_ns[indices], events.end_ns[indices])
        known = sizes >= 0
        timed = int(events.dur_ns[indices[known]].sum())
        moved = int(sizes[known].sum()) if known.any() else None
        rows.append(
            CopyRow(
                rank=trace.rank,
                kind=kind,
                memory=memory,
                calls=len(indices),
                total_ns=int(events.dur_ns[indices].sum()),
                busy_ns=busy.measure,
                exposed_ns=spans.subtract(busy, hidden_by).measure,
                sized_calls=int(known.sum()),
                size_bytes=moved,
                bytes_per_s=moved / (timed / 1e9) if moved is not None and timed else None,
                largest_bytes=int(sizes[known].max()) if known.any() else None,
                median_bytes=float(np.median(sizes[known])) if known.any() else None,
            )
        )
    rows.sort(key=lambda r: (-r.total_ns, r.kind, r.memory or ""))
    busy = spans.union(events.ts_ns[chosen], events.end_ns[chosen])
    return CopyTable(
        rank=trace.rank,
        rows=tuple(rows),
        busy_ns=busy.measure,
        exposed_ns=spans.subtract(busy, hidden_by).measure,
    )


def _sizes(events: Events, chosen: Ints) -> Ints:
    """Bytes of each event, -1 where not recorded."""
    sizes = np.full(len(chosen), -1, dtype=np.int64)
    if events.copied_bytes:
        known = np.fromiter(events.copied_bytes, dtype=np.int64, count=len(events.copied_bytes))
        amounts = np.fromiter(events.copied_bytes.values(), dtype=np.int64, count=len(known))
        order = np.argsort(known)
        place = np.minimum(np.searchsorted(known, chosen, sorter=order), len(known) - 1)
        hit = known[order[place]] == chosen
        sizes[hit] = amounts[order[place[hit]]]
    return sizes
