"""What a plan needs to know of the machine: device and backend, threads, emulated networks."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError, Unavailable
from stepscope.core.words import counted
from stepscope.launch.hosts.survey import HostWorld
from stepscope.launch.join import joined_world
from stepscope.machine.collect import collect
from stepscope.matrix.keys import LaunchSettings
from stepscope.records.cell import Cell
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.network import EmulatedNetwork, obstacle, parse_network

Device = Literal["cpu", "cuda"]
Backend = Literal["gloo", "nccl"]


@record
class Machine:
    """Where a matrix would run.

    num_gpus: devices that torch can use; no_gpu_reason: why there are none, where that is known.
    usable_cores: after affinity and cgroup limits. gloo, nccl: whether torch was built with them; None = unknown.
    compute_capability: the lowest among the GPUs, such as ``8.0``; None = unknown.
    torch_version: None = unknown.
    joined_world_size: set when a launcher has already started this many ranks and the command joins them as a worker.
    slots: ranks on the CPU that the hosts of --hosts take together; None: ranks run on this machine.
    """

    num_gpus: int
    usable_cores: int
    gloo: bool | None = None
    nccl: bool | None = None
    compute_capability: str | None = None
    no_gpu_reason: str | None = None
    torch_version: str | None = None
    joined_world_size: int | None = None
    slots: int | None = None


def here_or_there(hosts: HostWorld | None) -> tuple[EnvironmentRecord, Machine]:
    """Return where ranks will run: the hosts, else the world that a launcher has started, else this machine."""
    if hosts is not None:
        return hosts.record, machine_of_hosts(hosts)
    joined = joined_world(os.environ)
    environment = collect(remember=True)
    return environment, machine_of(environment, joined_world_size=None if joined is None else joined[1])


def machine_of_hosts(world: HostWorld) -> Machine:
    """Return all hosts as one machine: their GPUs and cores together, what the weakest of them has."""
    machines = [machine_of(host.environment) for host in world.hosts]
    capabilities = tuple(machine.compute_capability for machine in machines if machine.compute_capability)
    return replace(
        machines[0],
        num_gpus=sum(host.slots or host.gpus if host.gpus else 0 for host in world.hosts),
        usable_cores=sum(machine.usable_cores for machine in machines),
        compute_capability=_lowest_capability(capabilities),
        slots=sum(host.slots or 1 for host in world.hosts),
    )


def cores_of(cell: Cell, usable_cores: int, hosts: HostWorld | None) -> int:
    """Count the cores for all ranks of ``cell`` together."""
    return usable_cores if hosts is None else hosts.cores(cell.world_size, cell.device)


def machine_of(environment: EnvironmentRecord, *, joined_world_size: int | None = None) -> Machine:
    """Return the machine that ``environment`` describes. Without torch's facts there are no GPUs, and the reason says so."""
    torch = environment.torch
    if torch is None:
        reason = environment.unavailable.get("torch", "torch was not checked")
        return Machine(
            num_gpus=0, usable_cores=environment.usable_cores, no_gpu_reason=reason, joined_world_size=joined_world_size
        )
    usable = torch.cuda_available
    return Machine(
        num_gpus=torch.device_count if usable else 0,
        usable_cores=environment.usable_cores,
        gloo=torch.gloo,
        nccl=torch.nccl,
        compute_capability=_lowest_capability(torch.device_capabilities) if usable else None,
        no_gpu_reason=None if usable else (torch.cuda_error or "torch sees no CUDA device"),
        torch_version=torch.version,
        joined_world_size=joined_world_size,
    )


def _lowest_capability(capabilities: tuple[str, ...]) -> str | None:
    if not capabilities:
        return None
    return min(capabilities, key=lambda text: tuple(int(part) for part in text.split(".")))


