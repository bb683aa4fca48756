"""What NCCL and RCCL say before they give up, or of what slows them down."""

from __future__ import annotations

from stepscope.store.signs import SignForm

_ADDRESS = rb"(?P<peer>[\w.:%-]{1,80}?)<\d+>"

SIGNS = (
    SignForm("nccl-no-subnet", b"same subnet", rb"No interface found in the same subnet as remote address " + _ADDRESS),
    SignForm("nccl-bind", b"Cannot assign requested address", rb"(?:bind|Bind).{0,80}Cannot assign requested address"),
    SignForm("nccl-no-route", b"No route to host", rb"(?:" + _ADDRESS + rb".{0,40})?No route to host"),
    SignForm("nccl-no-route", b"Network is unreachable", rb"(?:" + _ADDRESS + rb".{0,40})?Network is unreachable"),
    SignForm("nccl-refused", b"Connection refused", rb"[Cc]onnect\S* to " + _ADDRESS + rb".{0,40}Connection refused"),
    SignForm("nccl-no-answer", b"Connection timed out", rb"[Cc]onnect\S* to " + _ADDRESS + rb".{0,40}Connection timed out"),
    SignForm(
        "nccl-unreached", b"onnect to ", rb"[Cc]onnect\S* to " + _ADDRESS + rb" failed : (?P<error>[A-Z][\w ,/-]{2,60})"
    ),
    *(
        SignForm("nccl-broken", call, call + _ADDRESS + rb" failed : (?P<error>Broken pipe|Connection reset by peer)")
        for call in (b"Call to recv from ", b"Call to send to ")
    ),
    SignForm("nccl-mixed", b": wrong ", rb"socket\w+: wrong (?P<what>type|magic) \w+ != \w+"),
    SignForm("nccl-no-interface", b"no socket interface found", rb"no socket interface found"),
    SignForm("nccl-shm-full", b"No space left on device", rb"(?P<path>/dev/shm/\S+?)[ ,].*?No space left on device"),
    SignForm("nccl-shm-full", b"failed to extend", rb"failed to extend (?P<path>/dev/shm/\S+) to \d+ bytes\s*$"),
    SignForm(
        "nccl-shm", b"shared memory segment",
        rb"Error while creating shared memory segment (?P<path>/dev/shm/\S*) \(size \d+\)(?:, error: (?P<error>.{1,60}))?",
    ),
    SignForm("nccl-shm-apart", b"shared memory segment", rb"Error while attaching to shared memory segment (?P<path>/\S*)"),
    SignForm(
        "nccl-ib-port", b"Got async event",
        rb"NET/IB : (?:(?P<card>\w+):\d+ )?Got async event : "
        rb"(?P<error>port error|.{0,40}(?:fatal|catastrophic|work queue error))",
    ),
    SignForm(
        "nccl-ib-event", b"async fatal event",
        rb"NET/IB : (?:(?P<card>\w+):\d+ )?async fatal event on (?:\w+ \(\w+\)): (?P<error>.{1,60})",
    ),
    SignForm(
        "nccl-ib-status", b"Got completion",
        rb"Got completion (?:from peer " + _ADDRESS
        + rb" )?with (?:status[= ]|error )(?:\w+\()?(?P<status>\d+)\)?,? opcode[= ]\S+ .{0,40}?"
        rb"vendor[_ ]err[= ](?P<vendor>\d+)",
    ),
    SignForm("nccl-ib-peermem", b"Bad address", rb"ibv_reg_\w+ failed.{0,40}Bad address"),
    SignForm(
        "nccl-rank-count", b"mismatch in rank count", rb"mismatch in rank count from procs (?P<one>\d+) : (?P<other>\d+)"
    ),
    SignForm("nccl-rank-twice", b"has already checked in",
             rb"rank (?P<twice>\d+) of (?P<world>\d+) ranks has already checked"),
    SignForm(
        "nccl-sizes", b"collective mismatch error",
        rb"peer " + _ADDRESS + rb" collective mismatch error, local size (?P<got>\d+) remote size (?P<want>\d+)",
    ),
    SignForm(
        "nccl-sizes", b"message truncated",
        rb"peer " + _ADDRESS + rb" message truncated : receiving (?P<got>\d+) bytes instead of (?P<want>\d+)",
    ),
    SignForm("nccl-driver", b"nvmlInit", rb"nvmlInit\w*\(\) failed: (?P<error>[\w/ -]{3,80})"),
    SignForm("nccl-calloc", b"Failed to CUDA ", rb"Failed to CUDA \w+(?: async)? (?P<bytes>\d+) bytes"),
    SignForm("nccl-ib-register", b"Cannot allocate memory", rb"ibv_\w+ failed.{0,60}Cannot allocate memory"),
    SignForm(
        "nccl-ofi", b"NET/OFI ",
        rb"NET/OFI (?P<error>Unable to find a protocol that worked|\S+ initialization failed|"
        rb"Request.{0,40} completed with error.{1,90})",
    ),
    SignForm("nccl-ib-queue", b"ibv_modify_qp", rb"ibv_modify_qp failed with (?:error )?(?P<error>.{1,60})"),
    SignForm(
        "nccl-one-gpu", b"Duplicate GPU detected",
        rb"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<with_rank>\d+) both on CUDA device (?P<device>\w+)",
    ),
    SignForm(
        "nccl-nvls", b"NVLS",
        rb"Failed to (?:bind|create|map|connect|set up)[^.]{0,40}(?:NVLink SHARP|NVLS)[^:]{0,80}(?:: (?P<error>.{1,80}))?",
    ),
    SignForm("nccl-nvls", b"transport/nvls", rb"transport/nvls\.\w+:\d+ NCCL WARN (?P<error>Cuda failure .{1,100})"),
    SignForm(
        "nccl-versions", b"Mismatched NCCL version",
        rb"Mismatched NCCL version detected : rank (?P<rank>\d+)(?: version)? "
        rb"(?P<version>\S+) rank (?P<with_rank>\d+)(?: version)? (?P<other>\S+)",
    ),
    SignForm("nccl-truncated", b"Message truncated",
        rb"Message truncated : received (?P<got>\d+) bytes instead of (?P<want>\d+)"),
    SignForm("nccl-files", b"Too many open files", rb"Too many open files"),
    SignForm(
        "nccl-proxy", b"[Proxy Service",
        rb"\[Proxy Service\S* \d+\] Failed to execute operation (?P<call>\w+) from rank (?P<rank>\d+)",
    ),
    SignForm("nccl-proxy", b"Proxy Call to rank", rb"Proxy Call to rank (?P<rank>\d+) failed \((?P<call>\w+)\)"),
    SignForm("nccl-aborted", b"Abort COMPLETE", rb"rank (?P<rank>\d+) nranks \d+ .{0,80}- Abort COMPLETE"),
    SignForm("gloo-closed", b"Connection closed by", rb"gloo/\S+ Connection closed by peer \[?(?P<peer>[\w.:%-]+?)\]?:\d+"),
    SignForm(
        "nccl-closed", b"Connection closed by",
        rb"Connection closed by (?:remote )?peer ?(?P<peer>[\w.:%-]{1,80}?)?(?:<\d+>|\s|$)",
    ),
    SignForm("nccl-no-verbs", b"libibverbs", rb"Failed to open (?P<library>libibverbs\.so\S*)"),
    SignForm("nccl-no-verbs", b"libibverbs.so", rb"(?P<library>libibverbs\.so\S*): cannot open shared object file"),
)  # fmt: skip
