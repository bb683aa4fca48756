"""The evidence of an end that a text holds, from its signs: what each process that it has lines of came to.

Ranks without a line are not accused: their output may be elsewhere. A text seldom says when a process failed; what has no
time comes last, and of several the one that a launcher saw fail first is before the others.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.records.imported import Sign
from stepscope.records.profile import End
from stepscope.results.ends.evidence import EndEvidence, Fate, Launcher, Sort, class_name, signal_of, sort_of
from stepscope.results.ends.judge import judge
from stepscope.results.ends.stacks import StackFrame

_LAUNCHERS = (
    "ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError", "RayTaskError",
)  # fmt: skip
_WAITED = ("timeout", "timeout-cut", "group-status", "stuck-watchdog", "barrier-reached", "gloo-timeout")
_LOST = (
    "nccl-closed",
    "nccl-aborted",
    "nccl-proxy",
    "store-timeout",
    "store-no-route",
    "store-refused",
    "store-clients",
    "store-keys",
    "store-late",
    "store-barrier",
    "store-id",
    "store-lost",
    "store-broken",
    "gloo-mesh",
    "ucx-retry",
    "aborted-by",
    "nccl-broken",
    "gloo-closed",
)
_FAILED = (
    "loader-killed", "unfinished-reduction", "no-gradient", "no-gradient-number", "device-assert", "device-error",
    "xid", "switch-xid", "worker-died", "ready-twice", "node-lost", "evicted", "shm-full", "kernel-resources",
    "gloo-interface", "heap",
    "store-port", "store-name",
)  # fmt: skip
_MEMORY: dict[str, Sort] = {"oom": "oom", "host-oom": "host_oom"}
_OF_ERRORS = ("exception", "traceback", "frame-of", *_MEMORY, *_FAILED)
_HOW = (
    (r"Out Of Memory|oom", "host_oom", -signal.SIGKILL), (r"Killed|signal 9", "failed", -signal.SIGKILL),
    (r"Segmentation|signal 11", "failed", -signal.SIGSEGV), (r"Bus error|signal 7", "failed", -signal.SIGBUS),
    (r"Abort|signal 6", "failed", -signal.SIGABRT),
    (r"[Ii]llegal inst|signal 4", "failed", -signal.SIGILL), (r"Terminated|signal 15", "stopped", -signal.SIGTERM),
)  # fmt: skip
_TIME = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?")
_SHORT_TIME = re.compile(r"(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?")


@record
class TextFate:
    """How one process of a text ended, and the line that says so. local_rank: where the text has no other."""

    fate: Fate
    sign: Sign
    local_rank: int | None = None


@record
class TextEnd:
    """The end of a text as judged. first: the process at fault, or that noticed first. alike: ranks of which the text says
    the very same. others: what else is known of processes that ended, in the order of the text. stopped: a cancellation."""

    end: End
    first: TextFate | None
    alike: tuple[int, ...] = ()
    others: tuple[TextFate, ...] = ()
    stopped: Sign | None = None

    @property
    def by_itself(self) -> bool:
        """Whether a process failed by itself, so that waits of others follow from it."""
        return self.first is not None and self.first.fate.sort in ("oom", "host_oom", "failed")


def text_end(signs: Iterable[Sign]) -> TextEnd | None:
    """Judge what signs tell of an end; None where they tell of none."""
    signs = with_ranks(signs)
    ends = _text_fates(signs)
    stopped = [sign for sign in signs if sign.kind == "cancelled" and not _after_failure(sign, ends)]
    if not ends and not stopped:
        return None
    root = [number for number, sign in enumerate(signs) if sign.kind == "child-root"]
    noticed = next((sign.rank for sign in signs[root[-1] :] if sign.kind == "child-rank"), None) if root else None
    if noticed is None:
        noticed = next((one.fate.rank for one in ends if one.fate.code is not None), None)
    evidence = EndEvidence(
        code=None,
        fates=[one.fate for one in ends],
        launcher=Launcher(noticed=noticed),
        signals=[(int(sign.values.get("signal", signal.SIGTERM)), int(_signal_time(sign, ends))) for sign in stopped],
        oom_kills=sum(int(sign.values.get("kills", 1)) for sign in signs if sign.kind == "kernel-oom"),
    )
    end = judge(evidence)
    culprits = evidence.first("oom", "host_oom") or evidence.first("failed") or evidence.first("victim")
    if end.kind in ("ok", "short", "no-steps", "hang"):
        return TextEnd(end=end, first=None) if end.kind == "hang" else None
    if end.kind == "interrupted":
        return TextEnd(end=end, first=None, others=tuple(ends), stopped=stopped[0])
    first = next(one for one in ends if one.fate is culprits[0])
    alike = {
        one.fate.rank
        for one in ends
        if one.fate.exception is not None
        and (one.fate.exception, one.fate.message, one.fate.place)
        == (first.fate.exception, first.fate.message, first.fate.place)
    }
    return TextEnd(
        end=end,
        first=first,
        alike=tuple(sorted(rank for rank in {first.fate.rank, *alike} if rank is not None)),
        others=tuple(one for one in ends if one is not first),
    )


def with_ranks(signs: Iterable[Sign]) -> tuple[Sign, ...]:
    """Return signs, errors that no prefix gives a rank with that of the table that they are in, or of the only one in it."""
    signs = tuple(signs)
    rows = {sign.rank for sign in signs if sign.kind == "child-rank"}
    ranked = any(sign.rank is not None for sign in signs if sign.kind in _OF_ERRORS)
    rank = next(iter(rows)) if len(rows) == 1 and not ranked else None
    of_block = False
    filled = []
    for sign in signs:
        if sign.kind in ("child-rank", "child-number"):
            rank = int(sign.values["local_rank"]) if sign.kind == "child-number" else sign.rank
            of_block = True
        elif sign.kind in ("child-time", "child-root") and of_block:
            rank = None
        filled.append(replace(sign, rank=rank) if sign.rank is None and sign.kind in _OF_ERRORS else sign)
    return tuple(filled)


def _after_failure(sign: Sign, ends: Iterable[TextFate]) -> bool:
    """Whether a process had failed before, as the order of lines has it: schedulers then cancel the rest."""
    return any(
        one.fate.sort in ("oom", "host_oom", "failed") and one.sign.source == sign.source and one.sign.line < sign.line
        for one in ends
    )


def _signal_time(sign: Sign, ends: Sequence[TextFate]) -> float:
    """Return when a signal came; without a time, after all that has one."""
    at_ns = time_ns(sign.time)
    if not math.isinf(at_ns):
        return at_ns
    return max((one.fate.at_ns for one in ends if not math.isinf(one.fate.at_ns)), default=0.0) + 1


def time_ns(text: str | None) -> float:
    """Return a time of a log; infinite where there is none. Logs of torch leave out the year: it is 1970 then."""
    if text is not None and (match := _TIME.match(text)):
        year, *rest = match.groups()
    elif text is not None and (match := _SHORT_TIME.match(text)):
        year, rest = "1970", list(match.groups())
    else:
        return math.inf
    *parts, fraction = rest
    try:
        moment = datetime(int(year), *map(int, parts), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return math.inf
    return moment.timestamp() * 1e9 + float(f"0.{fraction or 0}") * 1e9


Stream = tuple[str, int | None, str | None]


@dataclass
class _Row:
    """A row of torchrun's table."""

    sign: Sign
    rank: int
    host: str
    time: str | None
    code: int | None = None
    process: int = 0


