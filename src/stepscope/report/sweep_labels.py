"""One line's name for each sweep of collectives of a run: for progress, plans and log lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.core.words import counted
from stepscope.records.comm import CommSpec


def sweep_labels(cells: Sequence[CommSpec]) -> tuple[str, ...]:
    """``all_reduce float32, 2 ranks``; what else tells the cells of this set apart follows (sum, in place, async x4)."""
    names = [f"{_what(cell)}, {counted(cell.world_size, 'rank')}" for cell in cells]
    details = [_details(cell) for cell in cells]
    alike: dict[str, list[dict[str, Any]]] = {}
    for name, detail in zip(names, details, strict=True):
        alike.setdefault(name, []).append(detail)
    return tuple(
        ", ".join([name, *(str(value) for key, value in detail.items() if _varies(key, alike[name]))])
        for name, detail in zip(names, details, strict=True)
    )


def _varies(key: str, details: Sequence[dict[str, Any]]) -> bool:
    return len({str(detail.get(key)) for detail in details}) > 1


def _what(cell: CommSpec) -> str:
    if cell.kind in ("matmul", "pairs"):
        return f"{cell.kind} {cell.dtype}"
    beside = " beside matmul" if cell.kind == "overlap" else ""
    dtype = f" {cell.dtype}" if any(cell.sizes_bytes) else ""
    return f"{cell.op}{dtype}{beside}"


def _details(cell: CommSpec) -> dict[str, Any]:
    """What a cell can have beside its name; what it cannot have is absent and sets it apart from nothing."""
    found: dict[str, Any] = {f"env.{name}": f"{name}={value}" for name, value in sorted(cell.env.items())}
    if cell.reduce_op is not None:
        found["reduce_op"] = cell.reduce_op
    if cell.pattern is not None and cell.kind != "pairs":
        found["pattern"] = cell.pattern
    if cell.kind == "collective" and any(cell.sizes_bytes):
        found["place"] = "in place" if cell.in_place else "out of place"
        found["mode"] = "blocking" if cell.mode == "blocking" else f"{cell.mode} x{cell.in_flight}"
    return found
