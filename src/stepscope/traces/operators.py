"""Operators by name: calls, time on the host, and the device work that each one launched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_work import OperatorRow, OperatorTable
from stepscope.traces.events import NONE, Category, Events, RankTrace
from stepscope.traces.flop import flop_by_event
from stepscope.traces.links import Launches
from stepscope.traces.nesting import Nest, nest, sums

Ints = NDArray[np.int64]

SORTS = ("device_self", "device_total", "host_self", "host_total", "calls", "flop", "name")


@dataclass(frozen=True, kw_only=True)
class OperatorLinks:
    """The tree of a rank's operators and, for every event of ``of``, which operator launched it.

    owner: position in ``nest`` of the innermost operator around the launch, NONE where there is none.
    """

    nest: Nest
    of: Ints
    owner: Ints

    def owner_of(self, indices: Ints) -> Ints:
        """The owners of these events, which must be among ``of``."""
        order = np.argsort(self.of)
        return self.owner[order[np.searchsorted(self.of, indices, sorter=order)]]


def operator_links(events: Events, launches: Launches) -> OperatorLinks:
    """Launches belong to the innermost operator open on their thread; where the runtime's events carry another
    thread id, to the operator of their external id, provided that it is open at that time.
    """
    chosen = events.where(Category.CPU_OP)
    tree = nest(chosen, events.thread[chosen], events.ts_ns[chosen], events.end_ns[chosen])
    owner = np.full(len(launches.of), NONE, dtype=np.int64)
    known = np.flatnonzero(launches.known)
    call = launches.launch[known]
    owner[known] = tree.innermost(events.thread[call].astype(np.int64), events.ts_ns[call])
    lost = known[owner[known] == NONE]
    owner[lost] = _by_external_id(events, tree, launches.launch[lost])
    return OperatorLinks(nest=tree, of=launches.of, owner=owner)


def _by_external_id(events: Events, tree: Nest, call: Ints) -> Ints:
    found = np.full(len(call), NONE, dtype=np.int64)
    ids = events.external_id[tree.index]
    order = np.argsort(ids, kind="stable")
    wanted = events.external_id[call]
    if not len(ids) or not len(call):
        return found
    place = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    when = events.ts_ns[call]
    open_then = (tree.starts[place] <= when) & (when < tree.ends[place])
    # Ids up to 0 are written where there is none.
    hit = (wanted > 0) & (ids[place] == wanted) & open_then
    found[hit] = place[hit]
    return found


def operator_table(
    trace: RankTrace,
    launches: Launches,
    *,
    links: OperatorLinks | None = None,
    by_shape: bool = False,
    sort: str = "device_self",
    limit: int | None = None,
) -> OperatorTable | None:
    """The rank's operators, sorted by one of SORTS (largest first; names ascending); None without operators.

    ``by_shape`` gives every recorded input shape a row of its own. Sorting by device time on a trace without device
    events sorts by the same figure of the host.
    """
    if sort not in SORTS:
        raise ValueError(f"sort is one of {', '.join(SORTS)}, not {sort!r}")
    events = trace.events
    links = operator_links(events, launches) if links is None else links
    tree = links.nest
    if not len(tree):
        return None
    device = events.is_device[launches.of]
    spent = np.where(device, events.dur_ns[launches.of], 0)
    owned = device & (links.owner != NONE)

    labels, keys = _labels(events, tree, by_shape=by_shape)
    outer = tree.outermost_of(labels)
    count = len(keys)
    launched_ns = sums(links.owner[owned], spent[owned], len(tree))
    flop, flop_known, source, why_not = _flop(events, tree, labels, count)
    host_self = sums(labels, tree.self_ns, count)
    host_total = sums(labels[outer], (tree.ends - tree.starts)[outer], count)
    device_self = sums(labels, launched_ns, count)
    device_total = sums(labels[outer], tree.subtree_sums(launched_ns)[outer], count)
    calls = np.bincount(labels, minlength=count)
    launches_of_label = np.bincount(labels[links.owner[owned]], minlength=count)

    figures = {
        "device_self": device_self, "device_total": device_total, "host_self": host_self,
        "host_total": host_total, "calls": calls, "flop": flop,
    }  # fmt: skip
    if sort.startswith("device") and not device.any():
        sort = sort.replace("device", "host")
    names = [events.names[name] for name, _ in keys]
    by_name = np.array(sorted(range(count), key=lambda i: names[i]), dtype=np.int64)
    ranked = by_name
    if sort != "name":
        ranked = by_name[np.lexsort((-host_total[by_name], -figures[sort][by_name]))]
    shown = ranked if limit is None else ranked[:limit]
    left = ranked[len(shown) :]
    rows = tuple(
        OperatorRow(
            rank=trace.rank,
            name=names[i],
            shapes=_shape_text(events, keys[i][1]) if by_shape else None,
            calls=int(calls[i]),
            host_total_ns=int(host_total[i]),
            host_self_ns=int(host_self[i]),
            device_total_ns=int(device_total[i]),
            device_self_ns=int(device_self[i]),
            device_events=int(launches_of_label[i]),
            flop=int(flop[i]) if flop_known[i] else None,
        )
        for i in shown.tolist()
    )
    return OperatorTable(
        rank=trace.rank,
        rows=rows,
        host_ns=int(tree.self_ns.sum()),
        device_ns=int(spent.sum()),
        outside_ns=int(spent[device & launches.known & (links.owner == NONE)].sum()),
        unlinked_ns=int(spent[device & ~launches.known].sum()),
        left_out_rows=len(left),
        left_out_host_self_ns=int(host_self[left].sum()),
        left_out_device_self_ns=int(device_self[left].sum()),
        flop_source=source,
        flop_unavailable=why_not,
    )


def _labels(events: Events, tree: Nest, *, by_shape: bool) -> tuple[Ints, list[tuple[int, int]]]:
    """Row of every operator, and the (name, shape) of every row."""
    name = events.name[tree.index].astype(np.int64)
    shape = events.shape[tree.index].astype(np.int64) if by_shape else np.full(len(name), NONE, dtype=np.int64)
    width = len(events.shapes) + 1
    distinct, labels = np.unique(name * width + shape + 1, return_inverse=True)
    return labels.astype(np.int64), [(int(k // width), int(k % width) - 1) for k in distinct]


def _flop(
    events: Events, tree: Nest, labels: Ints, count: int
) -> tuple[Ints, NDArray[np.bool_], str | None, str | None]:
    """FLOP by row, whether known for all of its calls, where from, or why not at all."""
    known, source, why_not = flop_by_event(events, tree.index)
    has = known >= 0
    complete = np.ones(count, dtype=bool)
    complete[labels[~has]] = False
    return sums(labels[has], known[has], count), complete, source, why_not


def _shape_text(events: Events, shape: int) -> str | None:
    return None if shape == NONE else events.shapes[shape].dims
