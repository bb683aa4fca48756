"""Traffic between GPUs, or between a GPU and its network card, crosses the socket interconnect.

What
----
Pairs marked SYS in the machine's link matrix (`nvidia-smi topo -m`): their bytes go over PCIe, through one CPU, the
interconnect between sockets, and the other CPU. Two findings: GPU pairs, and GPUs without a network card on their own
side.

Why
---
The path is shared by all crossing traffic, slower than a PCIe switch, and often without peer-to-peer: NCCL then copies
through host memory. A ring over all GPUs of two sockets crosses at least twice and runs at that speed.

Known problems
--------------
The matrix does not show which GPUs the job uses; where CUDA_VISIBLE_DEVICES is recorded, only those are judged. GPUs
with NVLink between all of them never use that path to each other.

References
----------
nvidia-smi topo --help (legend); NCCL user guide, environment variables, NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL; NVIDIA
nccl-tests issue 178: 208 GB/s on two GPUs with NVLink, 20 GB/s on three of which one is across.
"""

from __future__ import annotations

from stepscope.core.words import counted, listed
from stepscope.diagnose.rule import Finding, Rule, Statement, finding
from stepscope.machine.topology import Topology
from stepscope.results.comm_facts import shared_memory_links, topology_of
from stepscope.results.evidence import Evidence

_SHOWN = 6


def check(evidence: Evidence) -> Statement:
    """Look for: traffic of the job's GPUs crosses the socket interconnect."""
    topology = topology_of(evidence)
    if topology is None:
        return RULE.blind
    if len(topology.gpus) < 2:
        return "one GPU: nothing crosses"
    visible = _visible_gpus(evidence, topology)
    crossing = topology.socket_crossing_pairs()
    across = tuple(p for p in crossing if visible is None or set(p) <= visible)
    far = tuple(name for name in _far_from_nics(topology) if visible is None or name in visible)
    findings = []
    if across:
        findings.append(_crossing_finding(evidence, topology, across))
    if far:
        findings.append(_far_cards_finding(topology, far))
    if findings:
        return findings
    unknown = len(topology.unknown_pairs())
    more = f"; {counted(unknown, 'pair')} not readable" if unknown else ""
    if visible is not None and crossing:
        return f"the job uses {', '.join(sorted(visible))} (CUDA_VISIBLE_DEVICES), which do not cross sockets{more}"
    return f"0 of {counted(len(topology.gpu_pairs()), 'GPU pair')} cross sockets (SYS){more}"


def _visible_gpus(evidence: Evidence, topology: Topology) -> set[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to the job, by its indices; None where it is not set, or has no indices."""
    setting = evidence.environment.variables.get("CUDA_VISIBLE_DEVICES") if evidence.environment is not None else None
    indices = setting.split(",") if setting else []
    names = {f"GPU{index.strip()}" for index in indices}
    return names if names and names <= {gpu.name for gpu in topology.gpus} else None


def _crossing_finding(evidence: Evidence, topology: Topology, across: tuple[tuple[str, str], ...]) -> Finding:
    """Return the finding of pairs of GPUs that cross the sockets."""
    apart = {frozenset(pair) for pair in across}
    sides: list[list[str]] = []  # GPUs that reach each other without crossing, in order
    for gpu in topology.gpus:
        home = (s for s in sides if all(frozenset((gpu.name, other)) not in apart for other in s))
        side = next(home, None)
        if side is None:
            sides.append([gpu.name])
        else:
            side.append(gpu.name)
    largest = max(sides, key=len)
    links = [
        link
        for log in evidence.nccl
        for communicator in log.communicators
        for link in shared_memory_links(communicator)
    ]
    ways = list(dict.fromkeys(f"rank {link.source} to {link.destination} via SHM" for link in links))[:_SHOWN]
    return finding(
        f"{len(across)} of {counted(len(topology.gpu_pairs()), 'GPU pair')} reach each other only across the socket "
        "interconnect",
        f"marked SYS: {listed((f'{a}-{b}' for a, b in across), at_most=_SHOWN)}",
        f"without a crossing: {'; '.join('+'.join(side) for side in sides)}",
        bool(ways) and f"NCCL copies through host memory there: {', '.join(ways)}",
        confidence="certain for the machine, by its link matrix; which of these GPUs the job uses is not recorded",
        advice=[
            (
                f"jobs of up to {counted(len(largest), 'GPU')}: stay on one side",
                f"export CUDA_VISIBLE_DEVICES={','.join(name.removeprefix('GPU') for name in largest)}",
            ),
            (
                "larger jobs: keep tensor parallelism and FSDP groups on one side; use only data parallelism "
                "across sides"
            ),
            ("measure the cost of the crossing for each pair", "stepscope comm --ops none --pairs"),
        ],
        of="GPU pairs",
    )


def _far_from_nics(topology: Topology) -> tuple[str, ...]:
    """GPUs whose nearest network card is across; empty where every card is, or none is known."""
    far = []
    for gpu in topology.gpus:
        links = [topology.link(gpu.name, name) for name in topology.nearest_nics(gpu.name)]
        if links and all(link is not None and link.crosses_socket for link in links):
            far.append(gpu.name)
    return tuple(far)


def _far_cards_finding(topology: Topology, far: tuple[str, ...]) -> Finding:
    """Return the finding of GPUs whose network cards are all on the other socket."""
    return finding(
        f"{len(far)} of {counted(len(topology.gpus), 'GPU')} have every network card on the other socket",
        f"{', '.join(far)}: nearest cards are SYS",
        f"cards: {', '.join(nic.label or nic.name for nic in topology.nics)}",
        confidence="certain for the machine; it matters to jobs on several hosts only",
        advice=[
            (
                "without GPUDirect RDMA the traffic of these GPUs goes through host memory; let NCCL send "
                "through a GPU beside the card (PXN, NVLink machines, on by default since 2.12)"
            ),
            "ask the operator for a card on each socket, or use the GPUs beside the cards for jobs of few GPUs",
        ],
        of="network cards",
    )


RULE = Rule(
    symptom="traffic of the job's GPUs crosses the socket interconnect",
    sees=("topology", "environment"),
    look=check,
    looks_at="topology, nccl",
    decided_by="pairs: 0 GPU pairs across",
    protocol=3,
)
