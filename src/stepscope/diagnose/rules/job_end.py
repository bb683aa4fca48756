"""How a job ended, from its text: who failed first, of what, and where; who only followed.

What
----
Tracebacks with the prefixes of any launcher, the tables of torchrun, lines of DeepSpeed, srun, mpirun and the kernel,
requests for device memory that failed, data loaders whose workers died, ranks that did not find each other, parameters
without a gradient. The judge is that of recorded jobs: out of memory wins, of the rest the earliest failed first,
ranks that lost a peer or were stopped are victims. A failed request is read by its numbers: fragments, others on the
device, or full.

Why
---
The last lines of a job that failed are mostly those of ranks that noticed; the first failure is the cause.

Known problems
--------------
A process without a line in the text is unknown, not innocent: the cause may be in another file. Texts seldom say when; the
order of lines decides then. Exit codes of a spawned process name its local rank.

References
----------
pytorch/pytorch, torch/distributed/elastic/multiprocessing/errors, c10/cuda/CUDACachingAllocator.cpp (1.4 to 2.9);
SLURM and Open MPI manuals; PyTorch documentation, CUDA semantics, Memory management (read 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from textwrap import shorten

from stepscope.core.units import format_bytes_binary, format_percent
from stepscope.core.words import in_words, plural
from stepscope.diagnose.explanations import Explanation, findings_of, ranks_text, without_set
from stepscope.diagnose.rule import Advices, Finding, Limit, Lines, Rule, Statement, finding
from stepscope.records.imported import Sign
from stepscope.results.ends.evidence import SIGNALS, class_name
from stepscope.results.ends.memory import LEAST_SHARE, FailedRequest, failed_request
from stepscope.results.ends.text import TextEnd, TextFate, text_end, with_ranks
from stepscope.results.evidence import Evidence

_MESSAGE = 200
_MOST_OTHERS = 4
_NAMED = 8

_TORCH = "PyTorch documentation, 2026-11"
_XID = "NVIDIA XID errors, 2026-11"

EXPLANATIONS = (
    Explanation(
        _TORCH,
        "loader-killed",
        "{ranks_or_here} ended: a bus error killed a worker of its DataLoader: shared memory (/dev/shm) is full",
        (
            "make shared memory larger: docker run --shm-size=16g or --ipc=host; an emptyDir of medium Memory in "
            "Kubernetes",
            "df -h /dev/shm",
        ),
        "or use fewer workers, or smaller batches in flight (num_workers, prefetch_factor)",
        signal={"Bus error", "bus error"},
    ),
    Explanation(
        _TORCH,
        "loader-killed",
        "{ranks_or_here} ended: a worker of its DataLoader was killed (SIGKILL): mostly for want of host memory",
        ("see whether the kernel's out-of-memory killer ended it", "dmesg -T | grep -i -E 'killed process|oom'"),
        "use fewer workers, and give the job more host memory (cgroup, --mem)",
        signal={"Killed"},
    ),
    Explanation(
        _TORCH,
        "loader-killed",
        "{ranks_or_here} ended: a worker of its DataLoader died",
        "its own error is above, or run with num_workers=0 to see it",
        ("see whether memory of the host or /dev/shm ran out", "dmesg -T | tail; df -h /dev/shm"),
    ),
    Explanation(
        _TORCH,
        "no-gradient",
        "{ranks}: {names} got no gradient: they took no part in the loss",
        "use them in every forward pass, or freeze them (requires_grad=False) before DDP wraps the model",
        ("or let DDP look for unused parameters in each step, which costs time", "find_unused_parameters=True"),
    ),
    Explanation(
        _TORCH,
        "no-gradient-number",
        "{ranks}: the parameters with the numbers {names} (in the order of model.parameters()) got no gradient: they "
        "took no part in the loss",
        ("the next run names them", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        ("use them, or let DDP look for unused parameters, which costs time", "find_unused_parameters=True"),
    ),
    Explanation(
        _TORCH,
        "unfinished-reduction",
        "DDP: on {here} parameters took no part in the loss of the step before, so that its reduction did not end",
        ("the next run names the parameters of each rank", "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        ("use them, or let DDP look for unused parameters, which costs time", "find_unused_parameters=True"),
    ),
    Explanation(
        _TORCH,
        "store-timeout",
        "no one answers at the rendezvous {peer}:{port} within {waited} {unit}: it is not started, the address "
        "or port is wrong, or a firewall is between",
        ("start the first node (rank 0) first, and see that it listens", "ss -ltnp | grep {port}"),
        (
            "give all nodes the same --rdzv-endpoint (MASTER_ADDR, MASTER_PORT), an address that they reach",
            "nc -vz {peer} {port}",
        ),
    ),
    Explanation(
        _TORCH,
        "store-no-route",
        "{here} does not reach the rendezvous {peer}:{port}: a firewall or a missing route between the two hosts",
        ("open the ports between the hosts (firewall, security group)", "nc -vz {peer} {port}"),
        "or give an address of the first node that all nodes reach: --rdzv-endpoint, MASTER_ADDR",
    ),
    Explanation(
        _TORCH,
        "store-refused",
        "{here} cannot connect to the rendezvous {peer}:{port}: nothing listens there (rank 0 is not started or "
        "ended), or the address or port is wrong",
        "start the first node (rank 0) first, and see whether it ended: its log has the cause",
        ("check that all nodes have the same MASTER_ADDR and MASTER_PORT", "nc -vz {peer} {port}"),
    ),
    Explanation(
        _TORCH,
        "store-name",
        "{here} cannot resolve the rendezvous host {peer} (port {port})",
        ("give an address, or a name that all nodes resolve", "getent hosts {peer}"),
    ),
    Explanation(
        _TORCH,
        "store-port",
        "port {port} of the rendezvous is in use already: by another job, or by processes left of an earlier one",
        ("find who listens there, and end what is left of an earlier job", "ss -ltnp"),
        ("or take another port", "torchrun --master-port 0 --standalone, or --rdzv-endpoint HOST:PORT"),
    ),
    Explanation(
        _TORCH,
        "store-clients",
        "only {joined} of {world} processes joined within {waited} s: the others did not start, or cannot reach it",
        "read the output of the processes that did not join: they ended, or wait elsewhere",
        "check that all nodes have the same address, port and number of processes",
    ),
    Explanation(
        _TORCH,
        "store-late",
        "no one answers at the rendezvous within {waited} ms: it is not started, the address or port is wrong, or a "
        "firewall is between",
        ("start the first node (rank 0) first, and see that it listens", "ss -ltnp"),
        "give all nodes the same --rdzv-endpoint (MASTER_ADDR, MASTER_PORT), an address that they reach",
    ),
    Explanation(
        _TORCH,
        "store-barrier",
        "{joined} of {world} processes are counted at the store's barrier after {waited}: fewer did not start, "
        "or ended; more are left of an earlier start",
        "read the output of the processes that did not come: they ended, or wait elsewhere",
        "check that all nodes have the same address, port and number of processes",
    ),
    Explanation(
        _TORCH,
        "store-id",
        "{ranks_or_here} (rank {member} in the process group) waited for rank {owner} of that group, which did not "
        "give NCCL's id ({error}): it ended, or is elsewhere",
        "read the output of rank {owner} of that group: its end, or what it waits for, is the cause",
        "else see that all nodes reach MASTER_ADDR and MASTER_PORT",
    ),
    Explanation(
        _TORCH,
        "aborted-by",
        "rank {by} aborted its NCCL communicators first; rank {member} followed",
        "read the output of rank {by}: it has the cause",
    ),
    Explanation(
        "Ray documentation, 2026-11",
        "worker-died",
        "a worker of Ray{on_hosts} ended without an error message ({detail}): mostly for want of host memory, else it "
        "crashed",
        ("see whether the kernel's out-of-memory killer ended it", "dmesg -T | grep -i -E 'killed process|oom'"),
        ("read its own output and Ray's", "ls /tmp/ray/session_latest/logs"),
    ),
    Explanation(
        "Slurm, Open MPI and Ray documentation, 2026-11",
        "node-lost",
        "the launcher lost node {node}: it failed or restarted, or its network broke",
        ("see whether it runs, and why not", "sinfo -R; ping -c 3 {node}; ssh {node} 'uptime; dmesg -T | tail -50'"),
        ("leave it out, and resume from the last checkpoint", "sbatch --exclude={node} ..."),
    ),
    Explanation(
        "Kubernetes documentation, Node-pressure eviction, 2026-11",
        "evicted",
        "Kubernetes evicted the pod{on_hosts}: its node was low on {what}",
        ("request what the pod takes, so that it is placed where there is as much", "kubectl describe pod POD"),
        ("see what takes it on the node", "kubectl describe node NODE"),
    ),
    Explanation(
        _TORCH,
        "shm-full",
        "{ranks_or_here} could not {call} ({path}): shared memory (/dev/shm) is full, in which data "
        "workers pass batches",
        (
            "make shared memory larger: docker run --shm-size=16g or --ipc=host; an emptyDir of medium Memory in "
            "Kubernetes",
            "df -h /dev/shm",
        ),
        "or use fewer workers, or smaller batches in flight (num_workers, prefetch_factor)",
    ),
    Explanation(
        "Triton, 2026-11",
        "kernel-resources",
        "{ranks_or_here}: a Triton kernel needs {need} of {what}, the GPU has {limit} for a block",
        "take smaller blocks or fewer stages (num_stages), or a version tuned for this GPU",
    ),
    Explanation(
        "glibc, 2026-11",
        "heap",
        "{ranks_or_here}: compiled code corrupted the process's memory ({error})",
        "look for a library that does not fit: torch, CUDA, NCCL, its plugins and extensions of one build",
        ("see the Python stack at the end", "python -X faulthandler"),
    ),
    Explanation(
        _TORCH,
        "gloo-mesh",
        "{ranks_or_here} cannot connect to the other ranks over gloo ({error}): mostly a wrong interface or address",
        ("choose the interface that the hosts reach each other over", "export GLOO_SOCKET_IFNAME=INTERFACE"),
        (
            "see that a host's name is not resolved to its loopback (127.0.1.1 in /etc/hosts)",
            "getent hosts $(hostname)",
        ),
    ),
    Explanation(
        _TORCH,
        "gloo-interface",
        "{ranks_or_here}: gloo finds no interface {name}",
        ("name one of this host's own", "ip -brief address; export GLOO_SOCKET_IFNAME=INTERFACE"),
    ),
    Explanation(
        "UCX documentation, 2026-11",
        "ucx-retry",
        "UCX: the other end of a connection over {card} of {here} does not answer (retry count exceeded): it "
        "ended, or the link broke",
        "read the output of the other ranks: one may have ended first",
        ("see whether the link flaps", "ibstat; perfquery"),
    ),
    Explanation(
        _TORCH,
        "store-lost",
        "node {node} lost the rendezvous {name}: the process that holds its store (of the first node) ended, or is "
        "not reached",
        "read the output of the first node, that of the --rdzv-endpoint: it ended first, or is cut off",
    ),
    Explanation(
        _TORCH,
        "ready-twice",
        "{ranks_or_here}: DDP got the gradient of a parameter twice in one step{name_after}: it is used in several "
        "backward passes, mostly of checkpointed blocks",
        ("checkpoint without reentrant backward passes", "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"),
        ("or, where every step has the same graph", "DistributedDataParallel(..., static_graph=True)"),
    ),
    Explanation(
        "pytorch/gloo, transport/tcp, 2026-11",
        "gloo-closed",
        "{ranks_or_here} lost the gloo connection to {peer}: the process there ended first, or the network broke",
        "look at the log of the process on {peer}",
    ),
    Explanation(
        _TORCH,
        "store-broken",
        "{ranks_or_here} lost the connection to the store of {peer} (port {port}): the process that holds it, mostly "
        "rank 0, ended or is not reached",
        "read the output of rank 0: its end, or why it was stopped, comes first",
        fatal=False,
    ),
    Explanation(
        _TORCH,
        "store-keys",
        "{ranks_or_here} waited {waited} ms in the store for another rank, which did not come ({keys})",
        "read the output of the other ranks: one of them ended, or is late",
    ),
    Explanation(
        _TORCH,
        "device-assert",
        "{ranks_or_here}: a kernel's check failed on the device: {asserted} ({place})",
        "an index is out of range: a label beyond the classes, a token beyond the embedding",
        ("see which call it is: kernels run later than they are called", "CUDA_LAUNCH_BLOCKING=1"),
    ),
    Explanation(
        "NVIDIA Fabric Manager user guide, 2026-11",
        "switch-xid",
        "the driver reports a fault of NVSwitch {device}{on_hosts} (SXid {xid}): {error}",
        (
            "take the host out of service: the NVLinks of its GPUs fail until it is reset",
            "journalctl -u nvidia-fabricmanager; dmesg -T | grep -i sxid",
        ),
    ),
    Explanation(
        _XID,
        "xid",
        "the driver reports a fault of GPU {device}{on_hosts} (Xid {xid}): {error}",
        ("take the host out of service, and reset or replace the GPU", "nvidia-smi -q; dmesg -T | grep -i xid"),
        ("run its diagnostics", "dcgmi diag -r 3"),
        xid={"48", "61", "62", "63", "64", "74", "79", "94", "95", "119", "120", "140"},
    ),
    Explanation(
        _XID,
        "xid",
        "the driver reports Xid {xid} of GPU {device}{on_hosts}: {error}",
        "see what NVIDIA's table says of this Xid: mostly a fault of the program, else of the GPU",
    ),
    Explanation(
        _TORCH,
        "device-error",
        "{ranks_or_here} asks for a GPU that is not there (invalid device ordinal)",
        (
            "start no more processes on a host than it has GPUs (--nproc-per-node), with local ranks as devices",
            "nvidia-smi -L",
        ),
        ("see which GPUs the processes see", "echo $CUDA_VISIBLE_DEVICES"),
        error={"invalid device ordinal"},
    ),
    Explanation(
        "CUDA compatibility guide, 2026-11",
        "device-error",
        "{ranks_or_here}: the driver is older than the CUDA that the program is built with ({error})",
        ("update the driver, or take a build for an older CUDA", "nvidia-smi"),
        error={
            "CUDA driver version is insufficient for CUDA runtime version",
            "the provided PTX was compiled with an unsupported toolchain.",
            "the provided PTX was compiled with an unsupported toolchain",
        },
    ),
    Explanation(
        "NVIDIA Fabric Manager user guide, 2026-11",
        "device-error",
        "{ranks_or_here}: CUDA does not start (system not yet initialized): Fabric Manager does not run",
        ("start it, of the same version as the driver", "systemctl restart nvidia-fabricmanager; nvidia-smi -q -i 0"),
        error={"system not yet initialized", "system not initialized"},
    ),
    Explanation(
        _TORCH,
        "device-error",
        "{ranks_or_here}: two GPUs have no peer access to each other, and NCCL used it",
        ("let NCCL copy through host memory", "export NCCL_P2P_DISABLE=1"),
        ("see which GPUs reach each other", "nvidia-smi topo -p2p r"),
        error={"peer access is not supported between these two devices"},
    ),
    Explanation(
        _TORCH,
        "device-error",
        "{ranks_or_here}: the GPU is faulty: {error}",
        ("take the host out of service, and reset or replace the GPU", "nvidia-smi -q -d ECC; dmesg -T | grep -i xid"),
        error={"uncorrectable ECC error encountered", "uncorrectable NVLink error detected during the execution"},
    ),
    Explanation(
        _TORCH,
        "device-error",
        "{ranks_or_here}: the device reports an error: {error}",
        ("look for errors of the device on its host", "dmesg -T | grep -i -E 'xid|nvrm|amdgpu'"),
        ("see which call it is: kernels run later than they are called", "CUDA_LAUNCH_BLOCKING=1"),
    ),
)

_HOST_MEMORY = (
    ("see whether the kernel's out-of-memory killer ended it", "dmesg -T | grep -i -E 'killed process|oom'"),
    "take less host memory: fewer data workers, less offload to the CPU, one copy of the checkpoint a host",
    "or give the job more: the limit of its cgroup, Slurm's --mem, the pod's memory limit",
)
_OWN_OUTPUT = (
    ("read its own output: the reason is not in these lines", "torchrun --log-dir logs --tee 3 ..."),
    "let torchrun report the traceback: put torch.distributed.elastic.multiprocessing.errors.record on main()",
)  # fmt: skip
_BY_SIGNAL = {
    "SIGKILL": ("mostly the host's out-of-memory killer, else whoever sent it", _HOST_MEMORY),
    "SIGSEGV": (
        "a crash in compiled code",
        (
            ("see the Python stack at the crash", "python -X faulthandler"),
            "look for a library that does not fit: torch, CUDA, NCCL and extensions of one build",
        ),
    ),
    "SIGBUS": (
        "mostly shared memory (/dev/shm) is full, or a mapped file was cut",
        (("make shared memory larger: docker run --shm-size=16g or --ipc=host", "df -h /dev/shm"),),
    ),
    "SIGILL": (
        "its CPU lacks an instruction that a library is built for",
        (("build or choose the library for this CPU", "lscpu"),),
    ),
    "SIGABRT": (
        "compiled code gave up: NCCL's watchdog, an assertion, or the C++ runtime",
        ("the lines before it in its own output say why",),
    ),
}
_BY_MESSAGE = (
    (
        r"Rendezvous(?:Connection|Timeout|Closed)Error",
        "start all nodes, first that of the --rdzv-endpoint, within its timeout and with the same --rdzv-id and --nnodes",
        "nc -vz HOST PORT",
    ),
    (
        r"invalid usage",
        "mostly two ranks use one GPU: torch.cuda.set_device(local_rank), no more processes on a host than GPUs",
        "nvidia-smi -L; export NCCL_DEBUG=WARN",
    ),
    (r"NCCL|DistBackendError", "read what NCCL says before it", "export NCCL_DEBUG=INFO"),
    (
        r"^(?:ImportError|ModuleNotFoundError)",
        "install it in the environment of every host, or use one image",
        "pip check",
    ),
    (r"No space left on device", "a disk is full: free it, or write elsewhere (TMPDIR)", "df -h"),
    (
        r"Disk quota exceeded|PytorchStreamWriter",
        "the disk or its quota is full: free it, or write elsewhere",
        "df -h; quota -s",
    ),
    (r"[Tt]oo many open files|ancdata", "raise the limit of open files", "ulimit -n 65536"),
    (
        r"size mismatch|Missing key|Unexpected key",
        "the checkpoint is of another model: compare their configurations",
        None,
    ),
    (r"Address already in use", "end what is left of an earlier job, or take another port", "ss -ltnp"),
)


_SAME = (
    ("no-gradient", "no-gradient-number", "unfinished-reduction"),
    ("device-assert", "device-error"),
    ("node-lost", "worker-died"),
    (
        "store-no-route",
        "store-timeout",
        "store-refused",
        "store-late",
        "store-barrier",
        "store-id",
        "store-keys",
        "store-broken",
    ),
)
"""Kinds that say the same, the one that says most first."""


def _most_telling(signs: Sequence[Sign]) -> list[Sign]:
    kinds = {sign.kind for sign in signs}
    less = {kind for same in _SAME for kind in [kind for kind in same if kind in kinds][1:]}
    return [sign for sign in signs if sign.kind not in less]


_OUTLIVED = ("exception", "traceback", "frame-of", "chained")
"""Kinds of lines that a program also prints of errors that it handles."""


def _of_the_end(evidence: Evidence) -> list[Sign]:
    """Return the signs without exceptions after which the log continues for steps: the program handled them."""
    near = {run.source.rpartition(":")[0]: run.near_end_line or 0 for run in evidence.runs}
    return [s for s in evidence.signs if s.kind not in _OUTLIVED or s.line >= near.get(s.source, 0)]


def check(evidence: Evidence) -> Statement:
    statement = _job_end_statement(evidence)
    if isinstance(statement, (list, tuple)):
        return without_set(statement, evidence.signs)
    return without_set([statement], evidence.signs) if isinstance(statement, Finding) else statement


def _job_end_statement(evidence: Evidence) -> Statement:
    """Look for how a job ended, by its texts: cancelled, out of memory, or by a rank that failed."""
    signs = with_ranks(_of_the_end(evidence))
    end = text_end(signs)
    quiet = f"{len(signs)} lines on the job's end: none says that a process failed by itself"
    if end is None or (end.first is None and end.stopped is None):
        return quiet
    reached = _reached_text(evidence)
    if end.first is None:
        interrupted = [run.run_id for run in evidence.runs if run.status == "interrupted"]
        return (
            f"{interrupted[0]} was cancelled: its status says so" if interrupted else _cancelled_finding(end, reached)
        )
    first = end.first
    if first.fate.sort in ("oom", "host_oom"):
        return [
            _with_lines(_out_of_memory_finding(end, first), reached),
            *findings_of(_most_telling(signs), EXPLANATIONS),
        ]
    place = [f"raised in {_short_place(first.fate.place)}"] if first.fate.place else []
    explained = [
        _with_lines(explained_finding, *place, _followed_text(end), reached)
        for explained_finding in findings_of(_most_telling(signs), EXPLANATIONS)
    ]
    if any(e.explains(first.sign) for e in EXPLANATIONS) or (first.fate.sort == "victim" and explained):
        return explained
    own = _with_lines(_ended_finding(end, first), reached)
    if first.sign.kind.startswith("nccl-"):
        return explained or quiet  # NCCL's own line says it, in another finding
    if _of_nccl(first) and any(s.kind.startswith("nccl-") for s in signs):
        return replace(own, severity="warning")  # what NCCL names is the cause
    return [*explained, own] if _is_of(first, signs) else [own, *explained]


def _of_nccl(first: TextFate) -> bool:
    return re.search(r"NCCL|nccl|DistBackendError", f"{first.fate.exception} {first.fate.message}") is not None


def _reached_text(evidence: Evidence) -> str:
    """Say how far the log came, where it is one of steps, or whom the launcher stopped."""
    stopped = [sign for sign in evidence.signs if sign.kind == "stopped"]
    if stopped:
        pids = in_words([sign.values["process"] for sign in stopped[:_NAMED]])
        return f"the launcher then sent {stopped[0].values['signal']} to {plural(len(stopped), 'process')} {pids}"
    sources = {sign.source for sign in evidence.signs}
    steps = [r.last_step for r in evidence.runs if r.last_step is not None and r.source.rpartition(":")[0] in sources]
    return f"the log ends after step {max(steps)}" if steps else ""


def _is_of(first: TextFate, signs: Sequence[Sign]) -> bool:
    """Whether another line of the same process, or of none that is known, says why it raised its exception."""
    why = [sign for sign in signs if any(e.explains(sign) for e in EXPLANATIONS)]
    return any(sign.rank is None or first.fate.rank is None or sign.rank == first.fate.rank for sign in why)


def _who_text(first: TextFate, alike: Sequence[int] = (), *, host: bool = True) -> str:
    """Write who failed, as exactly as the text says it: rank, local rank or process."""
    fate = first.fate
    on = f" on {fate.process[0]}" if fate.process[0] and host else ""
    if len(alike) > 1:
        return ranks_text(alike)
    if fate.rank is not None:
        return f"rank {fate.rank}{on}"
    if first.local_rank is not None:
        return f"local rank {first.local_rank}{on}"
    process = first.sign.values.get("process", "")
    return f"process {process}{on}" if process.isdigit() and int(process) else f"a process{on}"


def _when_text(sign: Sign) -> str:
    return f" at {sign.time.replace('_', ' ')}" if sign.time else ""


def _sign_line(sign: Sign) -> str:
    return f"line {sign.line}: {sign.text}"


def _job_end_finding(
    title: str, *lines: Lines, first: TextFate, alike: Sequence[int] = (), advice: Iterable[Advices]
) -> Finding:
    """Return a finding that is certain, since the text says it."""
    return finding(
        title,
        *lines,
        severity="problem",
        confidence="certain: the text says it",
        advice=advice,
        priority="failure",
        ranks=tuple(alike) or (() if first.fate.rank is None else (first.fate.rank,)),
        of=_who_text(first, alike),
    )


def _followed_text(end: TextEnd) -> str:
    """Say which ranks ended through others."""
    ranks = [rank for rank in end.end.victims if rank not in end.alike]
    codes = {one.fate.rank for one in end.others if one.fate.rank is not None and one.fate.rank not in end.alike}
    if ranks := sorted({*ranks, *codes}):
        return f"{ranks_text(ranks)} ended after it"
    return ""


def _out_of_memory_finding(end: TextEnd, first: TextFate) -> Finding:
    """Return the finding of memory that ran out, the host's or a device's."""
    sign, fate = first.sign, first.fate
    where = f" in {_short_place(fate.place)}" if fate.place else ""
    if fate.sort == "host_oom":
        placed = [one for one in end.others if one.fate.sort == "host_oom" and one.fate.process[0]]
        if fate.rank is None and not fate.process[0] and placed:
            first, sign = placed[0], placed[0].sign
        return _job_end_finding(
            f"{_who_text(first)} ran out of host memory{where}{_when_text(sign)}",
            _sign_line(sign),
            _followed_text(end),
            first=first,
            advice=_HOST_MEMORY,
        )
    request = failed_request(sign.values)
    on_gpu = f" on GPU {sign.values['gpu']}" if "gpu" in sign.values else ""
    verdict, more, advice = _cause_of(request, on_gpu, sign)
    others = [one for one in end.others if one.fate.sort == "oom" and one.fate.rank != fate.rank]
    also = f"out of memory too: {ranks_text(r for one in others if (r := one.fate.rank) is not None)}" if others else ""
    wanted = "" if request.wanted is None else f"{format_bytes_binary(request.wanted)} wanted, "
    free = "" if request.free is None else f"{format_bytes_binary(request.free)} free"
    numbers = f"{wanted}{free}".rstrip(", ")
    if request.capacity is not None:
        numbers += f" of {format_bytes_binary(request.capacity)}"
    gpu = f" on GPU {sign.values['gpu']}" if "gpu" in sign.values else ""
    return _job_end_finding(
        f"{_who_text(first)} ran out of GPU memory{gpu}{_when_text(sign)}: {verdict}",
        numbers,
        *more,
        bool(where) and f"raised{where}",
        also,
        _followed_text(end),
        first=first,
        advice=advice,
    )


_LESS = (
    "low cost: halve the micro-batch (or the sequence) and double the accumulation, same global batch",
    "recompute activations in the backward pass (activation checkpointing): a third more computation",
    "shard optimizer state, gradients and parameters (ZeRO, FSDP), or move them to the host (offload)",
)


def _cause_of(request: FailedRequest, on_gpu: str, sign: Sign) -> tuple[str, list[str], tuple[Advices, ...]]:
    """Return the verdict of a failed request, further lines, and what would have helped."""
    capacity, allocated = request.capacity, request.allocated
    if capacity is None or allocated is None:
        return "how much of it is whose, these lines do not say", [], _LESS
    of_all = (
        f"{format_bytes_binary(allocated)} of {format_bytes_binary(capacity)} ({format_percent(allocated / capacity)})"
    )
    kept = format_bytes_binary(request.unallocated or 0)
    in_tensors = f"tensors hold {of_all}"
    fragments = f"{kept} are reserved but unallocated ({format_percent((request.unallocated or 0) / capacity)})"
    others = format_bytes_binary(request.others or 0)
    others_hold = f"{others} belong to other processes{on_gpu} or to CUDA contexts, not to PyTorch in this process"
    variable = "PYTORCH_HIP_ALLOC_CONF" if sign.values.get("api") == "HIP" else "PYTORCH_CUDA_ALLOC_CONF"
    grow = ("let segments grow in place", f"export {variable}=expandable_segments:True")
    free = format_bytes_binary(request.free or 0)
    match request.cause:
        case "limit":
            allowed = format_bytes_binary(request.allowed or 0)
            limit = ("raise or remove its limit", "torch.cuda.set_per_process_memory_fraction(FRACTION)")
            return f"it may take {allowed} only, and holds that: {free} of the device are free", [], (limit, _LESS[0])
        case "refused":
            driver = ("see the driver's errors, and limits of the container and of locked memory", "dmesg -T | tail")
            return (
                f"the driver refused although {free} are free: memory of the device is not what is missing",
                [],
                (driver,),
            )
        case "fragments":
            return f"fragmentation: {fragments}", [in_tensors], (grow, _LESS[0])
        case "others":
            apart = (
                ("see who holds memory there", "nvidia-smi"),
                "ranks that do not set their device open a context on GPU 0: torch.cuda.set_device(local_rank)",
                _LESS[0],
            )
            named = re.findall(r"Process \d+ has [\d.]+ \w+ memory in use", sign.values.get("processes", ""))
            return others_hold, [*named, in_tensors, fragments], apart
        case _:
            small = f"only {kept} are reserved but unallocated: fragmentation is not the cause"
            return f"it is full, {in_tensors}", [] if request.unallocated is None else [small], _LESS


def _short_place(place: str | None) -> str:
    """Return a place with the name of its file only: ``fit.py:131 in train``."""
    path, _, rest = (place or "").partition(":")
    return f"{PurePath(path).name}:{rest}"


def _with_lines(explained_finding: Finding, *lines: str) -> Finding:
    return replace(explained_finding, evidence=(*explained_finding.evidence, *filter(None, lines)))


def _cancelled_finding(end: TextEnd, reached: str) -> Finding:
    """Return the finding of a job that a scheduler, or a signal from outside, ended."""
    sign = end.stopped
    assert sign is not None
    why = sign.values.get("why", "").lower()
    on = f" on {sign.host}" if sign.host else ""
    what = (
        f"{sign.values['what']} was cancelled"
        if "what" in sign.values
        else f"{end.end.signal} from outside ended the job"
    )
    return finding(
        f"{what}{on}{_when_text(sign)}{f' due to {why}' if why else ''}: no rank is known to have failed",
        _sign_line(sign),
        reached,
        confidence="certain: the text says it",
        advice=[
            "give the job more time, or write checkpoints and resume from them"
            if "time" in why
            else "the terminal or the ssh session ended: start it under a scheduler, tmux or nohup"
            if end.end.signal == "SIGHUP"
            else ("see who ended it: the scheduler, its user, a limit of time or memory", "sacct -j JOB")
        ],
        priority="failure",
    )


def _ended_finding(end: TextEnd, first: TextFate) -> Finding:
    """Return the finding of a rank that failed by itself: an exception, else its code."""
    fate, sign = first.fate, first.sign
    who = _who_text(first, end.alike)
    if fate.exception is not None:
        name = class_name(fate.exception) if "-" not in fate.exception else "an error"
        message = shorten(fate.message or "", _MESSAGE, placeholder=" ...")
        where = f" ({_short_place(fate.place)})" if fate.place else ""
        text_of_it = f"{name}{f': {message}' if message else ''}".removesuffix(".")
        victim = fate.sort == "victim"
        verdict = f"{who} lost another process: {text_of_it}" if victim else f"{who} ended with {text_of_it}"
        if "Rendezvous" in name:
            verdict = f"{who} did not meet the others at the rendezvous: {text_of_it}"
        text = f"{fate.exception}: {fate.message or ''}"
        advice: list[Advices] = [
            (words, command) for pattern, words, command in _BY_MESSAGE if re.search(pattern, text)
        ]
        if victim and "Rendezvous" not in name:
            advice.insert(0, "look at the log of the process at the other end: it ended first, or the network broke")
        if not advice:
            advice = [
                (f"see {_short_place(fate.place)}" if fate.place else "add its traceback: the lines above this one")
            ]
        return _job_end_finding(
            f"{verdict}{where}", _sign_line(sign), _followed_text(end), first=first, alike=end.alike, advice=advice
        )
    return _finding_by_code(end, first, who)


def _finding_by_code(end: TextEnd, first: TextFate, who: str) -> Finding:
    """Return the finding of a rank that ended with a code or a signal, and no words."""
    fate, sign = first.fate, first.sign
    name = end.end.signal
    if fate.code is not None and fate.code > 128 and name is None:
        name = SIGNALS.get(fate.code - 128)
    after = _followed_text(end)
    first_of = "first, " if end.others else ""
    process = f" (process {fate.process[1]})" if fate.process[1] else ""
    if name is not None:
        means, advice = _BY_SIGNAL.get(name, ("whoever sent it", _OWN_OUTPUT))
        return _job_end_finding(
            f"{who} was killed by {name}{_when_text(sign)}: {means}",
            f"exit code {fate.code}{process}",
            after,
            first=first,
            advice=advice,
        )
    code = "an error" if fate.code is None else f"exit code {fate.code}"
    return _job_end_finding(
        f"{who} failed {first_of}with {code}{_when_text(sign)}: the reason is in its own output",
        f"{_sign_line(sign)}{process}",
        after,
        "; ".join(
            f"{_who_text(one, host=False)}: exit code {one.fate.code}{_when_text(one.sign)}"
            for one in end.others[:_MOST_OTHERS]
            if one.fate.code is not None
        ),
        first=first,
        advice=_OWN_OUTPUT,
    )


RULE = Rule(
    symptom="a job ended: an exception, a signal, an exit code, memory that ran out, ranks that did not meet",
    needs=("signs",),
    look=check,
    looks_at="lines on the job's end in logs",
    protocol=1,
    thresholds={
        "share": Limit(
            LEAST_SHARE, unit="of the capacity", source="fragments below it serve no request of a size that matters"
        )
    },
)