@dataclass
class _Read:
    """What was read of signs so far. groups: of each stream, exceptions chained to each other together."""

    groups: dict[Stream, list[list[TextFate]]] = field(default_factory=dict)
    frames: dict[Stream, list[StackFrame]] = field(default_factory=dict)
    chained: set[Stream] = field(default_factory=set)
    rows: list[_Row] = field(default_factory=list)
    codes: list[TextFate] = field(default_factory=list)
    waited: dict[int | None, TextFate] = field(default_factory=dict)
    block: dict[str, str] = field(default_factory=dict)


def _text_fates(signs: Sequence[Sign]) -> list[TextFate]:
    """Return how each process of a log ended, each once: what its own lines say goes before a launcher's table."""
    read = _Read()
    for sign in signs:
        _take_sign(read, sign)
    of_rank = grouped(map(_of_stream, read.groups.values()), lambda one: one.fate.rank)
    ends: list[TextFate] = []
    rows = {row.rank: row for row in read.rows}
    for own_rank, fates in of_rank.items():
        row = rows.pop(own_rank, None) if own_rank is not None else None
        ends += [one if row is None else replace(one, fate=_with_row(one.fate, row)) for one in fates]
    aborted = read.waited and any(signal_of(row.code) == signal.SIGABRT for row in rows.values())
    unnamed = any(
        one.fate.rank is None and one.fate.sort == "failed" and "exception" in one.sign.values for one in ends
    )
    for row in rows.values():
        if unnamed and row.code == 1:  # one of these rows raised it, or all did
            continue
        if row.rank in read.waited or (aborted and signal_of(row.code) == signal.SIGABRT):
            read.waited.setdefault(row.rank, TextFate(sign=row.sign, fate=Fate(rank=row.rank, sort="timeout")))
            continue
        fate = Fate(
            rank=row.rank,
            process=(row.host, row.process),
            sort=sort_of(None, None, row.code or 1),
            code=row.code,
            at_ns=time_ns(row.time),
        )
        ends.append(TextFate(fate=fate, sign=replace(row.sign, host=row.host or row.sign.host, time=row.time)))
    listed = {row.process for row in read.rows}
    own = {one.fate.rank for one in ends}
    codes = [one for one in read.codes if one.fate.process[1] not in listed or not one.fate.process[1]]
    if any(one.fate.rank is not None or one.local_rank is not None for one in codes) or ends:
        codes = [one for one in codes if one.fate.rank is not None or one.local_rank is not None]
    ranked = bool(own - {None})
    if any(one.sign.kind == "node-lost" for one in ends):  # the launcher then kills the rest
        codes = [
            replace(one, fate=replace(one.fate, sort="stopped")) if signal_of(one.fate.code) == signal.SIGKILL else one
            for one in codes
        ]
    for one in codes:
        if read.waited and signal_of(one.fate.code) == signal.SIGABRT:
            continue
        if not (one.fate.rank in own if one.fate.rank is not None else ranked and one.fate.code == 1):
            ends.append(one)
    own = {one.fate.rank for one in ends}
    ends += [one for rank, one in read.waited.items() if rank not in own]
    if not ends and (kills := [sign for sign in signs if sign.kind == "kernel-oom"]):
        process = int(kills[0].values.get("process", 0))
        ends.append(
            TextFate(
                sign=kills[0], fate=Fate(rank=None, process=(kills[0].host or "", process), sort="host_oom", code=-9)
            )
        )
    return ends


