"""Kernels by name: how often, how long, what kind, and whether they use the matrix units.

Runs of kernels that follow each other again and again on a stream: what a fused kernel could replace.

Memory copies by kind: how much, how fast, and how much of their time nothing hid.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_work import CopyRow, CopyTable, KernelRow, KernelTable, SequenceRow
from stepscope.stats import spans
from stepscope.stats.spans import distinct
from stepscope.traces.classes import classes_of, work_of
from stepscope.traces.events import NONE, Category, Events, Ints, RankView
from stepscope.traces.kernel_names import Work, uses_tensor_cores
from stepscope.traces.nesting import find

_WORK = {Work.COMPUTE: "compute", Work.COMMUNICATION: "communication", Work.MEMORY: "copies"}


def kernel_table(view: RankView) -> KernelTable | None:
    """The rank's kernels by total time; None when the trace has no kernels.

    Durations of kernels that run at one time on several streams all count.
    """
    events = view.events
    chosen = events.where(Category.KERNEL)
    if not len(chosen):
        return None
    names, durations, work = events.name[chosen], events.dur_ns[chosen], work_of(view)[chosen]
    unknown = set(events.name[classes_of(view).unknown].tolist())
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
    rows = tuple(
        KernelRow(
            rank=view.rank,
            name=events.names[int(names[first[i]])],
            work="unknown" if int(names[first[i]]) in unknown else _WORK[Work(int(work[first[i]]))],
            tensor_cores=tensor[i],
            calls=int(calls[i]),
            total_ns=int(totals[i]),
            min_ns=int(durations[first[i]]),
            max_ns=int(durations[last[i]]),
            mean_ns=float(totals[i] / calls[i]),
            median_ns=float(medians[i]),
            share=float(totals[i] / total) if total else 0.0,
        )
        for i in ranked.tolist()
    )
    computes = work[first] == Work.COMPUTE
    return KernelTable(
        rank=view.rank,
        rows=rows,
        total_ns=total,
        left_out_names=0,
        left_out_calls=0,
        left_out_ns=0,
        **_tensor_shares(totals, computes, tensor),
    )


def _tensor_shares(totals: Ints, computes: NDArray[np.bool_], tensor: list[bool | None]) -> dict[str, float | None]:
    """Return the shares of computation in kernels that use tensor cores, that do not, and of which it is unknown."""
    compute_ns = int(totals[computes].sum())

    def share(wanted: bool | None) -> float | None:
        chosen = np.array([t is wanted for t in tensor], dtype=bool) & computes
        return float(totals[chosen].sum() / compute_ns) if compute_ns else None

    return {"tensor_core_share": share(True), "other_share": share(False), "unknown_share": share(None)}


LENGTHS = (2, 3, 4, 5, 6, 8)
MIN_COUNT = 3
MOST_SEQUENCES = 20
CANDIDATES = 500
"""Sequences of each length that are looked at closely: those with most time."""


def sequence_rows(view: RankView) -> tuple[SequenceRow, ...]:
    """The sequences of compute kernels by the time between and in them, longest first.

    A sequence ends where other work (a copy, a collective) stands between on the stream. One that only ever occurs inside
    a longer one listed with as many occurrences is left out.
    Exact: sequences are told apart by their kernels, never by a hash.
    """
    events = view.events
    device = np.flatnonzero(events.is_device)
    place = events.lane(device)
    order = np.lexsort((events.ts_ns[device], place))
    device, place = device[order], place[order]
    compute = work_of(view)[device] == Work.COMPUTE
    if not compute.any():
        return ()
    starts, ends = events.ts_ns[device], events.end_ns[device]
    joined = (place[1:] == place[:-1]) & compute[1:] & compute[:-1]
    base = np.unique(events.name[device], return_inverse=True)[1].astype(np.int64)
    kernels_ns = int(events.dur_ns[device[compute]].sum())
    before = np.concatenate([[0], np.cumsum(events.dur_ns[device])])
    gaps = np.concatenate([[0], np.cumsum(np.maximum(starts[1:] - ends[:-1], 0))])
    sequences: list[tuple[int, Ints]] = []  # length, places of non-overlapping occurrences
    code, valid = base, compute
    for length in range(2, max(LENGTHS) + 1):
        code, valid = _extended_codes(code, valid, base, joined, length)
        if not valid.any():
            break
        if length in LENGTHS:
            sequences += _frequent_sequences(code, valid, length, before)
    rows = []
    for length, places in _closed_sequences(sequences, device, events.name):
        total = int((before[places + length] - before[places]).sum())
        gap = int((gaps[places + length - 1] - gaps[places]).sum())
        first = int(places[0])
        rows.append(
            SequenceRow(
                rank=view.rank,
                kernels=tuple(events.name_of(int(i)) for i in device[first : first + length]),
                count=len(places),
                total_ns=total,
                gap_ns=gap,
                mean_ns=(total + gap) / len(places),
                share=total / kernels_ns if kernels_ns else 0.0,
            )
        )
    rows.sort(key=lambda r: (-(r.total_ns + r.gap_ns), r.kernels))
    return tuple(rows[:MOST_SEQUENCES])


def _extended_codes(
    code: Ints, valid: NDArray[np.bool_], base: Ints, joined: NDArray[np.bool_], length: int
) -> tuple[Ints, NDArray[np.bool_]]:
    """Codes of the sequences of ``length`` from those one shorter: place i stands for the kernels i .. i+length-1."""
    n = len(base)
    longer = np.zeros(n, dtype=bool)
    longer[: n - length + 1] = valid[: n - length + 1] & joined[length - 2 :]
    places = np.flatnonzero(longer)
    result = np.zeros(n, dtype=np.int64)
    pairs = code[places] * (int(base.max()) + 1) + base[places + length - 1]
    result[places] = np.unique(pairs, return_inverse=True)[1]
    return result, longer


def _frequent_sequences(code: Ints, valid: NDArray[np.bool_], length: int, before: Ints) -> list[tuple[int, Ints]]:
    """The sequences of this length with at least ``MIN_COUNT`` occurrences apart, those with most time only."""
    places = np.flatnonzero(valid)
    places = places[np.argsort(code[places], kind="stable")]
    codes = code[places]
    first = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    last = np.append(first[1:], len(codes))
    spent = np.add.reduceat(before[places + length] - before[places], first)
    often = np.flatnonzero(last - first >= MIN_COUNT)
    often = often[np.argsort(-spent[often], kind="stable")][:CANDIDATES]
    sequences = []
    for low, high in zip(first[often].tolist(), last[often].tolist(), strict=True):
        apart = _places_apart(places[low:high], length)
        if len(apart) >= MIN_COUNT:
            sequences.append((length, apart))
    return sequences


def _places_apart(places: Ints, length: int) -> Ints:
    """The places, first come first served, whose sequences do not overlap. ``places`` ascend."""
    if len(places) < 2 or int(np.diff(places).min()) >= length:
        return places
    kept, free = [], -1
    for place in places.tolist():
        if place >= free:
            kept.append(place)
            free = place + length
    return np.array(kept, dtype=np.int64)


def _closed_sequences(
    sequences: list[tuple[int, Ints]], device: Ints, name: NDArray[np.int32]
) -> list[tuple[int, Ints]]:
    """Keep the sequences that no longer one with the same number of occurrences contains."""
    kept: list[tuple[int, Ints]] = []
    inside: set[tuple[int, bytes]] = set()
    for length, places in sorted(sequences, key=lambda f: -f[0]):
        kernels = name[device[int(places[0]) : int(places[0]) + length]]
        if (len(places), kernels.tobytes()) in inside:
            continue
        kept.append((length, places))
        for shorter in range(2, length):
            for start in range(length - shorter + 1):
                inside.add((len(places), kernels[start : start + shorter].tobytes()))
    return kept


_DIRECTION = re.compile(r"\b(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH|AtoA|AtoD|DtoA)\b")
_LETTERS = re.compile(r"(?<![A-Za-z0-9])([HDMSP])(?:2|To)([HDMSP])(?![a-z0-9])", re.IGNORECASE)
_WORDS = re.compile(r"(host|device|peer|managed)_?(?:to|2)_?(host|device|peer|managed)", re.IGNORECASE)
_SIDES = {"h": "H", "m": "H", "managed": "H", "host": "H", "d": "D", "s": "D", "device": "D", "p": "P", "peer": "P"}
"""Level Zero calls memory that its driver did not allocate M, which is the host's, and shared memory S."""


