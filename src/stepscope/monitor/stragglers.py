"""Slow ranks of a job whose ranks share no folder: each tells the others its own time, and waits for nobody."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from stepscope.monitor import StepMonitor, _say_once

EXCESS = 0.1
"""Own time beyond the median of the other ranks, from which on a rank is called slow."""

TWICE = 2
"""So many exchanges in a row make a rank a slow one."""


class StragglerDetector:
    """Calls ``on_straggler(rank, excess)`` on every rank when that rank's own time, that is its steps without waiting for
    others, lies ``excess`` (a fraction) above the median of the other ranks', at two exchanges in a row.

    every: steps between exchanges, each one asynchronous all-gather of one number a rank on the CPU, in a process group of
    gloo's that is used for nothing else. All ranks call :meth:`step` alike, after the step of ``monitor``. Where ranks share
    the monitor's folder, ``diagnose`` and ``watch`` find slow ranks without it, and with intervals.
    """

    def __init__(self, monitor: StepMonitor, on_straggler: Callable[[int, float], None], *, every: int = 100) -> None:
        self._monitor = monitor
        self._on_straggler = on_straggler
        self._every = max(1, every)
        self._count = 0
        self._before = 0.0
        self._group: Any = None
        self._pending: list[tuple[Any, list[Any]]] = []
        self._slow: dict[int, int] = {}
        self._on = True

    def step(self) -> None:
        """Count a step that has ended. Never raises: what goes wrong is said once, and switches the detector off."""
        if not self._on:
            return
        self._count += 1
        try:
            while self._pending and self._pending[0][0].is_completed():
                self._judge([float(own_ns) for own_ns in self._pending.pop(0)[1]])
            if self._count % self._every == 0:
                self._exchange()
        except Exception as error:  # noqa: BLE001 - the job goes on whatever happens here, in the user's callback, too
            self._on = False
            _say_once(f"slow ranks are not looked for: {type(error).__name__}: {error}")

    def _exchange(self) -> None:
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
            self._on = False
            _say_once("slow ranks are not looked for: torch.distributed is not initialised, or there is one rank")
            return
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        total = self._monitor.own_ns
        own_ns = torch.tensor([total - self._before], dtype=torch.float64)
        self._before = total
        every = [torch.empty_like(own_ns) for _ in range(dist.get_world_size())]
        work = dist.all_gather(every, own_ns, group=self._group, async_op=True)
        self._pending.append((work, every))

    def _judge(self, own: list[float]) -> None:
        """Call the user's function for slow ranks. own: ns of each rank since the exchange before; 0: that rank's monitor is
        off."""
        for rank, ns in enumerate(own):
            others = [other for at, other in enumerate(own) if at != rank and other > 0]
            excess = ns / median(others) - 1 if others else 0.0
            self._slow[rank] = self._slow.get(rank, 0) + 1 if excess > EXCESS else 0
            if self._slow[rank] == TWICE:
                self._on_straggler(rank, excess)