def _with_row(fate: Fate, row: _Row) -> Fate:
    at_ns = time_ns(row.time) if math.isinf(fate.at_ns) else fate.at_ns
    return replace(fate, process=(row.host or fate.process[0], row.process), code=row.code, at_ns=at_ns)


def _of_stream(groups: list[list[TextFate]]) -> TextFate:
    """Return what a process ended of: the beginning of its last chain of exceptions, of those that others did not cause."""
    firsts = [group[0] for group in groups]
    for sorts in (("oom", "host_oom"), ("failed",)):
        if of := [one for one in firsts if one.fate.sort in sorts]:
            return of[-1]
    return next((one for one in reversed(firsts) if "exception" in one.sign.values), firsts[-1])


def _take_sign(read: _Read, sign: Sign) -> None:
    """Add one sign to what is read, by its kind."""
    kind, values = sign.kind, sign.values
    stream = (sign.source, sign.rank, sign.host if sign.rank is None else None)
    if kind == "traceback":
        read.frames[stream] = []
    elif kind == "chained":
        read.chained.add(stream)
    elif kind == "frame-of":
        frame = StackFrame(file=values["file"], line=int(values["at"]), name=values.get("function", "<module>"))
        read.frames.setdefault(stream, []).append(frame)
    elif kind == "exception" or kind in _MEMORY or kind in _FAILED or kind in _LOST:
        _take_failure(read, sign, stream)
    elif kind in _WAITED:
        _take_wait(read, sign)
    elif kind.startswith("child-"):
        _take_child(read, sign)
    elif kind in ("launched-code", "some-code", "task-ended", "task-code", "crashed"):
        _take_code(read, sign)


