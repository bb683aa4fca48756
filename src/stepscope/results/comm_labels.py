"""What a row of a collective's sweep is called, in tables, sentences and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stepscope.core.words import counted, grouped
from stepscope.records.comm import CommRow
from stepscope.results.evidence import ORIGIN_MARK
from stepscope.results.labels import status_label

LATENCY_BYTES = 4096
"""Messages between two ranks up to this size (a page) are shown by their time: it is all start-up, a rate says nothing."""

DEFAULT_ENV = "default"
"""The world in which no variable of the sweep was set."""


def op_label(row: CommRow) -> str:
    """``all_reduce``; ``send_recv ring`` where the operation has patterns."""
    return f"{row.op} {row.pattern}" if row.pattern else row.op


def ranks_label(row: CommRow) -> str:
    """``4 ranks``, ``4 ranks on 2 hosts``."""
    ranks = counted(row.world_size, "rank")
    return f"{ranks} on {counted(row.hosts, 'host')}" if row.hosts is not None and row.hosts > 1 else ranks


def device_label(row: CommRow) -> str:
    return f"{row.device}/{row.backend}"


def place_label(row: CommRow) -> str:
    return "in place" if row.in_place else "out of place"


def flight_label(row: CommRow) -> str:
    """``blocking``; ``async, 4 in flight``."""
    return row.mode if row.in_flight == 1 else f"{row.mode}, {row.in_flight} in flight"


def pacing_label(row: CommRow) -> str:
    return "back to back" if row.pacing == "back_to_back" else "barrier before each call"


def env_label(env: Mapping[str, str]) -> str:
    """``NCCL_ALGO=Ring NCCL_PROTO=LL``; ``default`` where nothing was set."""
    return " ".join(f"{name}={value}" for name, value in sorted(env.items())) or DEFAULT_ENV


def redop_label(row: CommRow) -> str:
    return row.reduce_op or "none"


def network_label(row: CommRow) -> str:
    """``emulated 1gbit:2``; ``real network`` beside rows of emulated ones."""
    return "real network" if row.network is None else f"emulated {row.network}"


def failure_label(row: CommRow) -> str:
    """``timeout: rank 1 did not enter``; what stands in place of figures."""
    label = "wrong result" if row.correct is False else status_label(row.status)
    if not row.error or row.error.startswith(label):
        return row.error or label
    return f"{label}: {row.error}"


Part = Callable[[CommRow], str]

_PARTS: tuple[Part, ...] = (
    ranks_label, lambda row: row.dtype, redop_label, place_label, flight_label, pacing_label, device_label,
    lambda row: env_label(row.env), network_label,
)  # fmt: skip


def identity(row: CommRow) -> tuple[str, ...]:
    """What a row was measured with, its size and its cell id left out."""
    return (op_label(row), *(part(row) for part in _PARTS))


def origins(rows: Iterable[CommRow]) -> Part | None:
    """Names the log or the cell a row is of; None where what was measured tells all rows apart.

    The same may be there more than once: measured in several logs, on several machines.
    """
    cells: dict[tuple[object, ...], set[str]] = {}
    for row in rows:
        if row.size_bytes is not None:
            cells.setdefault((*identity(row), row.size_bytes), set()).add(row.cell_id)
    return _origin if any(len(found) > 1 for found in cells.values()) else None


def _origin(row: CommRow) -> str:
    """``a100.log``: an imported row's cell is named ``a100.log, in place``; ``monday`` of ``monday: CELL``."""
    source, mark, _ = row.cell_id.partition(ORIGIN_MARK)
    return source if mark else row.cell_id.removesuffix(f", {place_label(row)}")


def sweeps(rows: Iterable[CommRow]) -> dict[tuple[str, ...], list[CommRow]]:
    """Rows by what they were measured with and, where that is not enough, by origin: one sweep over sizes each.

    In order of first appearance.
    """
    rows = list(rows)
    origin = origins(rows)
    return grouped(rows, lambda row: identity(row) if origin is None else (*identity(row), origin(row)))


def sweep_names(among: Sequence[CommRow], *, always_ranks: bool = True) -> Callable[[CommRow], str]:
    """A function naming a row by what differs among those of its operation: ``4 ranks, bf16``, ``8 ranks, a100.log``.

    always_ranks: the number of ranks is said even where it is the same throughout.
    """
    needed = {
        op: [part for part in _PARTS if (always_ranks and part is ranks_label) or len({part(row) for row in rows}) > 1]
        for op, rows in grouped(among, op_label).items()
    }
    if (origin := origins(among)) is not None:
        needed = {op: [*names, origin] for op, names in needed.items()}
    return lambda row: ", ".join(part(row) for part in needed[op_label(row)])


def cells_of(rows: Iterable[CommRow], kind: str) -> dict[str, list[CommRow]]:
    """Rows of one kind by cell."""
    return grouped((row for row in rows if row.kind == kind), lambda row: row.cell_id)


def size_of(row: CommRow) -> int | None:
    """Bytes really sent, or asked for where nothing was."""
    return row.asked_bytes if row.size_bytes is None else row.size_bytes
