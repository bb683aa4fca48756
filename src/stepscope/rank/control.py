"""Decisions and small data that all ranks share, through the rendezvous store.

No collective is used: what a strategy sends is all that travels on the process group, and the flight recorder and the
traces show nothing else. Every call is outside the timed region.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store


class Control:
    """The shared notebook of one worker group. Every rank makes the same calls in the same order."""

    def __init__(self, store: Store, *, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = PrefixStore("stepscope.control", store)
        self._timeout = timedelta(seconds=timeout_s)
        self._count = 0

    def decide(self, value: Any) -> Any:
        """Rank 0's ``value`` on every rank."""
        key = self._next("decide")
        if self.rank == 0:
            self._store.set(key, msgspec.json.encode(value).decode())
            return value
        self._store.wait([key], self._timeout)
        return msgspec.json.decode(self._store.get(key))

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's ``value`` in rank order, on rank 0; None elsewhere. The others do not wait."""
        key = self._next("gather")
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", msgspec.json.encode(value).decode())
            return None
        others = [f"{key}/{rank}" for rank in range(1, self.world_size)]
        if others:
            self._store.wait(others, self._timeout)
        values = [value, *(msgspec.json.decode(self._store.get(k)) for k in others)]
        for k in others:
            self._store.delete_key(k)
        return values

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's ``value`` in rank order, on every rank."""
        values: list[Any] = self.decide(self.gather(value))
        return values

    def barrier(self) -> None:
        self.all_gather(None)

    def farewell(self) -> None:
        """A barrier that rank 0 leaves last: where it holds the store, the others must have read everything."""
        self.barrier()
        key = self._next("farewell")
        if self.rank != 0:
            self._store.set(f"{key}/{self.rank}", "")
        elif self.world_size > 1:
            self._store.wait([f"{key}/{rank}" for rank in range(1, self.world_size)], self._timeout)

    def _next(self, kind: str) -> str:
        self._count += 1
        return f"{self._count}/{kind}"
