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
from stepscope.diagnose.rule import GRAVE, Advices, Finding, Limit, Rule, Statement, finding
from stepscope.diagnose.trace_facts import exposed_transfer
from stepscope.records.comm import CommRow
from stepscope.records.nccl import NcclCommunicator, NcclDebug
from stepscope.results.comm_facts import by_sweep, size_of
from stepscope.results.evidence import Evidence

SOCKET_RATE = Limit(
    10e9,
    unit="bytes/s of busbw across hosts",
    source="NCCL over TCP reaches 0.1 to 6 GB/s (CSCS documentation; NVIDIA nccl issue 209, nccl-tests issue 188), one "
    "100 Gbit/s RDMA card 11 GB/s and more",
)
LARGE = Limit(
    64 << 20, unit="bytes", source="for smaller messages, start-up over several hosts costs as much as the transfer"
)
_RATED = frozenset(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
_OFF = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}


def check(evidence: Evidence) -> Statement:
    """Look for: NCCL uses TCP sockets between hosts."""
    several = [(log, c) for log in evidence.nccl for c in log.communicators if c.hosts > 1]
    largest: dict[int, tuple[NcclDebug, NcclCommunicator]] = {}  # of each log: the others go the same way
    for log, c in several:
        sockets = "NET/Socket" in _net_transports(c) or (not _net_transports(c) and c.networks == ("Socket",))
        if sockets and (id(log) not in largest or (c.nranks or 0) > (largest[id(log)][1].nranks or 0)):
            largest[id(log)] = log, c
    for log in (
        evidence.nccl if not several else ()
    ):  # lines without an initialisation: a network link is one between hosts
        unstated = [c for c in log.communicators if not c.ranks and "NET/Socket" in _net_transports(c)]
        if unstated and not any(name == "NCCL_SHM_DISABLE" for name, _ in log.settings):
            largest[id(log)] = log, unstated[0]
    if largest:
        return [_socket_log_finding(evidence, log, c) for log, c in largest.values()]
    if several:
        networks = sorted({n for _, c in several for n in (c.networks or _net_transports(c))})
        return f"{counted(several[0][1].hosts, 'host')} over {', '.join(networks) or '?'}"
    # Of each sweep, the fastest of the large sizes.
    rated = [
        (name, max((r for r in rows if size_of(r) >= LARGE), key=_busbw_bytes_per_s))
        for name, rows in by_sweep(evidence.comm)
        if _is_judged(rows[-1])
    ]
    if rated:
        return _socket_rate_statement(rated, sorted({name for log in evidence.nccl for name in log.networks}))
    return "NCCL's log covers one host: no network is used" if evidence.nccl else RULE.blind


def _busbw_bytes_per_s(row: CommRow) -> float:
    return row.busbw_bytes_per_s or 0.0


def _net_transports(communicator: NcclCommunicator) -> set[str]:
    return {link.transport for link in communicator.links if link.transport.startswith("NET/")}


def _rdma_devices(evidence: Evidence, log: NcclDebug) -> tuple[str, ...]:
    """RDMA devices that some source knows of."""
    devices = [nic for host in log.hosts for nic in host.nics if nic.endswith(("/IB", "/RoCE"))]
    if evidence.environment is not None:
        devices += [nic.name for nic in evidence.environment.nics if nic.rdma and nic.up]
    if evidence.topology is not None:
        devices += [nic.label or nic.name for nic in evidence.topology.nics]
    return tuple(dict.fromkeys(devices))


def _socket_log_finding(evidence: Evidence, log: NcclDebug, communicator: NcclCommunicator) -> Finding:
    """Return the finding of a communicator that NCCL's log shows on sockets."""
    rdma = _rdma_devices(evidence, log)
    plain = None if rdma else _only_ethernet(evidence, communicator)
    links = sum(link.transport == "NET/Socket" for link in communicator.links)
    switched = [name for name, value in log.settings if _OFF.get(name) == value]
    stake = None
    hosts = communicator.hosts or sum(host.host != "?" for host in log.hosts)
    if len(evidence.traces) == len(evidence.nccl) == 1:  # then the traced job may be the one of the log
        summary = evidence.traces[0].summary
        stake = exposed_transfer(summary) if len(summary.ranks) == communicator.nranks else None
    grave = not plain and (rdma or switched or (stake or 0.0) >= GRAVE)
    return finding(
        f"NCCL goes over TCP sockets between {counted(hosts, 'host') if hosts > 1 else 'hosts'}"
        + (" although RDMA devices are present" if rdma else ""),
        f"{counted(links, 'link')} via NET/Socket" if links else "NCCL says: Using network Socket",
        bool(switched) and f"set in the environment: {', '.join(f'{name}={_OFF[name]}' for name in switched)}",
        [f"NCCL on the plugin: {text}" for text in log.no_plugin[:2]],
        f"RDMA devices there: {', '.join(rdma[:4])}"
        if rdma
        else f"the network interfaces of {plain} are recorded, and none of them is RDMA: sockets are right there"
        if plain
        else "no RDMA device is recorded: run `stepscope doctor` on a node of the job",
        stake is not None and f"{format_percent(stake)} of the traced step is exposed transfer",
        severity="problem" if grave else "info" if plain else "warning",
        stake=stake,
        confidence="certain: NCCL's own log"
        + ("" if rdma or plain else "; whether a faster network exists is unknown"),
        advice=[
            (
                "send less over it: accumulate gradients (no_sync), compress them, keep tensor and sharded groups in a "
                "host"
            ),
            ("more sockets may fill it", "export NCCL_NSOCKS_PERTHREAD=4 NCCL_SOCKET_NTHREADS=2"),
        ]
        if plain
        else _net_plugin_advice(switched, rdma),
        of=f"communicator of {communicator.nranks} ranks" if communicator.nranks else None,
    )


