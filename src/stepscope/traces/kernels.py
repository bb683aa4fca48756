"""Kernels by name: how often, how long, what kind, and whether they use the matrix units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_work import KernelRow, KernelTable
from stepscope.traces.classify import Work, work_of
from stepscope.traces.events import Category, RankTrace
from stepscope.traces.kernel_names import uses_tensor_cores

Ints = NDArray[np.int64]

_WORK = {Work.COMPUTE: "compute", Work.COMMUNICATION: "communication"}


def kernel_table(trace: RankTrace, *, limit: int | None = None, indices: Ints | None = None) -> KernelTable | None:
    """The rank's kernels by total time, or only those among ``indices``; None when the trace has no kernels.

    Durations of kernels that run at one time on several streams all count.
    """
    events = trace.events
    chosen = events.where(Category.KERNEL)
    if indices is not None:
        chosen = np.intersect1d(chosen, indices, assume_unique=True)
    if not len(chosen):
        return None
    names, durations, work = events.name[chosen], events.dur_ns[chosen], work_of(events)[chosen]
    order = np.lexsort((durations, names))
    names, durations, work = names[order], durations[order], work[order]
    first = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    last = np.append(first[1:], len(names)) - 1
    calls = last - first + 1
    totals = np.add.reduceat(durations, first)
    medians = (durations[first + (calls - 1) // 2] + durations[first + calls // 2]) / 2
    total = int(totals.sum())
    tensor = [uses_tensor_cores(events.names[int(names[i])]) for i in first]
    ranked = np.argsort(-totals, kind="stable")
    shown = ranked if limit is None else ranked[:limit]
    left = ranked[len(shown) :]
    rows = tuple(
        KernelRow(
            rank=trace.rank,
            name=events.names[int(names[first[i]])],
            work=_WORK[Work(int(work[first[i]]))],
            tensor_cores=tensor[i],
            calls=int(calls[i]),
            total_ns=int(totals[i]),
            min_ns=int(durations[first[i]]),
            max_ns=int(durations[last[i]]),
            mean_ns=float(totals[i] / calls[i]),
            median_ns=float(medians[i]),
            share=float(totals[i] / total) if total else 0.0,
        )
        for i in shown.tolist()
    )
    computes = work[first] == Work.COMPUTE
    shares = _tensor_shares(totals, computes, tensor)
    return KernelTable(
        rank=trace.rank,
        rows=rows,
        total_ns=total,
        left_out_names=len(left),
        left_out_calls=int(calls[left].sum()),
        left_out_ns=int(totals[left].sum()),
        tensor_core_share=shares[0],
        other_share=shares[1],
        unknown_share=shares[2],
    )


def _tensor_shares(
    totals: Ints, computes: NDArray[np.bool_], tensor: list[bool | None]
) -> tuple[float | None, float | None, float | None]:
    compute_ns = int(totals[computes].sum())
    if not compute_ns:
        return None, None, None

    def share(wanted: bool | None) -> float:
        mine = np.array([t is wanted for t in tensor], dtype=bool) & computes
        return float(totals[mine].sum() / compute_ns)

    return share(True), share(False), share(None)
