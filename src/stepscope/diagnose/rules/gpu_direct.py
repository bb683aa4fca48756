"""Data between hosts go through host memory: NCCL uses InfiniBand or RoCE without GPUDirect RDMA.

What
----
Counts the links between hosts that NCCL's log names without `/GDRDMA`: the network card reads and writes host memory, and
the GPU copies from there. Limit: 0 links over InfiniBand or RoCE without GPUDirect.

Why
---
Each byte crosses PCIe and the host's memory again on either side.

Known problems
--------------
Where card and GPU are far from each other NCCL leaves GPUDirect off by itself, rightly; the log does not say which it is.

References
----------
NCCL user guide, NCCL_NET_GDR_LEVEL and NCCL_NET_GDR_READ; NVIDIA GPUDirect RDMA, nvidia-peermem (read 2026-11).
"""

from __future__ import annotations

from stepscope.core.words import counted, listed
from stepscope.diagnose.rule import Finding, Rule, Statement, finding
from stepscope.records.nccl import NcclCommunicator, NcclDebug
from stepscope.results.evidence import Evidence

_SHOWN = 4
_MODULE = ("see whether the module is loaded on every host", "lsmod | grep -E 'nvidia_peermem|nv_peer_mem'")
_OMNI_PATH = (
    "these cards are Omni-Path (hfi1), whose GPUDirect is in PSM2 and not in verbs: see whether its driver is built for it, "
    "and use NCCL's plugin for PSM2 or for libfabric",
    "modinfo hfi1 | grep -i gpu",
)


def check(evidence: Evidence) -> Statement:
    """Look for: NCCL uses InfiniBand or RoCE without GPUDirect RDMA."""
    findings, direct = [], 0
    for log in evidence.nccl:
        for communicator in log.communicators:
            over_ib = [link for link in communicator.links if link.transport.startswith("NET/IB")]
            without = [f"{link.source} to {link.destination}" for link in over_ib if link.gdrdma is False]
            direct += len(over_ib) - len(without)
            if without:
                findings.append(_through_host_finding(log, communicator, without))
    return findings or f"{counted(direct, 'link')} over InfiniBand or RoCE, all with GPUDirect RDMA"


def _is_off(name: str, value: str) -> bool:
    """Whether a setting keeps GPUDirect RDMA off over any distance."""
    return name == "NCCL_NET_GDR_LEVEL" and value.upper() in ("LOC", "0")


def _through_host_finding(log: NcclDebug, communicator: NcclCommunicator, links: list[str]) -> Finding:
    """Return the finding of links that go through the host's memory, with the setting that may be why."""
    cards = list(dict.fromkeys(nic for host in log.hosts for nic in host.nics))
    switched = [f"{name}={value}" for name, value in log.settings if name.startswith("NCCL_NET_GDR")]
    return finding(
        f"GPUDirect RDMA is not used on {counted(len(links), 'link')} over InfiniBand or RoCE: data go through host memory",
        f"via NET/IB without GDRDMA: rank {listed(links, at_most=_SHOWN)}",
        bool(cards) and f"network cards: {', '.join(cards[:_SHOWN])}",
        bool(switched) and f"set in the environment: {', '.join(switched)}",
        confidence="certain: NCCL's own log; the gain of GPUDirect is not measured",
        advice=[
            *(
                ("remove the setting, and measure again", f"unset {name}")
                for name, value in log.settings
                if _is_off(name, value)
            ),
            _OMNI_PATH if any(card.startswith("hfi1") for card in cards) else _MODULE,
            ("see how far the network card is from its GPU", "nvidia-smi topo -m"),
            ("where they are near, let NCCL use it over that distance", "export NCCL_NET_GDR_LEVEL=PHB"),
        ],
        of=None if communicator.nranks is None else f"communicator of {communicator.nranks} ranks",
    )


RULE = Rule(
    symptom="NCCL uses InfiniBand or RoCE without GPUDirect RDMA",
    needs=("nccl",),
    look=check,
    decided_by="links: 0 links over InfiniBand or RoCE without GPUDirect",
    protocol=3,
)
