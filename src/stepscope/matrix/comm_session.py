"""From what ``stepscope comm`` was asked to a plan on this machine, and from a finished run to its rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.config.sections import LaunchSettings
from stepscope.core.errors import UsageError
from stepscope.core.units import format_bytes_binary
from stepscope.launch.join import joined_world
from stepscope.machine.collect import collect
from stepscope.matrix.comm_plan import CommRequest, PlannedComm, plan_comm, senseless
from stepscope.matrix.machine import Backend, Device, choose_device, machine_of
from stepscope.matrix.networks import slowest_bits_per_s
from stepscope.records.comm import CommRow, CommSpec
from stepscope.records.environment import EnvironmentRecord
from stepscope.results.comm_links import link_peak
from stepscope.results.comm_rows import build_comm_rows, read_comm_cells, write_comm_rows
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there

LEAST_RANK_BYTES = 100 << 20
"""Memory of its own that a rank takes at the least: an interpreter with torch and a process group (Linux, torch 2.13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommPlan:
    """Sweeps on this machine, ready to run."""

    cells: tuple[PlannedComm, ...]
    environment: EnvironmentRecord
    device: Device
    backend: Backend


def make_comm_plan(request: CommRequest, *, launch: LaunchSettings, worlds: Sequence[int] | None) -> CommPlan:
    """Expand ``request`` here. worlds: None: all GPUs, or 2 ranks on the CPU; in a started world, its size.

    Raises UsageError, and MissingError for a device or backend that is not there.
    """
    joined = joined_world(os.environ)
    environment = collect(remember=True)
    machine = machine_of(environment, joined_world_size=None if joined is None else joined[1])
    device, backend = choose_device(launch, machine)
    if worlds is None:
        here = max(1, machine.num_gpus) if device == "cuda" else 2
        worlds = (machine.joined_world_size or here,)
    if joined is None:
        _require_memory(max(worlds), environment)
    cells = plan_comm(replace(request, worlds=tuple(worlds)), machine=machine, device=device, backend=backend)
    reasons = dict.fromkeys(senseless(cell.spec) for cell in cells)
    if None not in reasons:
        raise UsageError(
            "nothing is left to measure",
            why="; ".join(reason for reason in reasons if reason),
            fix="add another --ops, --dtype or --reduce-op"
            if any(cell.spec.root < cell.spec.world_size for cell in cells)
            else f"choose a --root below {max(cell.spec.world_size for cell in cells)}, or more --ranks",
        )
    return CommPlan(cells=cells, environment=environment, device=device, backend=backend)


def _require_memory(ranks: int, environment: EnvironmentRecord) -> None:
    """Raises UsageError where so many processes cannot fit: the machine would swap, or kill some of them."""
    needed, free = ranks * LEAST_RANK_BYTES, environment.memory_available_bytes
    if needed > free:
        raise UsageError(
            f"{ranks} ranks do not fit in this machine's memory",
            why=f"they take {format_bytes_binary(needed)} at least before the first message, "
            f"{format_bytes_binary(free)} is free",
            fix="fewer --ranks",
        )


def derive_comm_rows(layout: RunLayout) -> tuple[CommRow, ...]:
    """results.jsonl from what lies in the run folder; the rows."""
    cells = read_comm_cells(layout)
    environment = read_if_there(layout.environment, EnvironmentRecord)

    def peak(cell: CommSpec, hosts: int) -> float | None:
        if environment is None:
            return None
        rate = slowest_bits_per_s(cell.network)
        return link_peak(environment, device=cell.device, hosts=hosts, network_bits_per_s=rate)

    rows = build_comm_rows(layout, cells, peak_of=peak)
    write_comm_rows(layout, rows)
    return rows
