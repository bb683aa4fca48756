"""Collectives that did not end: torch's NCCL watchdog, its monitors, gloo's barrier, mismatched calls, NCCL's RAS."""

from __future__ import annotations

from stepscope.store.signs import SignForm

_GROUP = (
    rb"(?:\[PG (?:ID )?(?P<number>\d+)(?: PG GUID (?P<group>[^\s(\]]+))? ?(?:\((?P<name>[^)]*)\))? "
    rb"Rank (?P<member>\d+)\]\s+)?"
)
"""The process group of a line, torch 2.2 to 2.10; a name may be missing."""

_LAST = rb"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),\s+last completed (?:NCCL )?work: (?P<completed>-?\d+)"
_PRINT = (
    rb"CollectiveFingerPrint\((?:SequenceNumber=(?P<sequence%(n)s>\d+)(?:, )?)?OpType=(?P<op%(n)s>\w+)"
    rb"(?:, TensorShape=\[(?P<shape%(n)s>[^\]]*)\](?:, TensorDtypes=(?P<dtype%(n)s>\w+))?)?"
)
_RUNNING = rb"Rank (?P<one>\d+) is running (?:inconsistent )?collective:\s+" + _PRINT % {b"n": b""}
_OPEN = rb".*?workMetaList_\.size\(\) ?= ?(?P<open>\d+)"
_RAS_RANK, _ON_NODE = rb"Rank (?P<rank>\d+) ", rb".*? on node (?P<host>\S+)"
_RANKS = rb"(?P<ranks>\d+(?:, ?\d+)*)"
_WORK = rb"WorkNCCL\((?:SeqNum=(?P<sequence>\d+), )?OpType=(?P<op>\w+)"

