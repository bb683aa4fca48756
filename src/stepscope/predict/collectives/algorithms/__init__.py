"""Algorithms of NCCL and RCCL: what one call costs on a given machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stepscope.predict.collectives.algorithms import direct, halving_doubling, nvls, ring, tree
from stepscope.predict.collectives.costs import Candidate
from stepscope.predict.collectives.machine import Place

_HALVES = ("all_reduce", "all_gather", "reduce_scatter")

ALGORITHMS: tuple[tuple[tuple[str, ...], Callable[[str, int, Place], Iterable[Candidate]]], ...] = (
    (("all_reduce", "all_gather", "all_to_all"), direct.all_pairs),
    (("all_to_all", "gather", "scatter"), direct.direct),
    (_HALVES, halving_doubling.halving_doubling),
    (_HALVES, halving_doubling.hierarchical),
    (("all_reduce",), nvls.nvls),
    ((*_HALVES, "broadcast", "reduce"), ring.ring),
    (("send_recv",), direct.send_recv),
    (("all_reduce",), tree.tree),
)
"""The collectives that each can carry out; nothing comes of one that the machine cannot run."""
