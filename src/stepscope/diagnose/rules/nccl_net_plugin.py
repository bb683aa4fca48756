"""NCCL uses TCP sockets between hosts although a faster network exists: a plugin or driver is missing.

What
----
Fires if NCCL's log names ``NET/Socket`` as the transport between hosts. Without a log, it fires as likely if a measured
all_reduce or similar collective over several hosts stays below 10 GB/s busbw at 64 MiB and more.

Why
---
Without its plugin (libnccl-net.so: aws-ofi-nccl for EFA and Slingshot, the HPC-X plugin, the cloud's own) or without
verbs, NCCL silently falls back to TCP. The job runs, but 5 to 20 times slower between hosts.

Known problems
--------------
If Ethernet of 10 or 25 Gbit/s is the only network, sockets are right: NCCL's device list or `stepscope doctor` then
shows no RDMA device, and the finding says so. InfiniBand and RoCE need no plugin ("No plugin found" alone is harmless).
Without a log, other slow links can look like sockets.

References
----------
CSCS documentation, NCCL (CC0): all_reduce of 128 MiB on 2 x 4 GH200 has 122.6 GB/s with the Slingshot plugin and 5.4 GB/s
without; NVIDIA nccl issue 209: 60% of a 32 Gbit/s network over TCP; NCCL user guide, NCCL_NET and NCCL_NET_PLUGIN.
"""

from __future__ import annotations

import shlex

from stepscope.core.units import format_bandwidth, format_percent, format_size
from stepscope.core.words import counted
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.diagnose.trace_facts import GRAVE, exposed_transfer
from stepscope.records.comm import CommRow
from stepscope.records.finding import Advice, Finding
from stepscope.records.nccl import NcclCommunicator, NcclDebug
from stepscope.results.comm_facts import by_sweep, size_of
from stepscope.results.evidence import Evidence

SOCKET_RATE = Limit(
    value=10e9,
    unit="bytes/s of busbw across hosts",
    source="NCCL over TCP reaches 0.1 to 6 GB/s (CSCS documentation; NVIDIA nccl issue 209, nccl-tests issue 188), one "
    "100 Gbit/s RDMA card 11 GB/s and more",
)
LARGE = Limit(
    value=64 << 20,
    unit="bytes",
    source="for smaller messages, start-up over several hosts costs as much as the transfer",
)
_RATED = frozenset(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
_OFF = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}


def check(evidence: Evidence) -> Statement:
    several = [(log, c) for log in evidence.nccl for c in log.communicators if c.hosts > 1]
    on_sockets = [(log, c) for log, c in several if _sockets(c)]
    if on_sockets:
        return tuple(_from_log(evidence, log, c) for log, c in _one_each(on_sockets))
    if several:
        networks = sorted({n for _, c in several for n in (c.networks or _transports(c))})
        return f"{counted(several[0][1].hosts, 'host')} over {', '.join(networks) or '?'}"
    rated = [(name, _largest(rows)) for name, rows in by_sweep(evidence.comm) if _judged(rows)]
    if rated:
        return _from_rates(rated)
    if evidence.nccl:
        return "NCCL's log covers one host: no network is used"
    return RULE.blind


def _transports(communicator: NcclCommunicator) -> set[str]:
    return {link.transport for link in communicator.links if link.transport.startswith("NET/")}


def _sockets(communicator: NcclCommunicator) -> bool:
    return "NET/Socket" in _transports(communicator) or (
        not _transports(communicator) and communicator.networks == ("Socket",)
    )


def _one_each(communicators: list[tuple[NcclDebug, NcclCommunicator]]) -> list[tuple[NcclDebug, NcclCommunicator]]:
    """The largest communicator of each log: the others go the same way."""
    largest: dict[int, tuple[NcclDebug, NcclCommunicator]] = {}
    for log, communicator in communicators:
        best = largest.get(id(log))
        if best is None or (communicator.nranks or 0) > (best[1].nranks or 0):
            largest[id(log)] = (log, communicator)
    return list(largest.values())


def _rdma(evidence: Evidence, log: NcclDebug) -> tuple[str, ...]:
    """RDMA devices that some source knows of."""
    devices = [nic for host in log.hosts for nic in host.nics if nic.endswith(("/IB", "/RoCE"))]
    if evidence.environment is not None:
        devices += [nic.name for nic in evidence.environment.nics if nic.rdma and nic.up]
    if evidence.topology is not None:
        devices += [nic.label or nic.name for nic in evidence.topology.nics]
    return tuple(dict.fromkeys(devices))


