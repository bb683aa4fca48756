"""What a trace lacks or cannot be: each such fact once, with what it takes away.

A kind is declared here alone: its words, the figures that rest on what is lacking, and what makes a better trace. The table
in docs/reference/trace.md is made of it (tests/docs/test_tables.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import listed

Figure = Literal["classes", "overlap", "idle", "steps", "waits", "flop", "host"]
"""What is made of a trace."""

FIGURES: Mapping[Figure, str] = {
    "classes": "what computes and what communicates",
    "overlap": "which communication is exposed",
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
    where the fact matters. better: how a trace without it is taken; empty where nothing helps. unread: the rank's device
    was not read, and its host's operators are not the job's time: there is no budget."""

    text: str
    takes: tuple[Figure, ...] = ()
    better: str = ""
    unread: bool = False


KINDS: Mapping[str, QualityKind] = {
    "not-recorded": QualityKind(
        text="the device's work was not recorded: no kernel, but {count} events of the host that only a device has: {names}",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        better="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (or .XPU); the profiler's own "
        "warnings have the reason where the driver refuses to trace",
        unread=True,
    ),
    "cut-before": QualityKind(
        text="the device's work was not read: the file stops before any of it ({names})",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        better="export again: the disk was full, or the job ended while the file was written",
        unread=True,
    ),
    "only-annotations": QualityKind(
        text="neither the device's work nor operators were recorded: the file holds {count} annotations alone: {names}",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        better="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (or .XPU)",
        unread=True,
    ),
    "not-exported": QualityKind(
        text="the device's work was not recorded: the export holds no kernels and no copies",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        better="record with `nsys profile --trace=cuda,nvtx,osrt`, export with `nsys export --type sqlite`",
        unread=True,
    ),
    "unknown-device": QualityKind(
        text="the device's work was not read: stepscope does not know its event categories: {names}",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        unread=True,
    ),
    "captures-apart": QualityKind(
        text="rank {rank}'s capture begins {time} after those of {names}: what they wait for it in their first collective "
        "is left out",
        better="begin the captures of all ranks at the same step: schedule(wait=..) with the same number on every rank",
    ),
    "impossible-times": QualityKind(
        text="{count} of {of} events have impossible times and are left out: {names}",
        better="record again: the clock of the device or its driver gave times outside of the capture",
    ),
    "impossible-ends": QualityKind(
        text="{count} of {of} device events have impossible ends, after the next event of their stream has begun: {names}; "
        "they are clipped there, by {time} in all",
        better="record again: the driver gave ends that cannot be",
    ),
    "clocks-apart": QualityKind(
        text="{count} of {of} device events begin before their launch, by {time}: the device's clock is not the host's",
        takes=("idle",),
        better="record again with a newer driver or profiler, which brings the clocks together",
    ),
    "repeated": QualityKind(text="{count} of {of} device events are in the file twice, and read once: {names}"),
    "divided": QualityKind(text="{count} ranks or devices in one file, separated by {names}"),
    "devices-together": QualityKind(
        text="{count} devices of one process in this file, beside files of other ranks: they are not separated",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        better="name the file alone, and its devices are shown side by side",
        unread=True,
    ),
    "ranks-together": QualityKind(
        text="{count} processes in one file launch on the same device, and nothing in it separates their kernels",
        takes=("classes", "overlap", "idle", "steps", "waits", "flop", "host"),
        better="give the ranks' own traces, one file each, as the profiler exports them",
        unread=True,
    ),
    "missing-ranks": QualityKind(
        text="the traces of {count} of {of} ranks are not here: {names}",
        better="give the traces of all ranks: who waits for whom shows only between them",
    ),
    "missing-kernels": QualityKind(
        text="{count} of {of} launches have no kernel in this file: what the device did there is unknown",
        takes=("overlap", "idle", "steps", "flop"),
        better="profile fewer steps, or with larger buffers: the profiler drops what they do not hold",
    ),
    "missing-copies": QualityKind(
        text="{count} of {of} copies have no event in this file: what the device did there is unknown",
        takes=("idle",),
        better="profile fewer steps, or with larger buffers: the profiler drops what they do not hold",
    ),
    "captured-kernels": QualityKind(
        text="{count} of {of} launches have no kernel in this file: they were captured into a graph and ran nothing",
        takes=("overlap", "idle", "steps", "flop"),
        better="profile later steps, which replay the graph: schedule(wait=..) behind the warm-up",
    ),
    "unknown-kernels": QualityKind(
        text="{share} of the kernels' time is of unknown kind, computation or communication: {names}",
        takes=("classes",),
        better="state it: --communication PATTERN, or --class FILE with lines such as `computation my_kernel`; a file "
        "kernel-classes.txt beside the traces holds for every command",
    ),
    "unused-classes": QualityKind(
        text="no kernel is called as the stated classes say: {names}",
        better="see the kernels' names: --show kernels --limit 0",
    ),
}
"""By name, as ``trace --json`` writes it."""


LONGEST_NAME = 60


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
    def unread(self) -> bool:
        return KINDS[self.kind].unread

    @property
    def text(self) -> str:
        """The fact in words: ``160 of 200 launches have no kernel in this file``."""
        return KINDS[self.kind].text.format(
            rank=self.rank,
            count=None if self.count is None else f"{self.count:,}",
            of=None if self.of is None else f"{self.of:,}",
            time=None if self.time_ns is None else format_duration(self.time_ns),
            share=None if self.share is None else format_percent(self.share),
            names=listed(
                [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…" for name in self.names], at_most=3
            ),
        )