SIGNS: tuple[SignForm, ...] = (
    SignForm(
        "timeout", b"aught collective operation timeout",
        rb"(?:\[PG [^\]]*\] )?(?:\[Rank (?P<member>\d+)\] )?(?:Watchdog c|C)aught collective operation timeout:\s+" + _WORK
        + rb"(?:, TensorShape=\[[^\]]*\])?(?:,\s*NumelIn=(?P<elements>\d+),\s*NumelOut=\d+)?"
        rb",\s*Timeout\(ms\)=(?P<timeout>\d+)\)"
        rb"\s+ran\s+for\s+(?P<ran>\d+)\s+milliseconds",
    ),
    SignForm(
        "timeout-cut", b"Watchdog caught",
        rb"(?:\[Rank (?P<member>\d+)\] )?Watchdog caught(?: collective operation timeout:\s+"
        rb"WorkNCCL\(SeqNum=(?P<sequence>\d+),(?: OpType=(?P<op>\w+),)?)?",
        cut=True,
    ),
    SignForm(
        "group-status", b"Exception (either an error or timeout)",
        _GROUP + rb"Exception \(either an error or timeout\)\s+detected\s+by\s+watchdog\s+at\s+work: (?P<at>\d+),\s+"
        + _LAST,
    ),
    SignForm("group-status", b"Timeout at NCCL work", _GROUP + rb"Timeout at NCCL work: (?P<at>\d+),\s+" + _LAST),
    SignForm(
        "group-status", b"failure detected by watchdog",
        _GROUP + rb"failure detected by watchdog at work sequence id: (?P<at>\d+)\s+PG status:\s+" + _LAST,
    ),
    SignForm("group-status", b"Received a ", _GROUP + rb"Received a (?:dump|global timeout|timeout)\b.*?" + _LAST),
    SignForm("dumping", b"Observed flight recorder dump signal", _GROUP + rb"Observed flight recorder dump signal"),
    SignForm(
        "stuck-watchdog", b"watchdog got stuck",
        _GROUP + rb"(?:\[PG [^\]]*\] )?\S+ watchdog got stuck for (?P<stuck>\d+) seconds" + _OPEN,
    ),
    SignForm(
        "stuck-watchdog", b"watchdog got stuck", _GROUP + rb"\S+ watchdog got stuck for (?P<stuck>\d+) seconds", cut=True
    ),
    SignForm(
        "stuck-watchdog", b"Heartbeat monitor timed out", _GROUP + rb"Heartbeat monitor timed out!" + _OPEN,
    ),
    SignForm("stuck-watchdog", b"Heartbeat monitor timed out", _GROUP + rb"Heartbeat monitor timed out!", cut=True),
    *(
        SignForm(kind, why, _GROUP + rb"(?:\[PG [^\]]*\] )?Terminating the process .{0,60}?due to (?P<why>" + why + rb")")
        for kind, why in (("stuck-watchdog", b"ProcessGroupNCCL watchdog hang"), ("dumping", b"collective timeout or exc"))
    ),
    SignForm("gil", b"Could not acquire GIL", _GROUP + rb"Could not acquire GIL within (?P<waited>\d+) ms"),
    SignForm(
        "desync", b"but didn't join collective",
        rb"\[" + _RANKS + rb"\]\s+finished collective #(?P<finished>\d+),\s+but didn't join collective #(?P<sequence>\d+)",
    ),
    SignForm(
        "desync-inside", b"joined but didn't finish collective",
        rb"\[" + _RANKS + rb"\]\s+joined but didn't finish collective #(?P<sequence>\d+)",
    ),
    SignForm(
        "desync-never", b"are the lagging ranks that caused this timeout",
        rb"ranks \[" + _RANKS + rb"\] are the lagging ranks that caused this timeout",
    ),
    SignForm(
        "barrier", b"failed to pass monitoredBarrier",
        rb"Ranks? " + _RANKS + rb" failed to pass monitoredBarrier in (?P<waited>\d+) ms",
    ),
    SignForm(
        "barrier-reached", b"successfully reached monitoredBarrier",
        rb"Rank (?P<rank>\d+) successfully reached monitoredBarrier",
    ),
    SignForm("gloo-timeout", b"Timed out waiting", rb"Timed out waiting (?P<waited>\d+)ms for (?P<way>send|recv) operation"),
    SignForm(
        "mismatch", b"Detected mismatch between collectives",
        _RUNNING + rb".*?but Rank (?P<other>\d+) is running collective:\s+" + _PRINT % {b"n": b"2"} + rb"[,)]",
    ),
    SignForm("mismatch", b"Detected mismatch between collectives", _RUNNING, cut=True),
    SignForm(
        "not-joined", b"Not all ranks joining collective",
        rb"Not all ranks joining collective(?:[:,] sequence number:)? (?P<sequence>\d+)",
    ),
    SignForm(
        "not-joined", b"Not all ranks joining collective",
        rb"Not all ranks joining collective for group (?P<group>\S+) collective (?:\w+:)?(?P<op>\w+)"
        rb"(?:.*?Missing ranks are \{" + _RANKS + rb"\})?",
    ),
    SignForm(
        "fr-differs", b"Collective sequence number: ", rb"Collective sequence number: (?P<sequence>\d+) has errors"
    ),
    SignForm(
        "fr-differs", b"Input/output mismatch in",
        rb"(?P<error>Input/output mismatch) in the collective sequence number: (?P<sequence>\d+)",
    ),
    SignForm("fr-dumps", b"missed FR dumps", rb"missed FR dumps from ranks \(\{" + _RANKS + rb"\}\)"),
    SignForm("fr-dumps", b"Missing dump files", rb"Missing dump files from ranks \{" + _RANKS + rb"\}"),
    SignForm("fr-alike", b"No errors found for this", rb"No errors found for this collective entry"),
    SignForm(
        "ras-counts", b"operation counts", rb"Communicator ranks have different (?P<of>\w+) operation counts"
    ),
    SignForm(
        "ras-gone", b"managing GPU", rb"Process (?P<process>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpu>[\d,-]+)"
    ),
    SignForm("main-thread", b'"MainThread"', rb'Thread (?:0x)?[0-9A-Fa-f]+ \((?P<state>idle|active)[^)]*\): "MainThread"'),
    *(
        SignForm(kind, mark, pattern, beside=True)
        for kind, mark, pattern in (
            ("snapshot", b" ranks:", rb"#(?P<sequence>\d+) (?P<state>started|finished) ranks:"),
            ("snapshot-ranks", b"started ", rb"^\s*\[" + _RANKS + rb"\] started (?P<op>[A-Z_]+)"),
            ("fr-missing", b"issing ranks", rb"[Mm]issing[ _]ranks(?: are)?:? \{" + _RANKS + rb"\}"),
            ("fr-group", b"group info: ", rb"group info: (?P<group>\S+)"),
            ("fr-op", b"collective: ", rb"^\s*(?:\S+ )*?collective: (?:\w+:)?(?P<op>[a-z_]+)$"),
            ("fr-error", b"Error type: ", rb"(?P<error>(?:Culprit rank \d+; )?Error type: .*)"),
            ("fr-frame", b" at ", rb"^\s*(?P<function>[\w<>.]+) at (?P<place>\S+\.py:\d+)$"),
            ("ras-count", b"ranks have launched", rb"(?P<ranks>\d+) ranks have launched up to operation (?P<count>\d+)"),
            ("ras-count", b"has launched up to", _RAS_RANK + rb"has launched up to operation (?P<count>\d+)" + _ON_NODE),
            ("ras-rank", b"managed by process", _RAS_RANK + rb"-- GPU \S+ managed by process \d+" + _ON_NODE),
            ("frame", b".py:", rb"^\s{2,}(?P<function>[\w<>.]+) \((?P<place>[^():]+:\d+)\)$"),
            ("thread", b"Thread ", rb'^Thread (?:0x)?[0-9A-Fa-f]+ \([^)]*\): "'),
            ("process", b"Process ", rb"^Process (?P<process>\d+): (?P<command>.*)"),
            ("world", b"world_size", rb"\b(?:dist_)?world_size[=:] ?(?P<world>\d+)"),
            ("world", b"world size", rb"(?<!parallel )\bworld size:? ?(?P<world>\d+)"),
            ("world", b"WORLD_SIZE", rb"\bWORLD_SIZE[=:] ?(?P<world>\d+)"),
            ("world", b"global_world_sizes", rb"global_world_sizes=\[(?P<world>\d+)"),
            ("world", b"processes: ", rb"\bNum processes: (?P<world>\d+)"),
            ("world", b"num_processes", rb"\bnum_processes[=:] ?(?P<world>\d+)"),
            ("world", b"nproc", rb"--(?:standalone|nnodes[= ]1)\b.*--nproc[_-]per[_-]node[= ](?P<world>\d+)"),
            ("world", b" ranks", rb"\b(?:on|with|across|of) (?P<world>\d+) ranks\b"),
            ("world", b"MEMBER: ", rb"MEMBER: \d+/(?P<world>\d+)"),
            ("world", b" processes", rb"Starting with (?P<world>\d+) processes"),
            ("ras-world", b"RUNNING", rb"^\s*\d+ +1 +\d+ +\d+ +(?P<world>\d+) +\d+ +RUNNING"),
        )
    ),
)  # fmt: skip