def copy_kind(name: str) -> tuple[str, str | None]:
    """Direction and host memory (pinned, pageable, unified or None) from a copy's name, as CUPTI, ROCm, Level Zero and CANN
    spell them."""
    if match := _DIRECTION.search(name):
        kind = match[1]
    elif spelled := _LETTERS.search(name) or _WORDS.search(name):
        sides = [_SIDES[side.lower()] for side in spelled.groups()]
        kind = "PtoP" if "P" in sides else "to".join(sides)
    elif re.search(r"memset|fill_?buffer|memoryfill|memfill", name, re.IGNORECASE):
        kind = "memset"
    else:
        kind = "other"
    memory = next((word.lower() for word in ("Pageable", "Pinned", "Unified") if word in name), None)
    return kind, memory


def copy_table(view: RankView) -> CopyTable | None:
    """The rank's copies and memsets by kind, longest first; None when the trace has none."""
    events = view.events
    work = work_of(view)
    chosen = np.flatnonzero(work == Work.MEMORY)
    if not len(chosen):
        return None
    kernels = np.flatnonzero((work == Work.COMPUTE) | (work == Work.COMMUNICATION))
    hidden_by = events.spans(kernels)
    kinds: dict[tuple[str, str | None], int] = {}
    by_name = np.full(len(events.names), -1, dtype=np.int64)
    for code in distinct(events.name[chosen]).tolist():
        by_name[code] = kinds.setdefault(copy_kind(events.names[code]), len(kinds))
    kind_of = by_name[events.name[chosen]]
    size = _event_bytes(events, chosen)
    rows = []
    for (kind, memory), number in kinds.items():
        members = kind_of == number
        indices, sizes = chosen[members], size[members]
        busy = events.spans(indices)
        sized = sizes >= 0
        timed = int(events.dur_ns[indices[sized]].sum())
        moved = int(sizes[sized].sum()) if sized.any() else None
        rows.append(
            CopyRow(
                rank=view.rank,
                kind=kind,
                memory=memory,
                calls=len(indices),
                total_ns=int(events.dur_ns[indices].sum()),
                busy_ns=busy.measure,
                exposed_ns=spans.subtract(busy, hidden_by).measure,
                sized_calls=int(sized.sum()),
                size_bytes=moved,
                bytes_per_s=moved / (timed / 1e9) if moved is not None and timed else None,
                largest_bytes=int(sizes[sized].max()) if sized.any() else None,
                median_bytes=float(np.median(sizes[sized])) if sized.any() else None,
            )
        )
    rows.sort(key=lambda r: (-r.total_ns, r.kind, r.memory or ""))
    busy = events.spans(chosen)
    return CopyTable(
        rank=view.rank, rows=tuple(rows), busy_ns=busy.measure, exposed_ns=spans.subtract(busy, hidden_by).measure
    )


def _event_bytes(events: Events, chosen: Ints) -> Ints:
    """Bytes of each event, -1 where not recorded."""
    sizes = np.full(len(chosen), -1, dtype=np.int64)
    if events.copied_bytes:
        recorded = np.fromiter(events.copied_bytes, dtype=np.int64, count=len(events.copied_bytes))
        amounts = np.fromiter(events.copied_bytes.values(), dtype=np.int64, count=len(recorded))
        place = find(recorded, chosen)
        sizes[place != NONE] = amounts[place[place != NONE]]
    return sizes
