"""How processes of a job ended: signals, exit codes, out of memory, rendezvous, what DDP and data loaders say."""

from __future__ import annotations

import re

from stepscope.store.signs import SignForm

_SIZE = rb"[\d.]+ \w+"
_ERROR = rb"(?:(?P<exception>[\w.]*(?:Error|Exception)): )?"
_OUT = _ERROR + rb"(?P<api>CUDA|HIP|XPU|NPU|MUSA) out of memory"
_OOM = _OUT + rb"\. Tried to allocate (?P<wanted>" + _SIZE + rb")"
_AT = rb"(?:\[?(?P<peer>[\w.:-]+?)\]?[:,] ?(?P<port>\d+))"

_UNABLE = _ERROR + rb"unable to (?P<call>[\w ()]{3,60}) <(?P<path>/torch_\w+)>.{0,40}?"
_SHELL = (b"Killed", b"Segmentation fault", b"Bus error", b"Aborted", b"killed", b"segmentation fault", b"bus error")
"""What shells say of a process that a signal ended, bash and zsh."""

SIGNS: tuple[SignForm, ...] = (
    # Memory of the device
    SignForm(
        "oom", b"out of memory",
        _OOM + rb"\.? GPU\s+(?P<gpu>\d+)\s+has\s+a\s+total\s+capaci?ty\s+of\s+(?P<capacity>" + _SIZE
        + rb")\s+of\s+which\s+(?P<free>" + _SIZE + rb")\s+is\s+free\.(?P<processes>.*?)"
        rb"Of\s+the\s+allocated\s+memory\s+(?P<allocated>" + _SIZE + rb")\s+is\s+allocated\s+by\s+PyTorch,"
        rb".*?(?P<unallocated>" + _SIZE + rb")\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated",
    ),
    SignForm(
        "oom", b"out of memory",
        _OOM + rb"\s+\((?:GPU|NPU|XPU)\s+(?P<gpu>\d+);\s+(?P<capacity>" + _SIZE + rb")\s+total\s+capacity;\s+(?P<allocated>"
        + _SIZE + rb")\s+already\s+allocated;(?:.*?;)?\s+(?P<free>" + _SIZE
        + rb")\s+free;\s+(?:(?P<reserved>" + _SIZE + rb")\s+reserved\s+in|(?P<unallocated>" + _SIZE + rb")\s+cached)",
    ),
    SignForm("oom", b"out of memory", _OUT + rb"(?:\. Tried to allocate (?P<wanted>" + _SIZE
             + rb"))?(?:.{0,4}GPU (?P<gpu>\d+))?", cut=True),
    SignForm("oom", b"out of memory", _ERROR + rb"(?P<error>CUDA error: out of memory)"),
    SignForm(
        "oom", b"would exceed allowed memory",
        _ERROR + rb"Allocation on device (?P<gpu>\d+) would exceed allowed memory\. \(out of memory\) Currently "
        rb"allocated +: "
        rb"(?P<allocated>" + _SIZE + rb") Requested +: (?P<wanted>" + _SIZE + rb") Device limit +: (?P<capacity>" + _SIZE
        + rb") Free \(according to CUDA\): (?P<free>" + _SIZE + rb")",
    ),
    SignForm("oom", b"out of memory", rb"(?P<error>Cuda failure (?:2 )?'out of memory')"),
    SignForm("oom", b"_STATUS_ALLOC_FAILED", _ERROR + rb"(?:\w+ error: )?(?P<error>CU\w+_STATUS_ALLOC_FAILED)"),
    SignForm("oom", b"RESOURCE_EXHAUSTED", rb"(?P<error>RESOURCE_EXHAUSTED: Out of memory.{0,120})"),
    # Memory of the host
    SignForm("host-oom", b"DefaultCPUAllocator",
             _ERROR + rb"(?:\[enforce fail.{0,80}?)?DefaultCPUAllocator: (?P<error>.{1,120})"),
    SignForm("host-oom", b"node running low on memory",
             _ERROR + rb"(?:[A-Z][\w ]{0,60})?(?P<error>node running low on memory)"),
    SignForm("host-oom", b"Memory on the node (IP", rb"(?P<error>Memory on the node \(IP: (?P<host>[\d.]+).{0,200})"),
    SignForm("host-oom", b"_ArrayMemoryError", rb"(?P<exception>[\w.]*_ArrayMemoryError): (?P<error>.{1,120})"),
    SignForm("host-oom", b"bad_alloc", rb"(?P<error>std::bad_alloc)"),
    SignForm("kernel-oom", b"ut of memory: Kill",
             rb"\w*[Oo]ut of memory: Kill\w* process (?P<process>\d+) \((?P<command>[^)]+)\)"),
    SignForm("kernel-oom", b"due to memory pressure", rb"systemd-oomd\[\d+\]: Killed (?P<command>\S+) due to memory"),
    SignForm("kernel-oom", b"oom-kill", rb"[Dd]etected (?P<kills>\d+) oom-kill event"),
    SignForm("kernel-oom", b"oom_kill", rb"[Dd]etected (?P<kills>\d+) oom_kill event"),
    SignForm("kernel-oom", b"OOMKilled", rb"OOMKilled"),
    SignForm("worker-died", b"Worker exit type: ",
             rb"Worker exit type: (?P<exit>SYSTEM_ERROR|NODE_OUT_OF_MEMORY) Worker exit detail: (?P<detail>[^.]{1,120})"),
    SignForm("worker-died", b"The actor died", _ERROR + rb"The actor (?P<detail>died unexpectedly[\w ]{0,60})"),
    SignForm("evicted", b"The node was low on", rb"The node was low on resource: (?P<what>[\w-]+)"),
    # Data loaders
    *(
        SignForm("shm-full", error, _UNABLE + re.escape(error))
        for error in (b"No space left on device", b"Resource temporarily unavailable", b": Success (0)")
    ),
    SignForm(
        "loader-killed", b"DataLoader worker",
        _ERROR + rb"DataLoader worker \(pid(?:\(s\))? (?P<process>[\d, ]+)\) "
        rb"(?:is killed by signal: (?P<signal>[A-Z][\w ]+)|exited unexpectedly)",
    ),
    SignForm("loader-killed", b"Unexpected bus error", rb"Unexpected (?P<signal>bus error) encountered in worker"),
    # Launchers
    SignForm("child-time", b"time", rb"\btime *: (?P<time>[\d-]{10}_[\d:]{8})", beside=True),
    SignForm("child-host", b"host", rb"\bhost *: (?P<host>\S+)$", beside=True),
    SignForm("child-rank", b"(local_rank: ", rb"\brank *: (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)"),
    SignForm("child-code", b"exitcode", rb"\bexitcode *: (?P<code>-?\d+) \(pid: (?P<process>\d+)\)"),
    SignForm("child-root", b"Root Cause", rb"Root Cause(?: \(first observed failure\))?:"),
    SignForm(
        "launched-code", b"failed (exitcode: ",
        rb"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<process>\d+)\)",
    ),
    SignForm(
        "launched-code", b"terminated with", rb"process (?P<local_rank>\d+) terminated with (?:exit code (?P<code>\d+)"
        rb"|signal (?P<signal>SIG\w+))",
    ),
    SignForm(
        "launched-code", b"Child process with PID",
        rb"\[rank: (?P<rank>\d+)\] Child process with PID (?P<process>\d+) terminated with code (?P<code>-?\d+)",
    ),
    SignForm("child-number", b"terminated with the following error", rb"-- Process (?P<local_rank>\d+) terminated with the"),
    SignForm("some-code", b"exits with return code", rb"exits with return code = (?P<code>-?[1-9]\d*)"),
    SignForm(
        "some-code", b"returned non-zero exit status", rb"returned non-zero exit status (?P<code>[1-9]\d*)",
    ),
    SignForm("some-code", b"exited with code ", rb"(?:[\w-]+\.)?(?P<host>[\w-]+) exited with code (?P<code>[1-9]\d*)"),
    SignForm("some-code", b"terminated with", rb"command terminated with exit code (?P<code>[1-9]\d*)"),
    SignForm("some-code", b"Exit Code:", rb"Exit Code: +(?P<code>[1-9]\d*)"),
    *(
        SignForm("some-code", how, rb"(?:line \d+: +|\[\d+\] *[-+]? +)(?P<process>\d+) (?P<how>" + how + rb")\b")
        for how in _SHELL
    ),
    *(SignForm("some-code", how, rb"(?P<how>" + how + rb")(?: \(core dumped\))?\s*$", first=True) for how in _SHELL),
    SignForm("some-code", b" received at time=", rb"\*\*\* (?P<signal>SIG[A-Z]+) received at time="),
    SignForm(
        "some-code", b"Caught signal ",
        rb"\[(?P<host>[\w.-]+):(?P<process>\d+) *:\d+:\d+\] Caught signal (?P<how>\d+ \([^)]{1,100})",
    ),
    SignForm("heap", b"double free or corruption", rb"(?P<error>double free or corruption)", first=True),
    SignForm("heap", b"(): invalid ", rb"(?P<error>\w+\(\): invalid (?:pointer|(?:next )?size)[\w ()]{0,40})\s*$",
             first=True),
    SignForm("heap", b"malloc(): ", rb"(?P<error>malloc\(\): [a-z][\w -]{5,60})\s*$", first=True),
    SignForm("heap", b"corrupted ", rb"(?P<error>corrupted (?:size vs|double-linked|unsorted)[\w. -]{3,40})", first=True),
    SignForm("some-code", b"died with <Signals", rb"died with <Signals\.(?P<signal>SIG\w+)"),
    SignForm(
        "task-ended", b"srun: error", rb"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>.{1,80})"
    ),
    SignForm("node-lost", b"Node failure on ", rb"(?P<launcher>srun): error: Node failure on (?P<node>\S+)"),
    SignForm("node-lost", b"Remote daemon: ", rb"Remote daemon: \S+ on node (?P<node>\S+)"),
    SignForm(
        "node-lost", b"has been marked dead", rb"The node .{0,90}address: (?P<node>[\w.:]+) .{0,90}has been marked dead"
    ),
    SignForm("task-ended", b"MPI_ABORT was invoked", rb"MPI_ABORT was invoked on rank (?P<tasks>\d+)"),
    SignForm("task-ended", b"Process name: [[", rb"Process name: \[\[\d+,\d+\],(?P<tasks>\d+)\]"),
    SignForm("task-code", b"errorcode ", rb"with errorcode (?P<code>\d+)", beside=True),
    SignForm("task-code", b"Exit code:", rb"Exit code: +(?P<code>\d+)", beside=True),
    SignForm(
        "task-ended", b"noticed that process rank",
        rb"process rank (?P<tasks>\d+) with PID (?P<process>\d+) on node (?P<host>\S+) exited on (?P<how>signal \d+.{0,40})",
    ),
    SignForm(
        "task-ended", b"RUNNING AT", rb"(?:RANK (?P<tasks>\d+) )?PID (?P<process>\d+) RUNNING AT (?P<host>\S+)",
    ),
    SignForm("task-code", b"KILLED BY SIGNAL", rb"KILLED BY SIGNAL: (?P<how>\d+ \([\w ]+)", beside=True),
    SignForm("task-code", b"EXIT CODE: ", rb"EXIT CODE: (?P<code>\d+)", beside=True),
    SignForm("stopped", b"closing signal", rb"process (?P<process>\d+) closing signal (?P<signal>SIG\w+)", beside=True),
    SignForm("cancelled", b"CANCELLED AT", rb"(?P<what>(?:STEP|JOB) \S+) ON (?P<host>\S+) CANCELLED AT "
             rb"(?P<time>\S+?)(?: DUE TO (?P<why>[A-Z ]+?))?(?:;| \*|$)"),
    SignForm("cancelled", b"got signal: ", rb"Process \d+ got signal: (?P<signal>\d+)"),
    SignForm("cancelled", b"due to signal ", rb"Received (?P<signal>\d+) death signal, shutting down workers"),
    SignForm("cancelled", b"received SIGTERM", rb"(?:Main process )?received SIGTERM"),
    SignForm("cancelled", b"receiving SIGTERM", rb"(?:exiting program after )?receiving SIGTERM"),
    SignForm("crashed", b"Fatal Python error", rb"Fatal Python error: (?P<how>.{1,60})"),
    # Rendezvous and the store
    SignForm(
        "store-timeout", b"socket has timed out",
        rb"(?:client|server) socket has timed out after (?P<waited>\d+)(?P<unit>m?s)"
        rb" while trying to (?:connect to|listen on) \(?" + _AT,
    ),
    SignForm("store-late", b"connect() timed out",
             _ERROR + rb"connect\(\) timed out\. Original timeout was (?P<waited>\d+) ms"),
    SignForm(
        "store-lost", b"a keep-alive heartbeat",
        rb"The node '(?P<node>[\w.-]+?)_\d+_\d+' has failed to send a keep-alive heartbeat to the rendezvous "
        rb"'(?P<name>[^']+)'",
    ),
    SignForm(
        "store-broken", b"failed on SocketImpl",
        rb"(?:send|recv)\w+ failed on SocketImpl\(fd=\d+, addr=\S+, remote=\[?(?P<peer>[\w.-]+)\]?:(?P<port>\d+)"
        rb"\): (?P<error>[\w ,]{3,60})",
    ),
    SignForm("gloo-mesh", b"connectFullMesh failed", _ERROR + rb"Gloo connectFullMesh failed with (?P<error>.{3,120})"),
    SignForm(
        "gloo-mesh", b"tcp/pair.cc",
        _ERROR + rb"\[\S*gloo/transport/tcp/pair\.cc:\d+\] (?P<error>connect \[?[\w.:%-]+\]?:\d+: [\w ]{3,60})",
    ),
    SignForm("gloo-interface", b"Unable to find address for: ",
             _ERROR + rb".{0,120}Unable to find address for: (?P<name>\S+)"),
    SignForm(
        "ucx-retry", b"Transport retry count exceeded",
        rb"\[(?P<host>[\w.-]+):\d+ *:\d+\].{0,80}Transport retry count exceeded on (?P<card>\w+):\d+",
    ),
    SignForm(
        "store-barrier", b"in store based barrier",
        _ERROR + rb"Timed out initializing process group in store based barrier on rank:? (?P<member>\d+), for key: \S+ "
        rb"\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+), timeout=(?P<waited>[\d:.]+)",
    ),
    SignForm(
        "store-id", b"retrieving ncclUniqueId from",
        _ERROR + rb"\[(?P<member>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from "
        rb"\[(?P<owner>\d+)\].*? got error: (?P<error>[\w ]{3,60})",
    ),
    SignForm(
        "aborted-by", b"NCCLABORTEDCOMM",
        rb"\[Rank (?P<member>\d+)\] Found key in store: NCCLABORTEDCOMM\S*, from rank: (?P<by>\d+)",
    ),
    SignForm(
        "store-no-route", b"(errno: 1", rb"failed to connect to (?:any network address of )?\(?" + _AT
        + rb".{0,200}?\(errno: (?:113|101|110)\b",
    ),
    SignForm(
        "store-refused", b"failed to connect to any", rb"failed to connect to any network address of \(?" + _AT,
    ),
    SignForm(
        "store-refused", b"has failed to connect to", rb"has failed to connect to " + _AT + rb" \(errno: (?P<errno>\d+)"
    ),
    SignForm("store-name", b"cannot be retrieved", rb"network addresses of \(?" + _AT + rb"\)? cannot be retrieved"),
    SignForm(
        "store-port", b"ddress already in use",
        rb"(?:server socket|EADDRINUSE|Errno 98).*?(?:\[?(?P<peer>[\w.:]*?)\]?:|port: ?)(?P<port>\d{2,5})\D.*already in use",
    ),
    SignForm("store-port", b"ddress already in use", rb"(?:server socket|EADDRINUSE|[Ee]rrno:? 98).*ddress already in use"),
    SignForm(
        "store-clients", b"waiting for clients",
        rb"Timed out after (?P<waited>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<world>\d+) clients joined",
    ),
    SignForm("store-keys", b"wait timeout after", rb"wait timeout after (?P<waited>\d+)ms, keys: (?P<keys>\S+)"),
    # What is set already
    *(
        SignForm(
            "setting", mark,
            rb"(?:^|[;&>+$] ?|\bexport |\benv |-[xe] |\s\w+=\S+ )(?P<name>" + mark + rb"\w+)=(?P<value>[^\s;,)]+)",
            beside=True,
        )
        for mark in (b"NCCL_", b"TORCH_NCCL_", b"PYTORCH_")
    ),
    SignForm("setting", b" set by environment to ",
             rb"(?P<name>NCCL_\w+) set by environment to (?P<value>[^\s.]+)", beside=True),
    # DDP and the device
    SignForm("no-gradient", b"did not receive grad for rank",
             rb"Parameters which did not receive grad for rank (?P<rank>\d+): (?P<names>.+)"),
    SignForm("no-gradient-number", b"did not receive grad for rank",
             rb"Parameter indices which did not receive grad for rank (?P<rank>\d+): (?P<names>[\d ,]+)"),
    SignForm("ready-twice", b"marked as ready twice",
             rb"Parameter at index (?P<index>\d+)(?: with name (?P<name>\S+))? has been marked as ready twice"),
    SignForm("ready-twice", b"mark a variable ready only once", _ERROR + rb"Expected to mark a variable ready only once"),
    SignForm("unfinished-reduction", b"Expected to have finished reduction",
             _ERROR + rb"Expected to have finished reduction in the prior iteration"),
    SignForm(
        "device-assert", b"Assertion `", rb"(?P<place>[\w./-]+\.\w+:\d+):.{0,200}Assertion `(?P<asserted>[^`]+)` failed"
    ),
    SignForm(
        "kernel-resources", b"out of resource: ", rb"out of resource: (?P<what>[\w ]+), Required: (?P<need>\d+), "
        rb"Hardware limit: (?P<limit>\d+)",
    ),
    SignForm("device-error", b"CUDA error: ", _ERROR + rb"CUDA error: (?P<error>[\w ()/-]{3,100})"),
    SignForm(
        "device-error", b"cudaGetDeviceCount",
        _ERROR + rb"(?:[A-Z][\w ]{0,40})?cudaGetDeviceCount\(\).*? Error \d+: (?P<error>[\w -]{3,100})"
    ),
    SignForm("device-error", b"Memory access fault by GPU", rb"(?P<error>Memory access fault by GPU [\w-]+)"),
    SignForm("device-error", b"HIP error: ", _ERROR + rb"HIP error: (?P<error>[\w ()/-]{3,100})"),
    SignForm(
        "switch-xid", b"SXid (PCI:", rb"SXid \(PCI:(?P<device>[\w:.]+)\): (?P<xid>\d+), (?P<error>Fatal\b.{0,120}?)\s*$"
    ),
    SignForm(
        "xid", b"NVRM: Xid",
        rb"NVRM: Xid \(PCI:(?P<device>[\w:.]+)\): (?P<xid>\d+)(?:, pid=[^,]*)?(?:, name=[^,]*)?,? ?"
        rb"(?P<error>.{1,300}?)\.?\s*$",
    ),
)  # fmt: skip
