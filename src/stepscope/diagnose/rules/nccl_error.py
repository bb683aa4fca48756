"""NCCL or RCCL says why it gave up: no route, no shared memory, a card that does not answer, one GPU twice.

What
----
The lines of a log in which NCCL names an error, by a table of messages: what the message means, what to check, what to set.
Lines that only repeat an error up the stack (``proxy.cc:698 -> 6``) and messages that are harmless in healthy jobs are none.

Why
---
The last lines of a job that failed are mostly those of ranks that noticed; what NCCL printed first is the cause.

Known problems
--------------
A message is understood by its text: one that a newer NCCL words in another way is not in the table.

References
----------
NVIDIA/nccl, src/misc and src/transport (2.7 to 2.28): the texts; NCCL user guide, Troubleshooting (read 2026-11).
"""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.explanations import Explanation, findings_of, without_set
from stepscope.diagnose.rule import Rule, Statement
from stepscope.results.evidence import Evidence

GUIDE = "NCCL user guide, Troubleshooting, 2026-11"

_VERBS = "libibverbs, InfiniBand verbs manual, ibv_wc_status"
_IB = (
    ("on RoCE, choose the GID of the right version and subnet", "export NCCL_IB_GID_INDEX=3; show_gids"),
    (
        "test the link between the two cards with ib_write_bw; see whether it flaps, or rails are not connected",
        "ibstat",
    ),
    ("where the link recovers by itself, wait longer", "export NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=13"),
)

_OWN_WORDS = (
    ("if the job failed, these are NCCL's own words for it; it says more with", "export NCCL_DEBUG=INFO"),
    ("compare the other ranks' logs: the earliest error of all is the cause", "grep -n 'NCCL WARN' LOGS"),
)

