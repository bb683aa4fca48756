"""One rank of a worker group: starts the process group once, then runs the group's cells in order.

Any cell that is not ok ends the group; the controller starts a new one with the rest.

A rank that is told to stop leaves, even from inside a library call that does not return to the interpreter.

Python runs signal handlers between two bytecodes of the main thread: a rank that waits inside gloo, NCCL, CUDA or
the rendezvous store would sit out torchrun's 30 s until SIGKILL, and everybody with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.rank import flight, recorder
from stepscope.rank.cell import run_cell
from stepscope.rank.comm.cell import run_comm
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control
from stepscope.rank.startup import (
    RankContext,
    RankPlace,
    install_signals,
    leave_undisturbed,
    pick_device,
    read_place,
    use_batch_scheduling,
)
from stepscope.records.cell import GroupSpec
from stepscope.records.samples import RankError
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import make_dir, write_record

GRACE_S = 2.0
"""Time for the main thread's own way out, which flushes what was measured."""

_SIG_DFL, _SIG_IGN = 0, 1
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_keep: list[object] = []


def leave_when_told(
    leave: Callable[[], None], *, at_once: Callable[[], None] = lambda: None, grace_s: float = GRACE_S
) -> None:
    """Call ``at_once`` on SIGTERM, and ``leave``, which ends the process, when it still runs ``grace_s`` later.

    From the main thread only; both are called in another one.
    """
    receiver, teller = socket.socketpair()
    teller.setblocking(False)
    signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
    # A forked data worker shares the socket: a signal for it is no signal for this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def wait() -> None:
        """Leave on SIGTERM: at once what must be, the rest after a grace."""
        while numbers := receiver.recv(64):
            if signal.SIGTERM in numbers:
                at_once()
                time.sleep(grace_s)
                leave()
        teller.close()

    threading.Thread(target=wait, name="stepscope-way-out", daemon=True).start()


def on_abort(leave: Callable[[], None]) -> None:
    """Call ``leave`` when a library aborts this process, before it dies of it. Linux and macOS.

    gloo does so, in a thread of its own, when a message is larger than the tensor it is meant for; NCCL's watchdog when
    a collective timed out. Python's own handlers are too late for both: abort() does not return to the interpreter.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    owner = os.getpid()

    def handle(signum: int) -> None:
        libc.signal(signum, previous or _SIG_DFL)
        if os.getpid() == owner:  # not in a forked data worker
            leave()
        if previous not in (None, _SIG_DFL, _SIG_IGN):
            _HANDLER(previous)(signum)  # faulthandler's, say

    handler = _HANDLER(handle)
    _keep.append(handler)  # C holds no reference
    previous = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))


EXIT_FAILED = 1
EXIT_LOW_MEMORY = 137
EXIT_TERMINATED = 143


def main(spec_path: Path) -> int:
    """Run this rank of a group; return the exit code."""
    install_signals()
    try:
        group = read_record(spec_path, GroupSpec)
        place = read_place(os.environ)
    except StepscopeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if group.warnings_as_errors:
        warnings.simplefilter("error")
    return _run_rank(group, place) if group.work else 0


def _run_rank(group: GroupSpec, place: RankPlace) -> int:
    """Run the cells of a group on this rank; return the exit code."""
    layout = RunLayout(Path(group.run_dir))
    group_files = layout.group(group.group_id)
    make_dir(group_files.root)

    def leave(record: RankError) -> None:
        where = group_files if record.cell_id is None else layout.cell(record.cell_id)
        with suppress(StepscopeError):  # a full disk may be why this rank fails: the way out stays open
            write_record(where.error(record.rank), record)

    def out_of_host_memory(text: str) -> None:
        leave(recorder.describe(MemoryError(text), pulse, "host_oom"))
        os._exit(EXIT_LOW_MEMORY)

    pulse = Pulse(rank=place.rank, path=group_files.heartbeat(place.rank), on_low_memory=out_of_host_memory)
    pulse.start()

    def leave_stuck() -> None:
        leave(recorder.describe(recorder.Terminated("signal SIGTERM"), pulse))
        os._exit(EXIT_TERMINATED)

    black_box = flight.BlackBox(rank=place.rank, world_size=place.world_size)

    def leave_calls() -> None:
        if pulse.cell_id is not None:
            black_box.leave(layout.cell(pulse.cell_id))

    leave_when_told(leave_stuck, at_once=leave_calls)
    on_abort(leave_calls)
    try:
        context = _rank_context(group, place, layout, pulse)
        for round_index in range(group.measure.rounds):
            for cell in group.cells:
                pulse.move_to(layout.cell(cell.cell_id).heartbeat(place.rank), cell.cell_id)
                run_cell(cell, context, round_index=round_index)
        for sweep in group.comm_cells:
            pulse.move_to(layout.cell(sweep.cell_id).heartbeat(place.rank), sweep.cell_id)
            run_comm(sweep, context)
        pulse.enter("finished")
        context.control.farewell()
        dist.destroy_process_group()
    except BaseException as error:  # noqa: BLE001 - process boundary: whatever it was, this rank says so
        leave_undisturbed()  # torchrun's SIGTERM for a dead peer comes while this rank still writes its calls
        record = recorder.describe(error, pulse)
        sys.stderr.write(record.traceback if record.kind != "usage" else f"error: {error}\n")
        sys.stderr.flush()
        leave(record)
        leave_calls()
        pulse.beat()
        # Not sys.exit: a peer is gone or stuck, and gloo's and CUDA's own clean-up would wait for it.
        os._exit(EXIT_TERMINATED if record.kind == "terminated" else EXIT_FAILED)
    pulse.stop()
    return 0


def _rank_context(group: GroupSpec, place: RankPlace, layout: RunLayout, pulse: Pulse) -> RankContext:
    """Join the process group; return what the cells need."""
    pulse.enter("init")
    policy = use_batch_scheduling() if group.backend == "gloo" else "SCHED_OTHER"
    device = pick_device(group.device, place, os.environ)
    torch.set_num_threads(group.threads_per_rank)
    timeout_s = group.measure.timeout_ns / 1e9
    if group.master_port is not None:
        os.environ["MASTER_PORT"] = str(group.master_port)
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=min(timeout_s, 300))))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise UsageError(
            f"port {os.environ['MASTER_PORT']}, at which the ranks would meet, is in use on rank 0's host",
            fix="export another MASTER_PORT for all ranks",
        ) from error
    dist.init_process_group(
        group.backend,
        store=PrefixStore("stepscope.group", store),
        rank=place.rank,
        world_size=place.world_size,
        # The controller's deadline per cell is the one that ends a hang: it knows every rank's position.
        timeout=timedelta(seconds=timeout_s + 60),
        device_id=device if device.type == "cuda" else None,
    )
    mesh = Mesh(rank=place.rank, world_size=place.world_size, device=device, backend=group.backend)
    control = Control(store, rank=place.rank, world_size=place.world_size, timeout_s=timeout_s + 60)
    return RankContext(
        group=group, place=place, mesh=mesh, control=control, pulse=pulse, layout=layout, scheduler_policy=policy
    )