def _only_ethernet(evidence: Evidence, communicator: NcclCommunicator) -> str | None:
    """The host of the job whose interfaces are recorded without one for RDMA; None: unknown."""
    machine = evidence.environment
    if machine is None or not machine.nics or any(nic.rdma for nic in machine.nics):
        return None
    hosts = {rank.host for rank in communicator.ranks}
    return machine.host if machine.host in hosts else None


def _net_plugin_advice(switched: list[str], rdma: tuple[str, ...]) -> list[Advices]:
    """Return what makes NCCL take RDMA: no setting against it, the plugin, the devices in the container."""
    verbs = any("mlx" in name or name.endswith(("/IB", "/RoCE")) for name in rdma)
    network = "IB" if verbs else "AWS Libfabric" if any("efa" in name or "cxi" in name for name in rdma) else None
    return [
        bool(switched) and ("remove the setting", f"unset {' '.join(switched)}"),
        "check that the job can access the verbs devices: in a container, /dev/infiniband and libibverbs"
        if verbs
        else "if the hosts have EFA, Slingshot or a cloud's own network, load its plugin (aws-ofi-nccl or the cloud's) "
        "and add its folder to LD_LIBRARY_PATH; in containers enable the hook that mounts it",
        (
            "name the network that NCCL must use, so that it fails instead of falling back",
            network and f"export NCCL_NET={shlex.quote(network)}",
        ),
        (
            "check the network that NCCL reports",
            "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV    # look for: Using network",
        ),
    ]


def _is_judged(row: CommRow) -> bool:
    """Whether a row is one of large messages between hosts by NCCL."""
    return (
        row.backend == "nccl"
        and (row.hosts or 1) > 1
        and row.op in _RATED
        and size_of(row) >= LARGE
        and row.busbw_bytes_per_s is not None
    )


def _socket_rate_statement(rated: list[tuple[str, CommRow]], networks: list[str]) -> Statement:
    """Judge by rates: whether sweeps between hosts stay below what sockets reach."""
    name, row = min(rated, key=lambda pair: _busbw_bytes_per_s(pair[1]))
    rate, limit = format_bandwidth(_busbw_bytes_per_s(row)), format_bandwidth(SOCKET_RATE)
    if _busbw_bytes_per_s(row) >= SOCKET_RATE:
        return f"{name}: busbw {rate} across hosts, sockets stay below {limit}"
    slow = [(other, r) for other, r in rated if other != name and _busbw_bytes_per_s(r) < SOCKET_RATE]
    fast = [network for network in networks if network != "Socket"]
    if fast and networks == fast:
        return finding(
            f"{name} has {rate} across hosts over {', '.join(fast)}, as NCCL's log says: slow for RDMA",
            f"busbw {rate} at {format_size(size_of(row))}; RDMA networks of GPU machines reach {limit} and more",
            confidence="measured; why it is slow is not in the file",
            advice=[
                (
                    "see whether GPUDirect RDMA is on (`via NET/IB/0/GDRDMA`): in a virtual machine, or with a card far "
                    "from its GPU, data go through the processor",
                    "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH; nvidia-smi topo -m",
                ),
                ("measure the link between the two cards without NCCL", "ib_write_bw"),
            ],
            of=name,
        )
    return finding(
        f"{name} has {rate} across hosts: as slow as TCP sockets",
        f"busbw {rate} at {format_size(size_of(row))}; RDMA networks of GPU machines reach {limit} and more",
        [f"{other}: {format_bandwidth(_busbw_bytes_per_s(r))}" for other, r in slow[:3]],
        confidence="likely: NCCL's log would show which network it uses",
        advice=_net_plugin_advice([], ()),
        of=name,
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
