"""What `stepscope profile` writes into its output folder and the hook in the job writes back: setup, step diary, end.

The diary has some numbers for every step on every rank, from the first step to the last. ``hook/stepscope_hook/diary.py``
writes three files a process into ``.stepscope``, ``samples.py`` beside it a fourth; ``store/diary.py`` reads them:

``diary-RRRRR-A.bin``: one line of JSON (:class:`DiaryHeader`), then a record of ``RECORD`` for each step, in order.
``events-RRRRR-A.jsonl``: one :class:`DiaryEvent` a line: what is no part of a step, and what happened inside one.
``samples-RRRRR-A.bin``: a record of ``SAMPLE`` a second, after an hour every ten: memory over time.
``devices-RRRRR-A.bin``, ``ports-HOST-A.bin``: of the hardware (records/hardware.py).
``groups-RRRRR-A.json``: one :class:`RankGroups`: whom the rank waited for.
``end-RRRRR-A.json``: one :class:`RankEnd`, where the process came to an end that Python sees.

R is the rank, A counts the processes that stepped as this rank: restarts, re-executed jobs, processes without a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from stepscope.core.dataclass import record
from stepscope.records.parts import RECORDED

WindowStatus = Literal["open", "written", "missed", "stepped_back", "failed", "ended"]


@record
class WindowRequest:
    """A window of steps that the command line asks for.

    steps: auto: rank 0 chooses, 8 to 32 by the spread of the steps before it, fewer where they are long. wait: finished
    steps before it, or auto: when step times have settled. fixed_step: where ranks that do not see the
    output folder begin; None in a running job. ranks: None for all. collect: shapes, stacks, memory, flops, modules.
    sampled: what else a few steps more collect, which follow those that count: their times are not the job's.
    duration_s, after_s: a time window in place of steps, for jobs without an optimizer.
    """

    steps: int | Literal["auto"]
    wait: int | Literal["auto"]
    warmup: int
    fixed_step: int | None
    collect: tuple[str, ...]
    ranks: tuple[int, ...] | None = None
    tool: Literal["torch", "nsys"] = "torch"
    duration_s: float | None = None
    after_s: float | None = None
    sampled: tuple[str, ...] = ()


@record
class ProfileRecord:
    """profile.json: the command that runs under the hook. first: None where the hook sleeps until it is woken."""

    command: tuple[str, ...]
    folder: str  # working directory of the command
    host: str
    first: WindowRequest | None
    argv: tuple[str, ...]


@record
class HookedProcess:
    """process-HOST-PID.json: a process that imported torch. rank, world_size: RANK and WORLD_SIZE as they are set. box:
    number of the open file that outlives it (hook's black_box.py).
    """

    pid: int
    host: str
    argv: tuple[str, ...]
    rank: str | None
    world_size: str | None
    python: str
    box: int | None = None


@record
class RankProcess:
    """A process that steps as a rank. restart: how often torchrun had restarted the ranks."""

    rank: int
    world_size: int
    host: str
    pid: int
    restart: int


@record
class HookedRank(RankProcess):
    """rank-R.json: a rank whose optimizer has stepped.

    facts: model, wrappers, loaders, frameworks in use, machine (hook's facts.py); a part that could not be read is absent.
    """

    python: str
    torch: str
    local_rank: str | None
    facts: Mapping[str, Any] = field(default_factory=dict)


@record
class WindowOfRank:
    """window-N-rank-R.json: how a window went on one rank; ``open`` while it lasts.

    profiled_ns: host time of its steps. paused_s: how long the rank waited while its trace was written. bounded: why it has
    fewer steps than would be needed.
    """

    window: int
    rank: int
    world_size: int
    host: str
    status: WindowStatus
    reason: str | None
    restart: int
    first_step: int
    last_step: int
    profiled_ns: tuple[int, ...]
    ended: str | None = None
    file: str | None = None
    size_bytes: int = 0
    paused_s: float = 0.0
    bounded: str | None = None


EndKind = Literal[
    "ok", "crash", "exit-code", "killed", "out-of-memory", "hang", "interrupted", "no-steps", "short"
]  # fmt: skip
"""ok: the command ended with 0. crash: an exception that nobody caught. exit-code: neither exception nor signal. killed: by
a signal. short: the command ended with 0 before the window began. no-steps: it ended with 0 and no optimizer stepped."""


@record
class LaunchedRank:
    """A rank as its launcher saw it end. code: of the process, negative for a signal. message: of its error file."""

    rank: int
    pid: int
    code: int
    message: str | None = None


@record
class FailedProcess:
    """failure-HOST-PID.json: an exception that nobody caught, in any Python process of the job, whether it imported torch.

    rank, world_size: as the launcher states them in the environment; None: it states none. place: ``file:line in function:
    code`` of the innermost line of the user's own. ranks: of a launcher (torchrun, spawn), those that failed. parent: the
    process id of the one that started it; None: an older record.
    """

    host: str
    pid: int
    rank: int | None
    world_size: int | None
    restart: int
    at_unix_ns: int
    exception: str
    message: str
    place: str | None = None
    torch: bool = True
    ranks: tuple[LaunchedRank, ...] = ()
    parent: int | None = None


@record
class Hang:
    """Ranks that stand still. ranks: that hold the others up, as far as is known. waiting: those that are held up.

    silent_s: since any rank ended a step. said: what the flight recorders tell. place: where the first of ``ranks`` is.
    step: the one that does not end. parts: of each rank the part of the step that it is in, or the name of the collective
    that it waits in. timed_out: of ``waiting``, those that gave up; timeout: the message of the first.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    silent_s: float
    step: int
    said: str | None = None
    place: str | None = None
    host: str | None = None
    parts: tuple[tuple[int, str], ...] = ()
    timed_out: tuple[int, ...] = ()
    timeout: str | None = None


@record
class Deadline:
    """The controller ended the ranks because the cell took longer than ``timeout_ns``.

    now_ns: wall clock when the heartbeats were read. total_steps: of the cell, warm-up included; None = not fixed.
    """

    timeout_ns: int
    now_ns: int
    total_steps: int | None = None


@record
class End:
    """The end of a cell or a job, as judged: status.json and job-end.json are made of it.

    kind: as of ``JobEnd``; of cells also timeout, where all ranks were at work at the deadline, and lost, where they only
    lost the connection to each other. ranks: at fault, who failed first before the others. victims: in the order in which
    they noticed. since_ns: when the first of ``ranks`` failed, on the wall clock, None where nobody saw it. host,
    exception, message, place, step and phase: of it, or of who was last seen. of_host: out of the host's memory rather than
    a device's. facts: what else the evidence says, in words. The rest: as of ``JobEnd``.
    """

    kind: EndKind | Literal["timeout", "lost"]
    ranks: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    host: str | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    step: int | None = None
    step_exact: bool = True
    phase: str | None = None
    rank_code: int | None = None
    signal: str | None = None
    since_ns: float | None = None
    of_host: bool = False
    likely: bool = False
    hang: Hang | None = None
    launcher: bool = False
    running: tuple[tuple[int, int], ...] = ()
    deadline: Deadline | None = None
    facts: tuple[str, ...] = ()


@record
class JobEnd:
    """job-end.json. ranks: that failed by themselves, or hold the others up in a hang. victims: ranks that failed of it.

    code: of the command as a shell gives it, None where it is not known; rank_code: of the first of ``ranks``. step: in
    which it happened, from 1; None: before the first step, or not known. step_exact: else it was this step or a later one.
    signal: its name. likely: the kind is inferred. launcher: what starts the ranks was ended; running: ranks that then still
    ran on its host, each with its process id.
    steps_timed: recorded and not profiled, of the rank with the most; None: there is no diary. restarts: by the launcher.
    independent: processes that train side by side as rank 0 of 1 each. no_window: why none was written.
    """

    kind: EndKind
    code: int | None
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    host: str | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    step: int | None = None
    phase: str | None = None
    rank_code: int | None = None
    signal: str | None = None
    likely: bool = False
    hang: Hang | None = None
    steps_timed: int | None = None
    steps_profiled: int = 0
    restarts: int = 0
    independent: int = 0
    no_window: str | None = None
    step_exact: bool = True
    launcher: bool = False
    running: tuple[tuple[int, int], ...] = ()


@record
class LoaderSetup:
    """The settings of a job's ``DataLoader``; None where they were not recorded, or its loaders differ.

    divided: every rank reads its own share, by a ``DistributedSampler``. streamed: from an ``IterableDataset``, which each
    worker reads from its begin.
    """

    workers: int | None = None
    pinned: bool | None = None
    persistent: bool | None = None
    prefetch: int | None = None
    divided: bool | None = None
    streamed: bool | None = None


@record
class JobSetup:
    """What one rank recorded of its job; None where it did not.

    objects: ``package.Class`` of the frameworks' objects that live in it. device: cpu | cuda. cores: that this rank may
    use; threads: of one operator. wrapped: keys of wrappers with at least one module (ddp, fsdp1, fsdp2). mesh: names of
    the dimensions of its DTensors' meshes. parameters: elements that the optimizer steps, of the whole model.
    micro_batches, chunks: of a pipeline's step, and stages on this rank; schedule: its class. backend: of the default
    process group. fused: the optimizer's option. comm_hooks: names of the hooks of its DDP. resharded: whether a unit of
    FSDP2 gives parameters back after its forward pass. matmul_precision: of products in float32. frozen: objects that
    garbage collections leave out; collects: whether they begin by themselves. start_method: of worker processes. compiler:
    one of C++ is there. environment: variables that say how fast a job runs, those that are set.
    """

    objects: tuple[str, ...] = ()
    device: str | None = None
    compiled: bool | None = None
    cores: int | None = None
    threads: int | None = None
    wrapped: tuple[str, ...] = ()
    mesh: tuple[str, ...] = ()
    loader: LoaderSetup | None = None
    bucket_cap_bytes: int | None = None
    parameters: int | None = None
    micro_batches: int | None = None
    chunks: int | None = None
    schedule: str | None = None
    backend: str | None = None
    fused: bool | None = None
    comm_hooks: tuple[str, ...] | None = None
    resharded: bool | None = None
    matmul_precision: str | None = None
    frozen: int | None = None
    collects: bool | None = None
    start_method: str | None = None
    compiler: bool | None = None
    environment: Mapping[str, str] | None = None


RECORD = "<{}fHBB"
"""struct format of one step: so many float32, the ``columns`` of its header, then the delay, micro-steps, flags."""

FIRST_COLUMNS = (
    "whole_ns", "data_ns", "before_ns", "forward_ns", "backward_ns", "optimizer_ns", "comm_ns", "outside_ns", "cpu_ns",
)  # fmt: skip
"""Columns of every diary; of further ones a reader takes those that it knows."""

COLUMNS = (
    *FIRST_COLUMNS, *(f"{name}_ns" for name in RECORDED if f"{name}_ns" not in FIRST_COLUMNS), "before_cpu_ns",
)  # fmt: skip
"""Nanoseconds of a step, from the end of one optimizer step to the end of the next; NaN: not seen, or an older diary.

whole: all of it, of which what no other column has is "other". outside: events that are no part of the step (evaluation,
checkpoint, workers of an epoch that start, the pause in which a trace is written). cpu: CPU time of the training thread
without what data and outside used; before_cpu: of it, in before, and in inference ahead of the first forward pass. The rest
are parts of the step (``records/parts.py`` says what they are).
"""

NO_DELAY = 65535
"""Of the delay column: not known. Else delay / 65534 is the share of the whole in which the training thread was ready to
run and had no processor (``/proc/thread-self/schedstat``, outside not counted)."""

PROFILED, WINDOW, DEVICE_CLOCK, OWN_PROFILER, FIRST = 1, 2, 4, 8, 16
"""Flags. PROFILED: the deep window records this step. WINDOW: its warm-up, the writing of the trace, or
what is recorded for shapes alone, is in this step. DEVICE_CLOCK: parts are from events on the device. OWN_PROFILER: that of
the job runs. FIRST: begins at the first sign of a step, not at a boundary."""

NO_TIMED_STEP = PROFILED | WINDOW | FIRST
"""Flags of steps whose time is not that of the job by itself."""

SAMPLE = "<dI6f"
"""struct format of one sample of memory, 36 bytes: the columns of ``SAMPLE_COLUMNS``."""

SAMPLE_COLUMNS = ("unix_s", "step", "resident", "shared", "available", "allocated", "reserved", "device")
"""step: finished ones of the process. Then bytes, NaN: not known.

resident, shared: of the process, all and of it files and shared memory (``/proc/self/statm``). available: what the host, or
the control group of the process, has left. allocated, reserved: by torch on the CUDA devices of the parameters together;
device: all the memory that these have."""


@record
class GroupWaits:
    """One process group of a rank. name: as torch knows it (``mesh_tp``, ``default_pg``); it and ranks are empty where the
    group is not known. operations: name -> (waits, ns), of all ``steps`` together.
    """

    name: str
    ranks: tuple[int, ...]
    operations: Mapping[str, tuple[int, int]]


@record
class RankGroups:
    """Exposed communication by process group, as far as the host waits for it: sums of so many steps, all but the first and
    profiled ones; written again about every ten seconds."""

    rank: int
    steps: int
    groups: tuple[GroupWaits, ...]


@record
class DiaryHeader(RankProcess):
    """First line of a diary. start_unix_ns: of the first record, on the wall clock; set_up_ns: from the start of the process
    to it, None: not known. clock: of the parts. threads: intra-op threads of torch; cores: that the process may use.
    recorder: why parts of it are off, a line each.
    """

    start_unix_ns: int
    set_up_ns: int | None = None
    record: str = RECORD.format(len(FIRST_COLUMNS))
    columns: tuple[str, ...] = FIRST_COLUMNS
    clock: Literal["host", "device"] = "host"
    threads: int | None = None
    cores: int | None = None


EventKind = Literal[
    "evaluation",
    "inference",
    "checkpoint",
    "loader_start",
    "garbage_collection",
    "compilation",
    "trace_written",
    "own_profiler",
    "dropped",
    "off",
]


@record
class DiaryEvent:
    """step: number of the step (the first is 1) in which it happened; at_ns: its begin since ``start_unix_ns``.

    inside: its time is also in the parts of the step (a garbage collection, a compilation); else it is outside. what: the
    call or class, for words (``torch.save``, ``gen 2``). count: calls put together (forward passes of an evaluation).
    inference: forward passes without gradients that are no evaluation, in a step after one that had none (a rollout).
    loader_start: worker processes of an epoch, from the end of the epoch before to their first batch.
    dropped: steps or events that could not be written; off: the recorder switched itself off; what: why.
    """

    kind: EventKind
    step: int
    at_ns: int
    ns: int
    inside: bool = False
    what: str = ""
    count: int = 1


@record
class RankEnd(RankProcess):
    """How a process ended, as Python saw it. exit: it ran to its end or called sys.exit (``code``); exception: nobody
    caught it. place: ``file:line in function: code`` of the innermost line of the user's own. phase: where the step was.
    """

    kind: Literal["exit", "exception"]
    steps: int
    at_unix_ns: int
    code: int | None = None
    exception: str | None = None
    message: str | None = None
    place: str | None = None
    phase: str | None = None