def choose_device(launch: LaunchSettings, machine: Machine) -> tuple[Device, Backend]:
    """Choose device and backend of all cells: GPUs with NCCL where there are any, else the CPU with gloo.

    Asked for by name and not there: MissingError.
    """
    device: Device = launch.device if launch.device != "auto" else ("cuda" if machine.num_gpus else "cpu")
    if launch.device == "auto" and launch.backend == "nccl":
        device = "cuda"
    if device == "cuda" and machine.num_gpus == 0:
        asked = "launch.device: cuda" if launch.device == "cuda" else "launch.backend: nccl"
        raise MissingError(
            f"{asked} needs a GPU, and this machine has none that torch can use",
            why=machine.no_gpu_reason,
            fix="set launch.device and launch.backend to auto (CPU with gloo), or run it where there are GPUs",
        )
    backend: Backend = launch.backend if launch.backend != "auto" else _backend_of(device, machine)
    if (machine.gloo if backend == "gloo" else machine.nccl) is False:
        raise MissingError(
            f"the installed torch has no {backend}",
            fix="install a torch build with it, or set launch.backend to the other one",
        )
    return device, backend


def _backend_of(device: Device, machine: Machine) -> Backend:
    if device == "cpu":
        return "gloo"
    # torch for Windows has CUDA without NCCL
    return "gloo" if machine.nccl is False else "nccl"


def threads_per_rank(requested: int | Literal["auto"], *, usable_cores: int, world_size: int) -> int:
    """Return the compute threads of each rank: as asked, or the usable cores divided among the ranks, at least 1."""
    return requested if requested != "auto" else max(1, usable_cores // world_size)


def canonical_network(text: str | None) -> str | None:
    """Return the text that stands in a cell's identity: one for each network. Raises UsageError."""
    return None if text is None else str(parse_network(text))


def refused(text: str | None, *, world_size: int, device: str, joined: bool) -> str | None:
    """Say why ranks of ``device`` cannot run in network ``text`` here, or None when they can."""
    if text is None:
        return None
    if joined:
        return f"network {text}: ranks that a launcher started cannot move into an emulated network"
    if device != "cpu":
        return f"network {text}: emulated networks carry gloo between CPU ranks only"
    network = parse_network(text)
    emulation = _why_no_emulation(network.delay_ns > 0)
    if isinstance(emulation, Unavailable):
        return f"network {text}: {emulation.reason}"
    return obstacle(network, world_size)


def network_misfit(cell: Cell, machine: Machine) -> str | None:
    """Say why ``cell`` cannot run in its network here, or in the world that a launcher has started; None when it can."""
    if machine.slots is not None:
        return _hosts_misfit(cell, machine.slots)
    joined = machine.joined_world_size
    if reason := refused(cell.network, world_size=cell.world_size, device=cell.device, joined=joined is not None):
        return reason
    if joined is not None and cell.world_size != joined:
        return f"{counted(cell.world_size, 'rank')}: the launcher started {joined}"
    if joined is not None and cell.env:
        return f"{', '.join(sorted(cell.env))} cannot be set: the launcher has already started the ranks"
    return None


def _hosts_misfit(cell: Cell, slots: int) -> str | None:
    """Say why ``cell`` cannot run on the hosts of --hosts."""
    if cell.network is not None:
        return f"network {cell.network}: the ranks run on real hosts"
    if cell.device == "cpu" and cell.world_size > slots:
        return f"{counted(cell.world_size, 'rank')}: the hosts take {slots} (more on a host: --hosts HOST:RANKS)"
    return None


def slowest_bits_per_s(text: str | None) -> float | None:
    """Return the rate of the slowest link, or None without a network."""
    if text is None:
        return None
    network: EmulatedNetwork = parse_network(text)
    return float(min([network.rate_bits_per_s, *(slow.rate_bits_per_s for slow in network.slow)]))


@cache
def _why_no_emulation(delayed: bool) -> Unavailable | None:
    """Probe the emulation once: it starts a process."""
    from stepscope.launch.netns.start import probe_emulation

    return probe_emulation(delayed=delayed)
