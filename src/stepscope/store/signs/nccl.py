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
    SignForm("nccl-no-interface", b"no socket interface found", rb"no socket interface found"),
    SignForm("nccl-shm-full", b"No space left on device", rb"(?P<path>/dev/shm/\S+?)[ ,].*?No space left on device"),
    SignForm(
        "nccl-ib-status", b"Got completion",
        rb"Got completion (?:from peer " + _ADDRESS
        + rb" )?with (?:status[= ]|error )(?P<status>\d+),? opcode[= ]-?\d+,? len[= ]\d+,? vendor err (?P<vendor>\d+)",
    ),
    SignForm("nccl-ib-register", b"ibv_reg_mr", rb"ibv_reg_mr\w* failed.{0,60}Cannot allocate memory"),
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
        rb"Mismatched NCCL version detected : rank (?P<rank>\d+) (?P<version>\S+) rank (?P<with_rank>\d+) (?P<other>\S+)",
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
    SignForm(
        "nccl-closed", b"Connection closed by",
        rb"Connection closed by (?:remote )?peer ?(?P<peer>[\w.:%-]{1,80}?)?(?:<\d+>|\s|$)",
    ),
    SignForm("nccl-no-verbs", b"libibverbs", rb"Failed to open (?P<library>libibverbs\.so\S*)"),
    SignForm("nccl-no-verbs", b"libibverbs.so", rb"(?P<library>libibverbs\.so\S*): cannot open shared object file"),
)  # fmt: skip
