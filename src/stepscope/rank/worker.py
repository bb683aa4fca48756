"""One rank of a worker group: starts the process group once, then runs the group's cells in order.

Any cell that is not ok ends the group; the controller starts a new one with the rest.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from stepscope.core.errors import StepscopeError
from stepscope.rank import failure, flight, startup, way_out
from stepscope.rank.cell import run_cell
from stepscope.rank.comm.cell import run_comm
from stepscope.rank.context import RankContext
from stepscope.rank.control import Control
from stepscope.rank.heartbeat import Pulse
from stepscope.rank.mesh import Mesh
from stepscope.records.cell import GroupSpec
from stepscope.records.samples import RankError
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import make_dir, write_record

EXIT_FAILED = 1
EXIT_LOW_MEMORY = 137
EXIT_TERMINATED = 143


def main(spec_path: Path) -> int:
    startup.install_signals()
    try:
        group = read_record(spec_path, GroupSpec)
        place = startup.read_place(os.environ)
    except StepscopeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    if group.warnings_as_errors:
        warnings.simplefilter("error")
    return _run(group, place) if group.work else 0


def _run(group: GroupSpec, place: startup.RankPlace) -> int:
    layout = RunLayout(Path(group.run_dir))
    group_files = layout.group(group.group_id)
    make_dir(group_files.root)

    def leave(record: RankError) -> None:
        where = group_files if record.cell_id is None else layout.cell(record.cell_id)
        with suppress(StepscopeError):  # a full disk may be why this rank fails: the way out stays open
            write_record(where.error(record.rank), record)

    def out_of_host_memory(text: str) -> None:
        leave(failure.describe(MemoryError(text), pulse, "host_oom"))
        os._exit(EXIT_LOW_MEMORY)

    pulse = Pulse(rank=place.rank, path=group_files.heartbeat(place.rank), on_low_memory=out_of_host_memory)
    pulse.start()

    def leave_stuck() -> None:
        leave(failure.describe(failure.Terminated("signal SIGTERM"), pulse))
        os._exit(EXIT_TERMINATED)

    black_box = flight.BlackBox(rank=place.rank, world_size=place.world_size)

    def leave_calls() -> None:
        if pulse.cell_id is not None:
            black_box.leave(layout.cell(pulse.cell_id))

    way_out.leave_when_told(leave_stuck, at_once=leave_calls)
    way_out.on_abort(leave_calls)
    try:
        context = _open(group, place, layout, pulse)
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
        startup.leave_undisturbed()  # torchrun's SIGTERM for a dead peer comes while this rank still writes its calls
        record = failure.describe(error, pulse)
        sys.stderr.write(record.traceback if record.kind != "usage" else f"error: {error}\n")
        sys.stderr.flush()
        leave(record)
        leave_calls()
        pulse.beat()
        # Not sys.exit: a peer is gone or stuck, and gloo's and CUDA's own clean-up would wait for it.
        os._exit(EXIT_TERMINATED if record.kind == "terminated" else EXIT_FAILED)
    pulse.stop()
    return 0


def _open(group: GroupSpec, place: startup.RankPlace, layout: RunLayout, pulse: Pulse) -> RankContext:
    pulse.enter("init")
    policy = startup.use_batch_scheduling() if group.backend == "gloo" else "SCHED_OTHER"
    device = startup.pick_device(group.device, place, os.environ)
    torch.set_num_threads(group.threads_per_rank)
    timeout_s = group.measure.timeout_ns / 1e9
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=min(timeout_s, 300))))
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
        group=group,
        place=place,
        mesh=mesh,
        control=control,
        pulse=pulse,
        layout=layout,
        scheduler_policy=policy,
    )
