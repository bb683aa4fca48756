"""NCCL connects GPUs of one host through host memory, or some ranks never finished their initialisation.

What
----
NCCL's log names the transport of every link ("via SHM" is shared host memory) and the ranks whose communicator is
complete. Two findings: links between GPUs of one host that use SHM instead of P2P; ranks that started and never
completed their initialisation while others of the same communicator did.

Why
---
P2P moves bytes over NVLink or PCIe from GPU to GPU. SHM copies them to host memory and back: two PCIe transfers and the
memory of one socket per link. A communicator with a missing rank hangs at its first collective.

Known problems
--------------
Across sockets (SYS) NCCL itself chooses SHM on many machines, where P2P may be slower; the finding is then a warning.
In a truncated log complete ranks may look incomplete; the evidence says so.

References
----------
NCCL user guide, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_SHM_DISABLE, and Troubleshooting (GPU direct, PCI access control
services, shared memory of containers).
"""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.core.words import counted, in_words, listed, plural
from stepscope.diagnose.rule import Finding, Rule, Statement, finding
from stepscope.machine.topology import Topology
from stepscope.records.nccl import NcclCommunicator, NcclDebug, NcclLink
from stepscope.results.comm_facts import shared_memory_links, topology_of
from stepscope.results.evidence import Evidence

_SHOWN = 6


def check(evidence: Evidence) -> Statement:
    """Look for: NCCL uses host memory between GPUs of one host, or ranks never finished their initialisation."""
    findings: list[Finding] = []
    communicators = [(log, communicator) for log in evidence.nccl for communicator in log.communicators]
    largest = sorted(communicators, key=lambda pair: -(pair[1].nranks or 0))
    via_memory = next(((log, c, links) for log, c in largest if (links := _indirect_links(c))), None)
    if via_memory is not None:
        findings.append(_through_memory_finding(*via_memory, topology_of(evidence)))
    findings += [_uninitialised_finding(log, c, late) for log, c in communicators if (late := _uninitialised_ranks(c))]
    if findings:
        return findings
    ways = ", ".join(sorted({link.transport for _, c in communicators for link in c.links}))
    total = counted(sum(len(c.links) for _, c in communicators), "link")
    complete = all(rank.initialised for _, c in communicators for rank in c.ranks)
    return f"{total}{f' via {ways}' if ways else ''}{'; every rank completed its initialisation' if complete else ''}"


def _indirect_links(communicator: NcclCommunicator) -> tuple[NcclLink, ...]:
    """Links of one host through its memory, or through the network, which NCCL takes where both ways within it are off."""
    one_host = communicator.hosts == 1 and len(communicator.ranks) == communicator.nranks
    network = [link for link in communicator.links if one_host and link.transport.startswith("NET/")]
    return shared_memory_links(communicator) + tuple(network)


def _prevents_p2p(name: str, value: str) -> bool:
    """Whether a setting keeps P2P from links of one host; levels from PXB on allow it."""
    if name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        return value not in ("0", "")
    return name == "NCCL_P2P_LEVEL" and value.upper() in ("LOC", "NVL", "PIX", "0", "1")


def _uninitialised_ranks(communicator: NcclCommunicator) -> tuple[int, ...]:
    """Ranks without a complete initialisation, where others have one."""
    late = tuple(rank.rank for rank in communicator.ranks if not rank.initialised)
    return late if len(late) < len(communicator.ranks) else ()


def _through_memory_finding(
    log: NcclDebug, communicator: NcclCommunicator, links: tuple[NcclLink, ...], topology: Topology | None
) -> Finding:
    """Return the finding of links between GPUs of a host that go through its memory."""
    count = counted(len(links), "link")
    network = any(link.transport.startswith("NET/") for link in links)
    shown = listed((f"{link.source} to {link.destination}" for link in links), at_most=_SHOWN)
    switched = [(name, value) for name, value in log.settings if _prevents_p2p(name, value)]
    nvlinked = topology is not None and len(topology.fast_pairs()) == len(topology.gpu_pairs()) > 0
    crossing = topology is not None and bool(topology.socket_crossing_pairs())
    return finding(
        f"NCCL uses {'the network' if network else 'shared memory'} instead of P2P on {count} between GPUs of one host",
        f"via {links[0].transport if network else 'SHM'}: rank {shown}; "
        f"{format_percent(len(links) / len(communicator.links))} of all links",
        bool(switched) and f"set in the environment: {', '.join(map('='.join, switched))}",
        nvlinked and "the link matrix shows NVLink between all GPUs",
        crossing
        and not nvlinked
        and "the link matrix shows pairs across sockets (SYS), where NCCL avoids P2P by itself",
        severity="problem" if switched or nvlinked else "warning",
        confidence="certain: NCCL's own log; the gain of P2P is not measured",
        advice=[
            bool(switched)
            and ("remove the setting and measure again", f"unset {' '.join(name for name, _ in switched)}"),
            ("list the GPUs that reach each other directly", "nvidia-smi topo -p2p r"),
            not switched
            and not crossing
            and (
                "check what prevents P2P: an IOMMU or PCI access control services on the host, a container that "
                "isolates each GPU"
            ),
        ],
        of=None if communicator.nranks is None else f"communicator of {communicator.nranks} ranks",
    )


def _uninitialised_finding(log: NcclDebug, communicator: NcclCommunicator, late: tuple[int, ...]) -> Finding:
    """Return the finding of ranks that never finished their initialisation."""
    who, ranks = f"{plural(len(late), 'rank')} {in_words(late)}", len(communicator.ranks)
    cut = sum(file.truncated for file in log.files)
    return finding(
        f"{who} never completed the initialisation of a communicator",
        f"{ranks - len(late)} of {counted(ranks, 'rank')} completed its initialisation",
        cut > 0 and f"{counted(cut, 'log')} end inside a line: later lines may be missing",
        [m.text for m in log.messages if m.rank in late and m.kind == "warning"][:2],
        severity="warning" if cut else "problem",
        confidence="likely: the log is truncated" if cut else "likely: NCCL's log, which may be incomplete",
        advice=[f"check the last log lines of {who}, and the network between these hosts"],
        of=who,
        priority="failure",
    )


RULE = Rule(
    symptom="NCCL uses host memory between GPUs of one host, or ranks never finished their initialisation",
    needs=("nccl",),
    look=check,
    folded=True,
    decided_by="links: 0 links within a host via SHM",
    protocol=3,
)
