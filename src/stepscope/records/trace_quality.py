"""What a trace lacks or cannot be: each such fact once, with what it takes away.

A kind is declared here alone: its words, the figures that rest on what is lacking, and what makes a better trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import listed

Figure = Literal["classes", "idle", "steps", "waits", "flop", "host"]
"""What is made of a trace."""

FIGURES: Mapping[Figure, str] = {
    "classes": "what is computation, communication and copies",
    "idle": "why the device idles",
    "steps": "the times of steps",
    "waits": "which ranks wait for which",
    "flop": "types and FLOP of kernels",
    "host": "the host's times",
}
"""The same in words."""


@record
class QualityKind:
    """One kind of fact. text: a template of :class:`QualityFact`'s fields. takes: figures that are not made of such a trace,
    where the fact matters. better: how a trace without it is taken; empty where nothing helps."""

    text: str
    takes: tuple[Figure, ...] = ()
    better: str = ""


KINDS: Mapping[str, QualityKind] = {
    "missing-kernels": QualityKind(
        text="{count} of {of} launches have no kernel in this file: what the device did there is unknown",
        takes=("idle", "steps", "flop"),
        better="profile fewer steps, or with larger buffers: the profiler drops what they do not hold",
    ),
    "captured-kernels": QualityKind(
        text="{count} of {of} launches have no kernel in this file: they were captured into a graph and ran nothing",
        takes=("idle", "steps", "flop"),
        better="profile later steps, which replay the graph: schedule(wait=..) behind the warm-up",
    ),
}
"""By name, as ``trace --json`` writes it."""


@record
class QualityFact:
    """One fact. rank: whose trace; None: of all together. count, of: how many of how many. time_ns: how long, share: of the
    window. names: kernels, calls or categories, most time first. matters: large enough to change what is said of the job."""

    kind: str
    rank: int | None = None
    count: int | None = None
    of: int | None = None
    time_ns: int | None = None
    share: float | None = None
    names: tuple[str, ...] = ()
    matters: bool = True

    @property
    def takes(self) -> tuple[Figure, ...]:
        """Figures that are not made; none where the fact does not matter."""
        return KINDS[self.kind].takes if self.matters else ()

    @property
    def text(self) -> str:
        """The fact in words: ``160 of 200 launches have no kernel in this file``."""
        return KINDS[self.kind].text.format(
            rank=self.rank,
            count=None if self.count is None else f"{self.count:,}",
            of=None if self.of is None else f"{self.of:,}",
            time=None if self.time_ns is None else format_duration(self.time_ns),
            share=None if self.share is None else format_percent(self.share),
            names=listed(self.names, at_most=3),
        )
