"""Sweeps of collectives, apart also where the same was measured more than once: in several logs, on several machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepscope.diagnose import comm_labels
from stepscope.records.comm import CommRow


def origins(rows: Iterable[CommRow]) -> Callable[[CommRow], str] | None:
    """Names the log or the cell a row is of; None where what was measured tells all rows apart."""
    cells: dict[tuple[object, ...], set[str]] = {}
    for row in rows:
        if row.size_bytes is not None:
            cells.setdefault((*comm_labels.identity(row), row.size_bytes), set()).add(row.cell_id)
    return _origin if any(len(found) > 1 for found in cells.values()) else None


def sweeps(rows: Sequence[CommRow]) -> dict[tuple[str, ...], list[CommRow]]:
    """Rows by what they were measured with and, where that is not enough, by origin; in order of first appearance."""
    origin = origins(rows)
    if origin is None:
        return comm_labels.sweeps(rows)
    found: dict[tuple[str, ...], list[CommRow]] = {}
    for row in rows:
        found.setdefault((*comm_labels.identity(row), origin(row)), []).append(row)
    return found


def sweep_names(rows: Sequence[CommRow], *, always_ranks: bool = True) -> Callable[[CommRow], str]:
    """As :func:`comm_labels.sweep_names`, with the origin where that is needed: ``8 ranks, a100.log``."""
    called, origin = comm_labels.sweep_names(rows, always_ranks=always_ranks), origins(rows)
    if origin is None:
        return called
    return lambda row: ", ".join(text for text in (called(row), origin(row)) if text)


def _origin(row: CommRow) -> str:
    """``a100.log``: an imported row's cell is named ``a100.log, in place``."""
    return row.cell_id.removesuffix(f", {comm_labels.place_label(row)}")
