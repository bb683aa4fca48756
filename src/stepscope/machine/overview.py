"""The record as sections of labelled facts for people: environment, GPUs, links, network, launcher. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.units import format_bandwidth, format_bytes_binary
from stepscope.core.words import counted, listed
from stepscope.machine.checks.gpus import FREE_BYTES
from stepscope.machine.checks.links import nvlinks_per_gpu
from stepscope.machine.judging import no_gpu_reason, topology_of, torch_build
from stepscope.machine.topology import LINK_KINDS, Topology, has_nvswitch
from stepscope.records.environment import EnvironmentRecord, GpuFact, NicFact

_COMMUNICATION = ("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "TP_")
_QUIET_PREFIXES = ("NVIDIA_", "KUBERNETES_", "LD_", "SLURM_", "PBS_", "LSB_")
"""Prefixes of variables that are kept in the record and too many to print."""


@record
class Fact:
    """known False: ``text`` is the reason why there is no fact."""

    label: str
    text: str
    recorded: bool = True


@record
class Section:
    title: str
    lines: tuple[Fact, ...]


def overview(record: EnvironmentRecord) -> tuple[Section, ...]:
    """The sections in the order of the checks."""
    return (
        Section(title="environment", lines=tuple(_environment_facts(record))),
        Section(title="GPUs", lines=tuple(_gpu_facts(record))),
        Section(title="links", lines=tuple(_link_facts(record))),
        Section(title="network", lines=tuple(_network_facts(record))),
        Section(title="launcher", lines=tuple(_launcher_facts(record))),
    )


def _missing_fact(label: str, reason: str) -> Fact:
    return Fact(label=label, text=reason, recorded=False)


def _environment_facts(record: EnvironmentRecord) -> Iterable[Fact]:
    """Yield host, Python, torch and processors."""
    yield Fact(label="host", text=f"{record.host}, {record.os}, kernel {record.kernel}")
    torch = record.torch
    if torch is None:
        yield Fact(label="Python", text=record.python)
        yield _missing_fact("torch", record.unavailable.get("torch", "unknown reason"))
    else:
        yield Fact(label="Python", text=f"{record.python}, {torch_build(torch)}")
    parts = [counted(record.logical_cores, "core")]
    if record.physical_cores is not None and record.physical_cores != record.logical_cores:
        parts.append(f"{record.physical_cores} physical")
    if record.numa_nodes is not None and record.numa_nodes > 1:
        parts.append(f"{record.numa_nodes} NUMA nodes")
    quota = f" (cgroup quota {record.cpu_quota_cores:g})" if record.cpu_quota_cores is not None else ""
    yield Fact(
        label="CPU",
        text=f"{record.cpu_model or 'model unknown'}; {', '.join(parts)}, {record.usable_cores} usable{quota}",
    )
    limit = " (cgroup limit)" if record.memory_limit_bytes is not None else ""
    yield Fact(
        label="memory",
        text=f"{format_bytes_binary(record.memory_bytes)}{limit}, "
        f"{format_bytes_binary(record.memory_available_bytes)} free",
    )
    if record.packages:
        shown = {name: version for name, version in record.packages.items() if not name.startswith("nvidia-")}
        yield Fact(label="packages", text=", ".join(f"{name} {version}" for name, version in shown.items()))


def _gpu_facts(record: EnvironmentRecord) -> Iterable[Fact]:
    """Yield driver and GPUs; without a driver what torch sees, and why there is none."""
    if not record.gpus:
        if record.torch is not None and record.torch.device_count:
            yield from _torch_device_facts(record)
        yield _missing_fact("driver", record.unavailable.get("gpus", no_gpu_reason(record)))
        return
    yield Fact(
        label="driver", text=next((g.driver_version for g in record.gpus if g.driver_version), None) or "unknown"
    )
    for text, group in groupby(record.gpus, key=_gpu_text):
        indices = [gpu.index for gpu in group]
        label = f"GPU {indices[0]}" if len(indices) == 1 else f"GPU {indices[0]}-{indices[-1]}"
        yield Fact(label=label, text=text)
    for key, reason in record.unavailable.items():
        if key.startswith("gpu "):
            yield _missing_fact(key.replace("gpu", "GPU"), reason)


def _gpu_text(gpu: GpuFact) -> str:
    """Write a GPU: name, memory, and what limits it."""
    parts = [gpu.name, "memory unknown" if gpu.memory_bytes is None else format_bytes_binary(gpu.memory_bytes)]
    if gpu.memory_used_bytes is not None and gpu.memory_used_bytes > FREE_BYTES:
        parts[-1] += f" ({format_bytes_binary(gpu.memory_used_bytes)} in use)"
    if gpu.compute_capability:
        parts.append(f"sm {gpu.compute_capability}")
    if gpu.pcie_generation_max and gpu.pcie_width:
        parts.append(f"PCIe {gpu.pcie_generation_max}.0 x{gpu.pcie_width}")
    if gpu.power_limit_w is not None:
        parts.append(f"{gpu.power_limit_w:.0f} W")
    if gpu.mig:
        parts.append("MIG")
    return ", ".join(parts)


def _torch_device_facts(record: EnvironmentRecord) -> Iterable[Fact]:
    assert record.torch is not None
    devices = zip(record.torch.device_names, record.torch.device_memory_bytes, strict=True)
    for index, (name, memory) in enumerate(devices):
        yield Fact(label=f"device {index}", text=f"{name}, {format_bytes_binary(memory)} (from torch)")


def _link_facts(record: EnvironmentRecord) -> Iterable[Fact]:
    topology = topology_of(record)
    if isinstance(topology, Unavailable):
        yield _missing_fact("topology", topology.reason)
        return
    yield from topology_lines(topology, links_per_gpu=nvlinks_per_gpu(record))


def topology_lines(topology: Topology, *, links_per_gpu: int | None = None) -> Iterable[Fact]:
    """What the link matrix means: fast pairs, socket crossings, islands, switch, NIC next to each GPU."""
    pairs = topology.gpu_pairs()
    for kind, meaning in LINK_KINDS.items():
        of_kind = topology.pairs_of_kind(kind)
        if of_kind:
            labels = sorted({link.label for pair in of_kind if (link := topology.link(*pair))})
            who = "all pairs" if len(of_kind) == len(pairs) and len(pairs) > 1 else listed("-".join(p) for p in of_kind)
            yield Fact(label=" ".join(labels), text=f"{len(of_kind)} of {len(pairs)} pairs, {meaning}: {who}")
    islands = [island for island in topology.nvlink_islands() if len(island) > 1]
    if islands:
        yield Fact(label="islands", text="; ".join(" ".join(island) for island in islands) + " (joined by NVLink)")
        switch = {True: "yes", False: "no, direct links", None: "the matrix does not show it"}
        yield Fact(label="NVSwitch", text=switch[has_nvswitch(topology, links_per_gpu=links_per_gpu)])
    for node, names in sorted(_by_numa(topology).items()):
        yield Fact(label=f"NUMA {node}", text=" ".join(names))
    if topology.nics:
        devices = {nic.name: nic.label or nic.name for nic in topology.nics}
        near = {gpu.name: topology.nearest_nics(gpu.name) for gpu in topology.gpus}
        text = "; ".join(f"{gpu} {'/'.join(devices[nic] for nic in nics)}" for gpu, nics in near.items() if nics)
        yield Fact(label="nearest NIC", text=text)
    for problem in topology.problems:
        yield _missing_fact("damaged", problem)


def _by_numa(topology: Topology) -> Mapping[str, list[str]]:
    nodes: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        if gpu.numa_affinity is not None:
            nodes.setdefault(",".join(map(str, gpu.numa_affinity)), []).append(gpu.name)
    return nodes


def _network_facts(record: EnvironmentRecord) -> Iterable[Fact]:
    """Yield backends and network interfaces."""
    torch = record.torch
    if torch is not None:
        nccl = f"NCCL {torch.nccl_version or ''}".strip() if torch.nccl else "no NCCL"
        yield Fact(label="backends", text=f"{'gloo' if torch.gloo else 'no gloo'}, {nccl}")
    addresses = record.hostname_addresses
    if addresses:
        yield Fact(label="host name", text=f"{record.host} = {', '.join(addresses)}")
    else:
        yield _missing_fact("host name", record.unavailable.get("hostname_addresses", "unknown reason"))
    if not record.nics:
        yield _missing_fact("NICs", record.unavailable.get("nics", "none found"))
    for nic in record.nics:
        if nic.up and nic.kind != "loopback":
            yield Fact(label=nic.name, text=_nic_text(nic))
    down = [nic.name for nic in record.nics if not nic.up]
    if down:
        yield Fact(label="down", text=", ".join(down))
    yield from _variable_facts(record, wanted=_COMMUNICATION)


def _nic_text(nic: NicFact) -> str:
    if nic.speed_bits_per_s is None:
        speed = "speed unknown"
    else:
        speed = f"{nic.speed_bits_per_s / 1e9:g} Gbit/s ({format_bandwidth(nic.speed_bits_per_s / 8)} per direction)"
    return ", ".join([nic.kind, speed, *nic.addresses])


def _launcher_facts(record: EnvironmentRecord) -> Iterable[Fact]:
    """Yield scheduler and scheduling policy."""
    yield Fact(label="scheduler", text=record.scheduler or "none")
    if record.scheduling_policy is not None:
        batch = {True: "SCHED_BATCH allowed", False: "SCHED_BATCH not allowed", None: "SCHED_BATCH unknown"}
        yield Fact(
            label="CPU scheduling", text=f"SCHED_{record.scheduling_policy.upper()}, {batch[record.batch_scheduling]}"
        )
    yield from _variable_facts(record, unwanted=_COMMUNICATION)


def _variable_facts(
    record: EnvironmentRecord, *, wanted: tuple[str, ...] = (), unwanted: tuple[str, ...] = ()
) -> Iterable[Fact]:
    """Yield the variables whose names begin so."""
    shown = [
        name
        for name in record.variables
        if (not wanted or name.startswith(wanted)) and not (unwanted and name.startswith(unwanted))
    ]
    quiet = [name for name in shown if name.startswith(_QUIET_PREFIXES)]
    for name in shown:
        if name not in quiet:
            yield Fact(label=name, text=record.variables[name] or "(empty)")
    if quiet:
        yield Fact(label="also set", text=f"{listed(quiet, at_most=6)} (--json prints them)")
