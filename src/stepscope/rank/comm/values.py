"""What buffers hold, so that a wrong result shows: other values for every rank, element, call and check.

Element i of what a rank sends is entry ``i mod PERIOD`` of a table of small integers drawn for that rank and ``salt``.
The reduction of all ranks is then a table as well: filling and checking cost one pass and no memory, however many ranks
there are. The period is a prime, so that a part taken from a wrong place shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepscope.core.dataclass import record
from stepscope.rank.collectives import REDUCED, Exchange, Stretch

PERIOD = 1009
BLOCK_ROWS = 1024
"""Rows of PERIOD elements that are compared at once: about a million elements, so that temporaries stay small."""

_MOST_RAISED = 12  # ranks that multiply by more than 1: products stay exact in 8 bits of mantissa, below 65504 in fp16
_LARGEST_TERM = 1000

Table = NDArray[np.int64]


@record
class Values:
    """The tables of one check. reduce_op: None for collectives that only move data."""

    dtype: torch.dtype
    world_size: int
    reduce_op: str | None
    salt: int

    def sent(self, rank: int) -> Table:
        """Return what ``rank`` sends, [PERIOD]."""
        own = np.random.default_rng([self.salt, 1 + rank])
        if self.reduce_op is None:
            return own.integers(0, _distinct_count(self.dtype), PERIOD)
        if self.reduce_op in ("sum", "avg"):
            return own.integers(1, self._largest_term() + 1, PERIOD)
        if self.reduce_op in ("max", "min"):
            return self._shared(81) + own.integers(0, 41, PERIOD)
        start, raised = self._raised()
        return np.where((rank - start) % self.world_size < raised, self._raise_by(), 1)

    def reduced(self) -> NDArray[np.float64] | Table:
        """Return the reduction of what all ranks send, [PERIOD]; averages are float64."""
        ranks = range(self.world_size)
        if self.reduce_op == "product":
            return np.power(self._raise_by(), self._raised()[1], dtype=np.int64)
        if self.reduce_op in ("max", "min"):
            extreme = np.maximum if self.reduce_op == "max" else np.minimum
            return np.asarray(extreme.reduce([self.sent(r) for r in ranks]))
        total = np.sum([self.sent(r) for r in ranks], axis=0)
        return total / self.world_size if self.reduce_op == "avg" else np.asarray(total, dtype=np.int64)

    def roundings(self) -> int:
        """Count the rounding errors that a reduced element may carry; 0: every intermediate result is exact in the type."""
        if self.reduce_op == "avg":
            return self.world_size + 1  # the sum's, and one of the division
        inexact = self.reduce_op == "sum" and self.world_size * self._largest_term() > _exact_up_to(self.dtype)
        return self.world_size if inexact and self.dtype.is_floating_point else 0

    def _largest_term(self) -> int:
        return max(2, min(_LARGEST_TERM, _exact_up_to(self.dtype) // self.world_size))

    def _shared(self, below: int) -> Table:
        """Return values that are the same on every rank, [PERIOD]: without them the maximum over many ranks is the same
        everywhere."""
        return np.random.default_rng([self.salt, 0]).integers(0, below, PERIOD)

    def _raised(self) -> tuple[Table, Table]:
        """Return, each [PERIOD], the first rank that multiplies by more than 1, and how many ranks from it on do."""
        shared = np.random.default_rng([self.salt, 0])
        start = shared.integers(0, self.world_size, PERIOD)
        return start, shared.integers(0, min(self.world_size, _MOST_RAISED) + 1, PERIOD)

    def _raise_by(self) -> int:
        return 2 if self.dtype.is_floating_point else 3  # a power of 2 would leave nothing of a wrapped integer


def fill(exchange: Exchange, values: Values) -> None:
    """Put fresh input into the inputs, and into the outputs something that no result contains."""
    poison = float("nan") if values.dtype.is_floating_point else 255 if values.dtype == torch.uint8 else -1
    for piece in exchange.outputs:
        piece.tensor.fill_(poison)
    for piece in exchange.inputs:  # after the poison: in place, an input is part of the output
        assert isinstance(piece.source, int)
        _write_periods(piece.tensor, _table_on(piece, values.sent(piece.source)).to(values.dtype))


def first_wrong(exchange: Exchange, values: Values) -> str | None:
    """Return ``element 12: got 3, expected 5`` of the first output element that is not what it must be; None: all are."""
    start = 0
    for piece in exchange.outputs:
        table = values.reduced() if piece.source == REDUCED else values.sent(piece.source)
        roundings = values.roundings() if piece.source == REDUCED else 0
        difference = _first_difference(piece, table, values.dtype, roundings)
        if difference is not None:
            index, got, expected = difference
            return f"element {start + index}: got {got:g}, expected {expected:g}"
        start += piece.tensor.numel()
    return None


def _distinct_count(dtype: torch.dtype) -> int:
    """Count how many values 0, 1, ... the type holds exactly, up to 65521."""
    return {torch.int8: 127, torch.uint8: 251}.get(dtype, min(65521, _exact_up_to(dtype) - 1))


def _exact_up_to(dtype: torch.dtype) -> int:
    """Return the largest m such that the type holds all of 0 .. m."""
    if dtype.is_floating_point:
        return round(2 / torch.finfo(dtype).eps)
    return int(torch.iinfo(dtype).max)


def _table_on(piece: Stretch, table: NDArray[np.float64] | Table) -> Tensor:
    """Return the table on the piece's device, beginning with the entry of its first element."""
    rolled = np.ascontiguousarray(np.roll(table, -(piece.offset % PERIOD)))
    return torch.from_numpy(rolled).to(piece.tensor.device)


def _write_periods(tensor: Tensor, table: Tensor) -> None:
    rows, rest = divmod(tensor.numel(), PERIOD)
    if rows:
        tensor[: rows * PERIOD].view(rows, PERIOD).copy_(table.expand(rows, PERIOD))
    if rest:
        tensor[rows * PERIOD :].copy_(table[:rest])


def _first_difference(
    piece: Stretch, table: NDArray[np.float64] | Table, dtype: torch.dtype, roundings: int
) -> tuple[int, float, float] | None:
    """Return (index, got, expected) of the first difference, or None."""
    expected = _table_on(piece, table)
    tolerance: Tensor | None = None
    if roundings:
        expected = expected.double()
        tolerance = expected.abs() * (roundings * torch.finfo(dtype).eps / 2)
    else:
        expected = expected.to(dtype)
    for start, block, width in _period_blocks(piece.tensor):
        there, allowed = expected[:width], None if tolerance is None else tolerance[:width]
        wrong = block != there if allowed is None else ~((block.double() - there).abs() <= allowed)
        if bool(wrong.any()):
            index = int(wrong.reshape(-1).nonzero()[0])
            return start + index, float(block.reshape(-1)[index]), float(there[index % width])
    return None


def _period_blocks(tensor: Tensor) -> Sequence[tuple[int, Tensor, int]]:
    """Return (first element, [rows, width] view, width) of a flat tensor: blocks of whole periods, then the rest."""
    rows, rest = divmod(tensor.numel(), PERIOD)
    whole = tensor[: rows * PERIOD].view(rows, PERIOD)
    blocks = [(r * PERIOD, whole[r : r + BLOCK_ROWS], PERIOD) for r in range(0, rows, BLOCK_ROWS)]
    return [*blocks, (rows * PERIOD, tensor[rows * PERIOD :].view(1, rest), rest)] if rest else blocks