def _take_wait(read: _Read, sign: Sign) -> None:
    fate = Fate(rank=sign.rank, sort="timeout", at_ns=time_ns(sign.time))
    read.waited.setdefault(sign.rank, TextFate(sign=sign, fate=fate))


def _take_failure(read: _Read, sign: Sign, stream: Stream) -> None:
    """Add a failure to what is read: its sort, and the place that the traceback before it names."""
    exception, message = sign.values.get("exception"), sign.values.get("message", sign.text)
    if exception is not None and class_name(exception) in _LAUNCHERS:
        read.frames.pop(stream, None)
        return
    sort: Sort = sort_of(exception, message, None) if sign.kind == "exception" else "failed"
    if sign.kind in _MEMORY:
        sort = _MEMORY[sign.kind]
    elif sign.kind in _LOST or "Rendezvous" in (exception or ""):
        sort = "victim"
    elif exception == "ray.exceptions.OutOfMemoryError":
        sort = "host_oom"
    if sort == "timeout":
        _take_wait(read, sign)
        return
    frames = read.frames.pop(stream, [])
    at = next((frame for frame in reversed(frames) if frame.own), frames[-1] if frames else None)
    place = None if at is None else f"{at.file}:{at.line} in {at.name}"
    fate = Fate(
        rank=sign.rank,
        process=(sign.host or "", 0),
        sort=sort,
        at_ns=time_ns(sign.time),
        exception=exception or sign.kind,
        message=sign.values.get("message"),
        place=place,
    )
    groups = read.groups.setdefault(stream, [])
    if not groups or stream not in read.chained:
        groups.append([])
    groups[-1].append(TextFate(fate=fate, sign=sign))
    read.chained.discard(stream)


def _take_child(read: _Read, sign: Sign) -> None:
    """Take a line of torchrun's table: time, host, rank and exit code of one rank."""
    match sign.kind:
        case "child-time":
            read.block = {"time": sign.time or ""}
        case "child-host":
            read.block["host"] = sign.host or ""
        case "child-rank":
            row = _Row(sign=sign, rank=sign.rank or 0, host=read.block.get("host", ""), time=read.block.get("time"))
            if all(other.rank != row.rank for other in read.rows):
                read.rows.append(row)
        case "child-code" if read.rows:
            read.rows[-1].code, read.rows[-1].process = int(sign.values["code"]), int(sign.values["process"])


def _take_code(read: _Read, sign: Sign) -> None:
    """Take a line by which a launcher says how a process, or several of srun's tasks, ended."""
    values = sign.values
    code = int(values["code"]) if "code" in values else None
    if "signal" in values:
        code = -getattr(signal, values["signal"], signal.SIGKILL)
    sort = sort_of(None, None, code)
    if "how" in values:
        sort, code = next(
            ((s, number) for pattern, s, number in _HOW if re.search(pattern, values["how"], re.IGNORECASE)),
            ("failed", int(digits[-1]) if (digits := re.findall(r"\d+", values["how"])) else None),
        )
    if sign.kind == "task-code":
        if read.codes and read.codes[-1].sign.kind == "task-ended":
            last_code = read.codes[-1]
            sort = sort if "how" in values else sort_of(None, None, code)
            read.codes[-1] = replace(last_code, fate=replace(last_code.fate, code=code, sort=sort))
        return
    process = (sign.host or "", int(values.get("process", 0)))
    local = values.get("local_rank")
    for rank in _task_numbers(values["tasks"]) if "tasks" in values else [sign.rank]:
        fate = Fate(rank=rank, process=process, sort=sort, code=code, at_ns=time_ns(sign.time))
        local_rank = int(local) if local is not None and rank is None else None
        read.codes.append(TextFate(fate=fate, sign=sign, local_rank=local_rank))


def _task_numbers(text: str) -> list[int]:
    """Return the tasks of ``0-3,7``; no more than 4096."""
    tasks: list[int] = []
    for part in text.split(","):
        begin, _, end = part.partition("-")
        if begin.isdigit():
            tasks += range(int(begin), int(end or begin) + 1 if (end or begin).isdigit() else int(begin) + 1)
    return tasks[:4096]
