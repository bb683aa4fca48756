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
        kinds=("nccl-one-gpu",),
        title="{ranks} use the same GPU ({device}){on_hosts}: the processes do not set their device",
        advice=(
            (
                "call torch.cuda.set_device(local_rank) before the process group begins, or give each process one device",
                None,
            ),
            ("with Slurm", "srun --gpus-per-task=1 --gpu-bind=single:1"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-versions",),
        title="ranks load different versions of NCCL: {ranks} have {version} and {other}",
        advice=(
            ("use one image or environment on all hosts", "python -c 'import torch; print(torch.cuda.nccl.version())'"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-shm-full",),
        title="/dev/shm of {here} is full: NCCL cannot create its shared memory there",
        advice=(
            ("make it larger: docker run --shm-size=8g; an emptyDir of medium Memory in Kubernetes", "df -h /dev/shm"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-shm",),
        title="{here} cannot create NCCL's shared memory in /dev/shm{error_after}: mostly it is too small",
        advice=(
            ("make it larger: docker run --shm-size=8g; an emptyDir of medium Memory in Kubernetes", "df -h /dev/shm"),
            ("remove what killed jobs left there", "ls /dev/shm/nccl-*"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-shm-apart",),
        title="{here} does not find the shared memory of another process in /dev/shm: it is not shared, or was removed",
        advice=(
            ("in containers of one host, share it: docker run --ipc=host, or one container for all GPUs", None),
            ("or run without it, which is slower", "export NCCL_SHM_DISABLE=1"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-no-subnet",),
        title="{here} has no network interface in the subnet of {peer}",
        advice=(
            ("in a container, use the network of the host: docker run --network=host, hostNetwork: true", None),
            ("or choose the interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-no-interface",),
        title="NCCL finds no network interface on {here}: NCCL_SOCKET_IFNAME names none that is there",
        advice=(("list the interfaces, and name one that exists on every host, or unset the variable", "ip -br addr"),),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-no-route",),
        title="{here} has no route to {peer}: a firewall or a missing route between the two hosts",
        advice=(
            ("open the ports between the hosts (firewall, security group): NCCL takes any free one", None),
            ("or choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-refused",),
        title="{peer} refuses the connection of {here}: no process listens there, or a firewall rejects it",
        advice=(
            ("see whether the rank on {peer} ended before: its log has the cause", None),
            ("else open the ports between the hosts, or name the interface", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-no-answer",),
        title="{peer} does not answer {here} in time: a firewall drops the connection, or the host is down",
        advice=(
            ("open the ports between the hosts (firewall, security group): NCCL takes any free one", None),
            ("or choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-unreached",),
        title="{here} cannot connect to {peer}{error_after}: the network between the two hosts, or the wrong interface",
        advice=(
            ("choose an interface that reaches {peer}", "export NCCL_SOCKET_IFNAME=INTERFACE"),
            ("open the ports between the hosts (firewall, security group): NCCL takes any free one", None),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-mixed",),
        title="{here} got a connection that belongs elsewhere (wrong {what}): addresses or ports of jobs are mixed",
        advice=(
            ("give each host one address that the others reach", "export NCCL_SOCKET_IFNAME=INTERFACE"),
            ("see that no scanner and no earlier job connects to its ports", "ss -tnp"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-bind",),
        title="{here} cannot bind the address that NCCL chose: it is not one of its own",
        advice=(
            ("in a container, use the network of the host: docker run --network=host, hostNetwork: true", None),
            ("or name the interface", "export NCCL_SOCKET_IFNAME=INTERFACE"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-ib-status",),
        only=("status", ("12", "13")),
        title="RDMA of {here} gets no answer from the network card of {peer} (status {status}: retries exceeded)",
        advice=_IB,
        source=_VERBS,
    ),
    Explanation(
        kinds=("nccl-ib-status",),
        only=("status", ("4", "10")),
        title="RDMA between {here} and {peer} may not access the memory (status {status}, vendor error {vendor}): mostly "
        "GPUDirect through PCI access control (ACS, IOMMU)",
        advice=(
            (
                "try without GPUDirect RDMA, which is slower: if it works then, that is the cause",
                "export NCCL_NET_GDR_LEVEL=LOC",
            ),
            ("switch off ACS on the PCI bridges, and the IOMMU, as the user guide says", "lspci -vvv | grep ACSCtl"),
        ),
        source=_VERBS,
    ),
    Explanation(
        kinds=("nccl-ib-status",),
        only=("status", ("5",)),
        title="RDMA between {here} and {peer} was flushed (status 5): the connection had failed before",
        advice=(("the first error of all ranks' logs has the cause", "grep -n 'NCCL WARN' LOGS"), *_IB[1:]),
        source=_VERBS,
    ),
    Explanation(
        kinds=("nccl-ib-event",),
        title="the network card {card} of {here} reports a fatal error: {error}",
        advice=(
            (
                "try without GPUDirect RDMA, which is slower: if it works then, PCI access control is the cause",
                "export NCCL_NET_GDR_LEVEL=LOC",
            ),
            ("see what the driver says, and whether driver and firmware fit", "dmesg -T | grep -i mlx5; ibstat"),
        ),
        source=_VERBS,
    ),
    Explanation(
        kinds=("nccl-ib-status",),
        title="RDMA between {here} and {peer} fails with status {status} (vendor error {vendor})",
        advice=_IB[1:],
        source=_VERBS,
    ),
    Explanation(
        kinds=("nccl-ib-register",),
        title="{here} cannot register memory with its InfiniBand card: the limit of locked memory is too low",
        advice=(("raise it: docker run --ulimit memlock=-1, or limits.conf and the Slurm daemon", "ulimit -l"),),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-ib-queue",),
        title="{here} cannot connect its InfiniBand card with that of another host: {error}",
        advice=_IB[:2],
        source=_VERBS,
    ),
    Explanation(
        kinds=("nccl-nvls",),
        title="NCCL cannot set up NVLink SHARP (NVLS) on {here}{error_after}: see Fabric Manager and NVSwitch",
        advice=(
            (
                "restart Fabric Manager, and see whether it runs",
                "systemctl restart nvidia-fabricmanager; nvidia-smi -q -i 0",
            ),
            ("or run without NVLS, which is slower", "export NCCL_NVLS_ENABLE=0"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-truncated",),
        title="a message has {got} bytes, and {here} expects {want}: the ranks do not call the same collectives",
        advice=(("compare what each rank calls", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-files",),
        title="{here} has too many open files",
        advice=(("raise the limit of open files", "ulimit -n 65536"),),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-ib-peermem",),
        title="{here} cannot register GPU memory with its network card (Bad address): the module for GPUDirect RDMA "
        "does not fit",
        advice=(
            ("load it, of the driver's version", "modprobe nvidia-peermem; lsmod | grep peermem"),
            (
                "try without GPUDirect RDMA, which is slower: if it works then, that is the cause",
                "export NCCL_NET_GDR_LEVEL=LOC",
            ),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-rank-count",),
        title="processes of one job give NCCL another number of ranks ({one} and {other}) as they meet on {here}",
        advice=(
            ("start all with the same number of processes and nodes (WORLD_SIZE, --nnodes, --nproc-per-node)", None),
            ("see that no other job has the same address and port", "ss -ltnp"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-rank-twice",),
        title="two processes say that they are rank {twice} of {world}",
        advice=(
            ("give each node its own --node-rank, and each process its own RANK", "env | grep -E 'RANK|WORLD'"),
            ("see that no process of an earlier start is left", "ps aux | grep python"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-sizes",),
        title="{here} and {peer} are in one exchange with other sizes ({got} and {want} bytes): the ranks' calls differ",
        advice=(
            (
                "see that all ranks call the same collectives in the same order with the same sizes",
                "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
            ),
            ("see that all hosts have the same NCCL and settings (NCCL_PROTO, NCCL_ALGO)", "env | grep NCCL"),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-driver",),
        title="the driver of {here} does not answer NCCL ({error}): its library and its kernel module differ, "
        "mostly after an update",
        advice=(
            (
                "load the module of the library's version: restart the host",
                "nvidia-smi; cat /proc/driver/nvidia/version",
            ),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-calloc",),
        title="{ranks_or_here} could not allocate {bytes} bytes of GPU memory for NCCL: mostly the GPU is full",
        advice=(
            ("see who holds its memory: another process, or PyTorch's own cache", "nvidia-smi"),
            ("leave memory free for NCCL: a smaller batch, or torch.cuda.set_per_process_memory_fraction", None),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-closed", "nccl-broken", "nccl-proxy", "nccl-aborted"),
        title="{ranks_or_here} lost the connection{peer_after}: the communicator was aborted{call_after}",
        advice=(
            ("look at the log of the process at the other end ({peer}): it ended first, or the network broke", None),
        ),
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-ib-port",),
        title="a port of a network card of {here} reports: {error}",
        advice=(("see whether the link flaps: cable, switch port, error counters", "ibstat; perfquery"),),
        source=_VERBS,
        fatal=False,
    ),
    Explanation(
        kinds=("nccl-ofi",),
        title="NCCL's plugin for libfabric (EFA) fails on {here}: {error}",
        advice=(
            (
                "see whether the instance and the container have the devices, and all-to-all rules in the security group",
                "fi_info -p efa; ls /dev/infiniband",
            ),
            ("see whether plugin, libfabric and NCCL fit", "export FI_LOG_LEVEL=warn NCCL_DEBUG=INFO"),
        ),
        source=GUIDE,
        fatal=False,
    ),
    Explanation(
        kinds=("nccl-gave-up",),
        title="NCCL gave up on {here}: {error}",
        advice=_OWN_WORDS,
        source=GUIDE,
    ),
    Explanation(
        kinds=("nccl-warning",),
        title="NCCL warns on {here}: {error}",
        advice=_OWN_WORDS,
        source=GUIDE,
        fatal=False,
    ),
    Explanation(
        kinds=("nccl-no-verbs",),
        title="NCCL goes over TCP sockets on {here}: it finds no {library}, and uses no InfiniBand or RoCE card",
        advice=(
            (
                "where the hosts have such cards, install the library in the image",
                "apt install libibverbs1 ibverbs-providers",
            ),
            ("whether the job spans hosts is not in these lines: what crosses hosts is slow over TCP", None),
        ),
        source=GUIDE,
        fatal=False,
    ),
)


_FOLLOWS = ("nccl-proxy", "nccl-shm", "nccl-calloc", "nccl-warning")
"""What NCCL also says of an error that another line names."""


_NAMED = {"oom", "device-error"}
"""Of other topics, kinds by which NCCL names its error, too."""


def check(evidence: Evidence) -> Statement:
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
