"""What all ways of measuring a comm cell share on this rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import torch
import torch.distributed as dist

from stepscope.collectives import REGISTRY as SPECS
from stepscope.collectives import Collective
from stepscope.rank import recorder
from stepscope.rank.collectives import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.collectives import Build, Exchange, Setup
from stepscope.rank.comm.loop import BackendLacksError, Call, clock_of, first_line, leave_coalescing, time_calls
from stepscope.rank.comm.values import Values, fill, first_wrong
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control
from stepscope.records.comm import CommMeasure, CommSpec
from stepscope.store.writer import LineFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CommJob:
    """One comm cell on one rank. ``salts`` gives every check fresh values, the same on all ranks."""

    cell: CommSpec
    settings: CommMeasure
    mesh: Mesh
    control: Control
    pulse: Pulse
    writer: LineFile
    salts: count[int] = field(default_factory=lambda: count(1))

    @property
    def device(self) -> torch.device:
        return self.mesh.device

    @property
    def host(self) -> str:
        return self.pulse.host

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.cell.dtype)
        return dtype

    @property
    def spec(self) -> Collective:
        return SPECS.load(self.cell.op)

    @property
    def build(self) -> Build:
        return IMPLEMENTATIONS.load(self.cell.op)

    def setup(self, numel: int) -> Setup:
        return Setup(
            mesh=self.mesh,
            dtype=self.dtype,
            numel=numel,
            reduce_op=self.cell.reduce_op,
            in_place=self.cell.in_place,
            root=self.cell.root,
            pattern=self.cell.pattern,
        )

    def enter(self, phase: str, size_bytes: int | None) -> None:
        """Tell the controller: ``phase`` of this size begins."""
        self.pulse.enter(phase, op=self.cell.op, size_bytes=size_bytes)

    def barrier(self) -> None:
        dist.barrier(self.mesh.group)

    def runner(self, call: Call, *, pace: Callable[[], object] | None = None) -> Callable[[int], list[int]]:
        """``run(count)``: durations of so many calls, paced as the cell says (or by ``pace``)."""
        pulse = self.pulse

        def enter() -> None:
            pulse.step += 1

        if pace is None and self.cell.pacing == "barrier":
            pace = partial(dist.barrier, self.mesh.group)
        timed = partial(time_calls, call, clock=clock_of(self.device), enter=enter, pace=pace)
        if pace is not None:
            return timed

        def together(number: int) -> list[int]:
            self.barrier()  # rank 0 comes late from deciding: not the first call's fault
            return timed(number)

        return together

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def check(self, call: Call, exchanges: list[Exchange]) -> tuple[bool | None, str | None]:
        """(whether a call on fresh input gives what it must, the first wrong element). None: nothing to look at here."""
        if not self.settings.check:
            return None, None
        values = [self.values() for _ in exchanges]
        for exchange, fresh in zip(exchanges, values, strict=True):
            fill(exchange, fresh)
        self.synchronize()
        call()
        self.synchronize()
        return self.verdict(exchanges, values)

    def values(self) -> Values:
        """Fresh values for one exchange. All ranks ask in the same order."""
        return Values(
            dtype=self.dtype,
            world_size=self.mesh.world_size,
            reduce_op=self.cell.reduce_op if self.spec.reduces else None,
            salt=next(self.salts),
        )

    def verdict(self, exchanges: list[Exchange], values: list[Values]) -> tuple[bool | None, str | None]:
        """(whether every output is right, the first wrong element); (None, None) where this rank has no output."""
        if not any(exchange.outputs for exchange in exchanges):
            return None, None
        for number, (exchange, fresh) in enumerate(zip(exchanges, values, strict=True), start=1):
            wrong = first_wrong(exchange, fresh)
            if wrong is not None:
                return False, wrong if len(exchanges) == 1 else f"call {number} of {len(exchanges)}, {wrong}"
        return True, None

    def lacks(self, attempt: Callable[[], object]) -> str | None:
        """Why some rank's backend refuses ``attempt``, in its own words; None: all ranks could. All ranks call this."""
        words: str | None = None
        try:
            attempt()
            self.synchronize()
        except BackendLacksError as error:
            words = str(error)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if recorder.classify(error) != "error":
                raise
            words = first_line(error)
            leave_coalescing(self.mesh)
        return next((text for text in self.control.all_gather(words) if text is not None), None)
