"""Names in pictures, file names and log lines: nothing in them is markup, a path or a line of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stepscope.core.words import counted

if TYPE_CHECKING:
    from stepscope.records.comm import CommSpec

LONGEST = 60
"""Characters of one name in a chart; what is longer is cut."""


@lru_cache(maxsize=4096)
def clean(text: str, longest: int = LONGEST) -> str:
    """Return one printable line of at most ``longest`` characters."""
    kept = text if text.isascii() and text.isprintable() else "".join(map(_printable_char, text))
    return shortened(" ".join(kept.split()), longest)


def _printable_char(char: str) -> str:
    import unicodedata

    return " " if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") else char


def shortened(text: str, longest: int) -> str:
    """Return ``text`` with an ellipsis for its middle where it is too long: names mostly differ at their ends."""
    if len(text) <= longest:
        return text
    head = (longest - 1) * 3 // 5
    tail = max(0, longest - 1 - head)
    return f"{text[:head].rstrip()}…{text[-tail:].lstrip() if tail else ''}"


def lines(text: str, width: int, most: int = 2) -> str:
    """Break ``text`` into at most ``most`` lines of ``width`` characters; what does not fit is cut."""
    import textwrap

    wrapped = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    if len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], shortened(" ".join(wrapped[most - 1 :]), width)]
    return "\n".join(shortened(line, width) for line in wrapped)


def file_part(text: str) -> str:
    """Write ``AG_News``: letters, digits and ``-_.``, never a path or a hidden file; ``unnamed`` where none is left."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" if c.isspace() else "-" for c in clean(text))
    return kept.strip(".-_") or "unnamed"


def sweep_labels(cells: Sequence[CommSpec]) -> tuple[str, ...]:
    """Write ``all_reduce float32, 2 ranks``; what else sets the cells of the set apart follows (sum, in place, async x4)."""
    names = [f"{_cell_kind(cell)}, {counted(cell.world_size, 'rank')}" for cell in cells]
    details = [_cell_details(cell) for cell in cells]
    alike: dict[str, list[dict[str, Any]]] = {}
    for name, detail in zip(names, details, strict=True):
        alike.setdefault(name, []).append(detail)
    return tuple(
        ", ".join([name, *(str(value) for key, value in detail.items() if _detail_varies(key, alike[name]))])
        for name, detail in zip(names, details, strict=True)
    )


def _detail_varies(key: str, details: Sequence[dict[str, Any]]) -> bool:
    return len({str(detail.get(key)) for detail in details}) > 1


def _cell_kind(cell: CommSpec) -> str:
    if cell.kind in ("matmul", "pairs"):
        return f"{cell.kind} {cell.dtype}"
    beside = " beside matmul" if cell.kind == "overlap" else ""
    dtype = f" {cell.dtype}" if any(cell.sizes_bytes) else ""
    return f"{cell.op}{dtype}{beside}"


def _cell_details(cell: CommSpec) -> dict[str, Any]:
    """Return what a cell can have beside its name; what it cannot have is absent and sets it apart from nothing."""
    details: dict[str, Any] = {f"env.{name}": f"{name}={value}" for name, value in sorted(cell.env.items())}
    if cell.reduce_op is not None:
        details["reduce_op"] = cell.reduce_op
    if cell.pattern is not None and cell.kind != "pairs":
        details["pattern"] = cell.pattern
    if cell.kind == "collective" and any(cell.sizes_bytes):
        details["place"] = "in place" if cell.in_place else "out of place"
        details["mode"] = "blocking" if cell.mode == "blocking" else f"{cell.mode} x{cell.in_flight}"
    return details
