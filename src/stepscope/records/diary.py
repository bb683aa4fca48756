"""The step diary: ten numbers for every step of a user's job, on every rank, from the first step to the last.

The hook (``hook/stepscope_hook/diary.py``) writes three files a process into ``.stepscope``; ``store/diary.py`` reads them:

``diary-RRRRR-A.bin``: one line of JSON (:class:`DiaryHeader`), then a record of ``RECORD`` for each step, in order.
``events-RRRRR-A.jsonl``: one :class:`DiaryEvent` a line: what is no part of a step, and what happened inside one.
``end-RRRRR-A.json``: one :class:`RankEnd`, where the process came to an end that Python sees.

R is the rank, A counts the processes that stepped as this rank: restarts, re-executed jobs, processes without a group.
"""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass

RECORD = "<9fHBB"
"""struct format of one step, 40 bytes: the float32 columns of ``COLUMNS``, the delay, micro-steps, flags."""

COLUMNS = (
    "whole_ns", "data_ns", "before_ns", "forward_ns", "backward_ns", "optimizer_ns", "comm_ns", "outside_ns", "cpu_ns",
)  # fmt: skip
"""Nanoseconds of a step, from the end of one optimizer step to the end of the next; NaN: not seen.

whole: all of it. data: in ``next()`` of the loader for training data. before: from the boundary to the first forward pass,
without data and outside. forward, backward, optimizer: without the waits for communication in them; forward counts the
loss and all micro-steps. comm: blocking waits for communication that the host saw (``Work.wait``, blocking collectives),
and in DDP from the last ready gradient to the end of the backward pass: waiting for other ranks and exposed transfer
together. outside: events that are no part of the step (evaluation, checkpoint, the pause in which a trace is written).
cpu: CPU time of the training thread without what data and outside used. What is left of the whole is "other".
"""

NO_DELAY = 65535
"""Of the delay column: not known. Else delay / 65534 is the share of the whole in which the training thread was ready to
run and had no processor (``/proc/thread-self/schedstat``, outside not counted)."""

PROFILED, WINDOW, DEVICE_CLOCK, OWN_PROFILER, FIRST = 1, 2, 4, 8, 16
"""Flags. PROFILED: the deep window records this step. WINDOW: its warm-up, or the writing of the trace, is in this step.
DEVICE_CLOCK: parts are from events on the device. OWN_PROFILER: the job's own profiler runs. FIRST: begins at the first sign
of a step, not at a boundary."""

NO_TIMED_STEP = PROFILED | WINDOW | FIRST
"""Flags of steps whose time is not that of the job by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryHeader:
    """First line of a diary. start_unix_ns: of the first record, on the wall clock; set_up_ns: from the start of the process
    to it, None: not known. clock: of the parts. threads: intra-op threads of torch; cores: that the process may use.
    recorder: why parts of it are off, a line each.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    restart: int
    start_unix_ns: int
    set_up_ns: int | None = None
    record: str = RECORD
    columns: tuple[str, ...] = COLUMNS
    clock: Literal["host", "device"] = "host"
    threads: int | None = None
    cores: int | None = None


EventKind = Literal[
    "evaluation", "checkpoint", "garbage_collection", "compilation", "trace_written", "own_profiler", "dropped", "off"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiaryEvent:
    """step: number of the step (the first is 1) in which it happened; at_ns: its begin since ``start_unix_ns``.

    inside: its time is also in the parts of the step (a garbage collection, a compilation); else it is outside. what: the
    call or class, for words (``torch.save``, ``gen 2``). count: calls put together (forward passes of an evaluation).
    dropped: steps or events that could not be written; off: the recorder switched itself off; what: why.
    """

    kind: EventKind
    step: int
    at_ns: int
    ns: int
    inside: bool = False
    what: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a process ended, as Python saw it. exit: it ran to its end or called sys.exit (``code``); exception: nobody
    caught it. place: ``file:line in function: code`` of the innermost line of the user's own. phase: where the step was.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    restart: int
    kind: Literal["exit", "exception"]
    steps: int
    at_unix_ns: int
    code: int | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    phase: str | None = None