EXPLANATIONS = (
    Explanation(
        GUIDE,
        "nccl-one-gpu",
        "{ranks} use the same GPU ({device}){on_hosts}: the processes do not set their device",
        "call torch.cuda.set_device(local_rank) before the process group begins, or give each process one device",
        ("with Slurm", "srun --gpus-per-task=1 --gpu-bind=single:1"),
    ),
    Explanation(
        GUIDE,
        "nccl-versions",
        "ranks load different versions of NCCL: {ranks} have {version} and {other}",
        ("use one image or environment on all hosts", "python -c 'import torch; print(torch.cuda.nccl.version())'"),
    ),
    Explanation(
        GUIDE,
        "nccl-shm-full",
        "/dev/shm of {here} is full: NCCL cannot create its shared memory there",
        ("make it larger: docker run --shm-size=8g; an emptyDir of medium Memory in Kubernetes", "df -h /dev/shm"),
    ),
    Explanation(
        GUIDE,
        "nccl-shm",
        "{here} cannot create NCCL's shared memory in /dev/shm{error_after}: mostly it is too small",
        ("make it larger: docker run --shm-size=8g; an emptyDir of medium Memory in Kubernetes", "df -h /dev/shm"),
        ("remove what killed jobs left there", "ls /dev/shm/nccl-*"),
    ),
    Explanation(
        GUIDE,
        "nccl-shm-apart",
        "{here} does not find the shared memory of another process in /dev/shm: it is not shared, or was removed",
        "in containers of one host, share it: docker run --ipc=host, or one container for all GPUs",
        ("or run without it, which is slower", "export NCCL_SHM_DISABLE=1"),
    ),
    Explanation(
        GUIDE,
        "nccl-no-subnet",
        "{here} has no network interface in the subnet of {peer}",
        "in a container, use the network of the host: docker run --network=host, hostNetwork: true",
        ("or choose the interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
    ),
    Explanation(
        GUIDE,
        "nccl-no-interface",
        "NCCL finds no network interface on {here}: NCCL_SOCKET_IFNAME names none that is there",
        ("list the interfaces, and name one that exists on every host, or unset the variable", "ip -br addr"),
    ),
    Explanation(
        GUIDE,
        "nccl-no-route",
        "{here} has no route to {peer}: a firewall or a missing route between the two hosts",
        "open the ports between the hosts (firewall, security group): NCCL takes any free one",
        ("or choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
    ),
    Explanation(
        GUIDE,
        "nccl-refused",
        "{peer} refuses the connection of {here}: no process listens there, or a firewall rejects it",
        "see whether the rank on {peer} ended before: its log has the cause",
        ("else open the ports between the hosts, or name the interface", "export NCCL_SOCKET_IFNAME=INTERFACE"),
    ),
    Explanation(
        GUIDE,
        "nccl-no-answer",
        "{peer} does not answer {here} in time: a firewall drops the connection, or the host is down",
        "open the ports between the hosts (firewall, security group): NCCL takes any free one",
        ("or choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
    ),
    Explanation(
        GUIDE,
        "nccl-unreached",
        "{here} cannot connect to {peer}{error_after}: the network between the two hosts, or the wrong interface",
        ("choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        "open the ports between the hosts (firewall, security group): NCCL takes any free one",
    ),
    Explanation(
        GUIDE,
        "nccl-mixed",
        "{here} got a connection that belongs elsewhere (wrong {what}): addresses or ports of jobs are mixed",
        ("give each host one address that the others reach", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ("see that no scanner and no earlier job connects to its ports", "ss -tnp"),
    ),
    Explanation(
        GUIDE,
        "nccl-bind",
        "{here} cannot bind the address that NCCL chose: it is not one of its own",
        "in a container, use the network of the host: docker run --network=host, hostNetwork: true",
        ("or name the interface", "export NCCL_SOCKET_IFNAME=INTERFACE"),
    ),
    Explanation(
        _VERBS,
        "nccl-ib-status",
        "RDMA of {here} gets no answer from the network card of {peer} (status {status}: retries exceeded)",
        *_IB,
        status={"12", "13"},
    ),
    Explanation(
        _VERBS,
        "nccl-ib-status",
        "RDMA between {here} and {peer} may not access the memory (status {status}, vendor error {vendor}): mostly "
        "GPUDirect through PCI access control (ACS, IOMMU)",
        (
            "try without GPUDirect RDMA, which is slower: if it works then, that is the cause",
            "export NCCL_NET_GDR_LEVEL=LOC",
        ),
        ("switch off ACS on the PCI bridges, and the IOMMU, as the user guide says", "lspci -vvv | grep ACSCtl"),
        status={"4", "10"},
    ),
    Explanation(
        _VERBS,
        "nccl-ib-status",
        "RDMA between {here} and {peer} was flushed (status 5): the connection had failed before",
        ("the first error of all ranks' logs has the cause", "grep -n 'NCCL WARN' LOGS"),
        *_IB[1:],
        status={"5"},
    ),
    Explanation(
        _VERBS,
        "nccl-ib-event",
        "the network card {card} of {here} reports a fatal error: {error}",
        (
            "try without GPUDirect RDMA, which is slower: if it works then, PCI access control is the cause",
            "export NCCL_NET_GDR_LEVEL=LOC",
        ),
        ("see what the driver says, and whether driver and firmware fit", "dmesg -T | grep -i mlx5; ibstat"),
    ),
    Explanation(
        _VERBS,
        "nccl-ib-status",
        "RDMA between {here} and {peer} fails with status {status} (vendor error {vendor})",
        *_IB[1:],
    ),
    Explanation(
        GUIDE,
        "nccl-ib-register",
        "{here} cannot register memory with its InfiniBand card: the limit of locked memory is too low",
        ("raise it: docker run --ulimit memlock=-1, or limits.conf and the Slurm daemon", "ulimit -l"),
    ),
    Explanation(
        _VERBS,
        "nccl-ib-queue",
        "{here} cannot connect its InfiniBand card with that of another host: {error}",
        *_IB[:2],
    ),
    Explanation(
        GUIDE,
        "nccl-nvls",
        "NCCL cannot set up NVLink SHARP (NVLS) on {here}{error_after}: see Fabric Manager and NVSwitch",
        (
            "restart Fabric Manager, and see whether it runs",
            "systemctl restart nvidia-fabricmanager; nvidia-smi -q -i 0",
        ),
        ("or run without NVLS, which is slower", "export NCCL_NVLS_ENABLE=0"),
    ),
    Explanation(
        GUIDE,
        "nccl-truncated",
        "a message has {got} bytes, and {here} expects {want}: the ranks do not call the same collectives",
        ("compare what each rank calls", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ),
    Explanation(
        GUIDE, "nccl-files", "{here} has too many open files", ("raise the limit of open files", "ulimit -n 65536")
    ),
    Explanation(
        GUIDE,
        "nccl-ib-peermem",
        "{here} cannot register GPU memory with its network card (Bad address): the module for GPUDirect RDMA "
        "does not fit",
        ("load it, of the driver's version", "modprobe nvidia-peermem; lsmod | grep peermem"),
        (
            "try without GPUDirect RDMA, which is slower: if it works then, that is the cause",
            "export NCCL_NET_GDR_LEVEL=LOC",
        ),
    ),
    Explanation(
        GUIDE,
        "nccl-rank-count",
        "processes of one job give NCCL another number of ranks ({one} and {other}) as they meet on {here}",
        "start all with the same number of processes and nodes (WORLD_SIZE, --nnodes, --nproc-per-node)",
        ("see that no other job has the same address and port", "ss -ltnp"),
    ),
    Explanation(
        GUIDE,
        "nccl-rank-twice",
        "two processes say that they are rank {twice} of {world}",
        ("give each node its own --node-rank, and each process its own RANK", "env | grep -E 'RANK|WORLD'"),
        ("see that no process of an earlier start is left", "ps aux | grep python"),
    ),
    Explanation(
        GUIDE,
        "nccl-sizes",
        "{here} and {peer} are in one exchange with other sizes ({got} and {want} bytes): the ranks' calls differ",
        (
            "see that all ranks call the same collectives in the same order with the same sizes",
            "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
        ("see that all hosts have the same NCCL and settings (NCCL_PROTO, NCCL_ALGO)", "env | grep NCCL"),
    ),
    Explanation(
        GUIDE,
        "nccl-driver",
        "the driver of {here} does not answer NCCL ({error}): its library and its kernel module differ, "
        "mostly after an update",
        ("load the module of the library's version: restart the host", "nvidia-smi; cat /proc/driver/nvidia/version"),
    ),
    Explanation(
        GUIDE,
        "nccl-calloc",
        "{ranks_or_here} could not allocate {bytes} bytes of GPU memory for NCCL: mostly the GPU is full",
        ("see who holds its memory: another process, or PyTorch's own cache", "nvidia-smi"),
        "leave memory free for NCCL: a smaller batch, or torch.cuda.set_per_process_memory_fraction",
    ),
    Explanation(
        GUIDE,
        "nccl-closed nccl-broken nccl-proxy nccl-aborted",
        "{ranks_or_here} lost the connection{peer_after}: the communicator was aborted{call_after}",
        "look at the log of the process at the other end ({peer}): it ended first, or the network broke",
    ),
    Explanation(
        _VERBS,
        "nccl-ib-port",
        "a port of a network card of {here} reports: {error}",
        ("see whether the link flaps: cable, switch port, error counters", "ibstat; perfquery"),
        fatal=False,
    ),
    Explanation(
        GUIDE,
        "nccl-ofi",
        "NCCL's plugin for libfabric (EFA) fails on {here}: {error}",
        (
            "see whether the instance and the container have the devices, and all-to-all rules in the security group",
            "fi_info -p efa; ls /dev/infiniband",
        ),
        ("see whether plugin, libfabric and NCCL fit", "export FI_LOG_LEVEL=warn NCCL_DEBUG=INFO"),
        fatal=False,
    ),
    Explanation(GUIDE, "nccl-gave-up", "NCCL gave up on {here}: {error}", *_OWN_WORDS),
    Explanation(GUIDE, "nccl-warning", "NCCL warns on {here}: {error}", *_OWN_WORDS, fatal=False),
    Explanation(
        GUIDE,
        "nccl-no-verbs",
        "NCCL goes over TCP sockets on {here}: it finds no {library}, and uses no InfiniBand or RoCE card",
        (
            "where the hosts have such cards, install the library in the image",
            "apt install libibverbs1 ibverbs-providers",
        ),
        "whether the job spans hosts is not in these lines: what crosses hosts is slow over TCP",
        fatal=False,
    ),
)


_FOLLOWS = ("nccl-proxy", "nccl-shm", "nccl-calloc", "nccl-warning")
"""What NCCL also says of an error that another line names."""


_NAMED = {"oom", "device-error"}
"""Of other topics, kinds by which NCCL names its error, too."""


def check(evidence: Evidence) -> Statement:
    """Look for: NCCL names an error before the job ends."""
    kinds = {sign.kind for sign in evidence.signs}
    named = {kind for e in EXPLANATIONS if e.fatal for kind in e.kinds if kind in kinds} - {*_FOLLOWS, "nccl-aborted"}
    signs = [sign for sign in evidence.signs if not (named or kinds & _NAMED) or sign.kind not in _FOLLOWS]
    if any(message.kind == "returned" for log in evidence.nccl for message in log.messages) or "exception" in kinds:
        signs = [replace(s, kind="nccl-gave-up") if s.kind == "nccl-warning" else s for s in signs]
    return (
        without_set(findings_of(signs, EXPLANATIONS), evidence.signs)
        or f"{len(evidence.signs)} lines on the job's end: none is an error of NCCL"
    )


RULE = Rule(
    symptom="NCCL names an error before the job ends",
    needs=("signs",),
    look=check,
    decided_by="a message of the table",
    protocol=1,
)