def _from_log(evidence: Evidence, log: NcclDebug, communicator: NcclCommunicator) -> Finding:
    rdma = _rdma(evidence, log)
    plain = not rdma and _only_ethernet(evidence, communicator)
    links = sum(link.transport == "NET/Socket" for link in communicator.links)
    switched = [f"{name}={value}" for name, value in log.settings if _OFF.get(name) == value]
    sentences = [f"{counted(links, 'link')} via NET/Socket" if links else "NCCL says: Using network Socket"]
    sentences += [f"set in the environment: {', '.join(switched)}"] if switched else []
    sentences += [f"NCCL on the plugin: {text}" for text in log.no_plugin[:2]]
    sentences.append(
        f"RDMA devices there: {', '.join(rdma[:4])}"
        if rdma
        else f"the network interfaces of {plain} are recorded, and none of them is RDMA: sockets are right there"
        if plain
        else "no RDMA device is recorded: run `stepscope doctor` on a node of the job"
    )
    hosts = counted(communicator.hosts, "host")
    stake = _stake(evidence, communicator)
    if stake is not None:
        sentences.append(f"{format_percent(stake)} of the traced step is exposed transfer")
    grave = not plain and (rdma or switched or (stake or 0.0) >= GRAVE)
    return Finding(
        severity="problem" if grave else "info" if plain else "warning",
        stake_fraction=stake,
        title=f"NCCL goes over TCP sockets between {hosts}" + (" although RDMA devices are present" if rdma else ""),
        evidence=tuple(sentences),
        confidence="certain: NCCL's own log"
        + ("" if rdma or plain else "; whether a faster network exists is unknown"),
        advice=_ETHERNET if plain else _advice(switched, rdma),
        subject=f"communicator of {communicator.nranks} ranks" if communicator.nranks else None,
    )


_ETHERNET = (
    advise(
        "send less over it: accumulate gradients (no_sync), compress them, keep tensor and sharded groups in a host"
    ),
    advise("more sockets may fill it", "export NCCL_NSOCKS_PERTHREAD=4 NCCL_SOCKET_NTHREADS=2"),
)


def _only_ethernet(evidence: Evidence, communicator: NcclCommunicator) -> str | None:
    """The host of the job whose interfaces are recorded without one for RDMA; None: unknown."""
    machine = evidence.environment
    if machine is None or not machine.nics or any(nic.rdma for nic in machine.nics):
        return None
    hosts = {rank.host for rank in communicator.ranks}
    return machine.host if machine.host in hosts else None


def _stake(evidence: Evidence, communicator: NcclCommunicator) -> float | None:
    """Return what a faster network could return at most, if the only traced job has this communicator's ranks; else None."""
    if len(evidence.traces) != 1 or len(evidence.nccl) != 1:
        return None
    summary = evidence.traces[0].summary
    return exposed_transfer(summary) if len(summary.ranks) == communicator.nranks else None


def _advice(switched: list[str], rdma: tuple[str, ...]) -> tuple[Advice, ...]:
    unset = "unset " + " ".join(name.partition("=")[0] for name in switched)
    first = (advise("remove the setting", unset),) if switched else ()
    verbs = any("mlx" in name or name.endswith(("/IB", "/RoCE")) for name in rdma)
    network = "IB" if verbs else "AWS Libfabric" if any("efa" in name or "cxi" in name for name in rdma) else None
    return (
        *first,
        advise("check that the job can access the verbs devices: in a container, /dev/infiniband and libibverbs")
        if verbs
        else advise(
            "if the hosts have EFA, Slingshot or a cloud's own network, load its plugin (aws-ofi-nccl or the cloud's) "
            "and add its folder to LD_LIBRARY_PATH; in containers enable the hook that mounts it"
        ),
        advise(
            "name the network that NCCL must use, so that it fails instead of falling back",
            None if network is None else f"export NCCL_NET={shlex.quote(network)}",
        ),
        advise(
            "check the network that NCCL reports",
            "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV    # look for: Using network",
        ),
    )


def _judged(rows: list[CommRow]) -> bool:
    row = rows[-1]
    return (
        row.backend == "nccl"
        and (row.hosts or 1) > 1
        and row.op in _RATED
        and size_of(row) >= LARGE.value
        and row.busbw_bytes_per_s is not None
    )


def _largest(rows: list[CommRow]) -> CommRow:
    """The fastest of the large sizes."""
    return max((r for r in rows if size_of(r) >= LARGE.value), key=lambda r: r.busbw_bytes_per_s or 0.0)


def _from_rates(rated: list[tuple[str, CommRow]]) -> Statement:
    slow = [(name, row) for name, row in rated if (row.busbw_bytes_per_s or 0.0) < SOCKET_RATE.value]
    if not slow:
        name, row = min(rated, key=lambda pair: pair[1].busbw_bytes_per_s or 0.0)
        return (
            f"{name}: busbw {format_bandwidth(row.busbw_bytes_per_s or 0.0)} across hosts, sockets stay below "
            f"{format_bandwidth(SOCKET_RATE.value)}"
        )
    name, row = min(slow, key=lambda pair: pair[1].busbw_bytes_per_s or 0.0)
    rate = format_bandwidth(row.busbw_bytes_per_s or 0.0)
    more = [f"{other}: {format_bandwidth(r.busbw_bytes_per_s or 0.0)}" for other, r in slow if other != name]
    return Finding(
        severity="warning",
        title=f"{name} has {rate} across hosts: as slow as TCP sockets",
        evidence=(
            f"busbw {rate} at {format_size(size_of(row))}; RDMA networks of GPU machines reach "
            f"{format_bandwidth(SOCKET_RATE.value)} and more",
            *more[:3],
        ),
        confidence="likely: NCCL's log would show which network it uses",
        advice=_advice([], ()),
        subject=name,
    )


RULE = Rule(
    symptom="NCCL uses TCP sockets between hosts",
    sees=("nccl", "comm"),
    unseen="no NCCL log was given, and no large collective over several hosts was measured",
    unseen_command="export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH,TUNING",
    look=check,
    looks_at="nccl, or comm over several hosts",
    protocol=3,
    thresholds={"rate": SOCKET_RATE, "size": LARGE},
)
