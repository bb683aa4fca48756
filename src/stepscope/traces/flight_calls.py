"""Which calls of different ranks are the same call, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.core.dataclass import dataclass
from stepscope.records.nccl import FlightEntry

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""No rank gets out of these before every rank is in; from the others a root or a leaf may leave early."""

# Whose elements must be as many on every rank. gather and scatter have theirs on one rank only on the other side; an
# all_gather may take pieces of different sizes, but hands out the same whole.
_BY_INPUT = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "gather")
_BY_OUTPUT = ("all_gather", "scatter")


@dataclass(frozen=True, slots=True)
class Signature:
    """What all ranks of a group must agree on in one call; None for what ranks may do differently."""

    op: str
    numel: int | None
    dtype: str | None


def signature(entry: FlightEntry) -> Signature:
    """Op, elements and dtype as they must be equal on every rank. Shapes may differ: only elements are sent."""
    if entry.op in _BY_INPUT or entry.is_p2p:
        return Signature(entry.op, _numel(entry.input_sizes), _dtype(entry.input_dtypes))
    if entry.op in _BY_OUTPUT:
        return Signature(entry.op, _numel(entry.output_sizes), _dtype(entry.output_dtypes))
    if entry.op == "all_to_all":
        return Signature(entry.op, None, _dtype(entry.input_dtypes))
    return Signature(entry.op, None, None)


def call_text(entries: Sequence[FlightEntry]) -> str:
    """``all_reduce [100] float32``: the tensors passed in, or handed out where that is what all ranks share."""
    return " and ".join(_text(e) for e in entries)


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0, 2``, ``ranks 0-7, 9``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(parts)}"


def group_text(name: str, description: str | None) -> str:
    if description == "default_pg":
        return "the default group"
    return f"group {name}" if description is None else f'group {name} "{description}"'


def _text(entry: FlightEntry) -> str:
    by_output = entry.op in _BY_OUTPUT
    sizes = entry.output_sizes if by_output else entry.input_sizes
    dtypes = entry.output_dtypes if by_output else entry.input_dtypes
    shapes = [f"[{', '.join(map(str, s))}]" for s in sizes]
    if len(shapes) > 3:
        shapes = [*shapes[:2], f"... {len(shapes)} tensors"]
    dtype = _dtype(dtypes)
    return " ".join([entry.op, *shapes, *([dtype] if dtype else [])])


def _numel(sizes: Sequence[Sequence[int]]) -> int | None:
    return sum(math.prod(s) for s in sizes) if sizes else None


def _dtype(dtypes: Sequence[str]) -> str | None:
    return "+".join(sorted(set(dtypes))) or None
