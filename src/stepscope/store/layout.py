"""Every path inside a run folder. Nobody else joins path names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stepscope.core.dataclass import dataclass


class _Folder(Protocol):
    @property
    def root(self) -> Path: ...


class _At:
    """A file or folder by its name below the layout's root."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, layout: _Folder, _: type) -> Path:
        return layout.root / self.name


_HEAD_BYTES = 200


def holds_record(file: Path, kind: str, beside: tuple[str, ...] = ()) -> bool:
    """Return whether the file is a record of ours of this kind; other programs write files of the same names. One that is
    empty or cannot be read is ours where one of the names ``beside`` lies there: whoever reads it says what is wrong."""
    if not file.is_file():
        return False  # a pipe would be waited for
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError:
        head = b""
    if not head.strip(b" \r\n\t\0"):
        return any((file.parent / name).exists() for name in beside)
    return f'"stepscope.{kind}/'.encode() in head


class _Numbered(_At):
    """One of a rank (or a window) each, by its number; those of ranks are zero-padded so that they sort."""

    def __get__(self, layout: _Folder, _: type) -> Callable[[int], Path]:  # type: ignore[override]
        return lambda rank: layout.root / self.name.format(rank)


class _Sorted(_At):
    """All files whose names fit a pattern, sorted."""

    def __get__(self, layout: _Folder, _: type) -> Callable[[], tuple[Path, ...]]:  # type: ignore[override]
        return lambda: tuple(sorted(layout.root.glob(self.name)))


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Files of one cell. flight: of a rank's flight recorder, left when it had to leave."""

    root: Path

    spec = _At("spec.json")
    status = _At("status.json")
    traces = _At("trace")
    flights = _At("flight")
    samples = _Numbered("samples-{:05d}.jsonl")
    heartbeat = _Numbered("heartbeat-{:05d}")
    summary = _Numbered("rank-{:05d}.json")
    error = _Numbered("error-{:05d}.json")
    flight = _Numbered("flight/rank-{:05d}.json")
    trace = _Numbered("trace/rank-{:05d}.json.gz")

    def rank_files(self) -> tuple[Path, ...]:
        """Every file that ranks wrote: what an earlier attempt left behind."""
        patterns = ("samples-*.jsonl", "heartbeat-*", "rank-*.json", "error-*.json", "trace/*", "flight/*")
        return tuple(sorted(p for pattern in patterns for p in self.root.glob(pattern)))


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Files of one worker group. error: of a rank that failed outside any cell (start-up). joining: the nonce of a rank that
    a launcher has started (launch/join.py).
    """

    root: Path

    spec = _At("spec.json")
    launcher_log = _At("launcher.log")
    rank_logs = _At("logs")
    error = _Numbered("error-{:05d}.json")
    heartbeat = _Numbered("heartbeat-{:05d}")
    joining = _Numbered("joining-{:05d}")


@dataclass(frozen=True, slots=True)
class RunLayout:
    """A run folder. results_json: the one document of a matrix with sections. nccl_debug: NCCL's own logs, one file a rank.

    trace_files: of the traces of all cells.
    """

    root: Path

    run = _At("run.json")
    lock = _At("run.lock")
    environment = _At("environment.json")
    results_jsonl = _At("results.jsonl")
    results_json = _At("results.json")
    results_csv = _At("results.csv")
    report = _At("report")
    nccl_debug = _At("nccl-debug")
    summary_md = _At("report/summary.md")
    groups = _At("groups")
    trace_files = _Sorted("cells/*/trace/*")

    @property
    def is_there(self) -> bool:
        """Whether this is a run folder."""
        return holds_record(self.run, "run", beside=("cells", "groups", "results.jsonl"))

    @property
    def comm_run(self) -> RunLayout:
        """The sweep of collectives that a matrix brings: a run folder of its own."""
        return RunLayout(self.root / "comm")

    def cell(self, cell_id: str) -> CellLayout:
        return CellLayout(self.root / "cells" / cell_id)

    def group(self, group_id: str) -> GroupLayout:
        return GroupLayout(self.groups / group_id)


class _Beside:
    """The file of a process's own beside one of ``ProfileLayout.diaries``."""

    def __init__(self, kind: str, suffix: str) -> None:
        self.kind, self.suffix = kind, suffix

    def __call__(self, diary: Path) -> Path:
        return diary.with_name(diary.name.replace("diary-", f"{self.kind}-", 1)).with_suffix(self.suffix)


@dataclass(frozen=True, slots=True)
class ProfileLayout:
    """The output folder of ``stepscope profile`` and ``run``; the hook in the job writes into it by the same names.

    verdict: what the first screen says, as numbers (records/finding.py); derived. hook: what the hook is told, as JSON:
    also on hosts that the command line does not start itself. memory: the allocator's snapshots; there once a rank's
    history is kept. end: how the job ended. notices: who got a notice (launch/notices.py). stack_request: makes ranks
    of a job that stands still leave their stacks and flight recorders. port_samples: each host's network ports over time
    (records/hardware.py). unrecorded: ends of processes of which no step is recorded. failures: exceptions that nobody
    caught, one a process (records/profile.py).

    Of one of ``diaries``: what happened between its steps, the process's memory over time, whom it waited for, its GPUs and
    who used its processors over time (records/hardware.py), and how it ended, as Python saw it.
    """

    root: Path

    record = _At("profile.json")
    verdict = _At("verdict.json")
    control = _At(".stepscope")
    nccl_debug = _At("nccl-debug")
    memory = _At("memory")
    hook = _At(".stepscope/hook.json")
    end = _At(".stepscope/job-end.json")
    notices = _At(".stepscope/notices.jsonl")
    stack_request = _At(".stepscope/stack-request.json")
    request = _Numbered(".stepscope/request-{}.json")
    traces = _Numbered("window-{}")
    processes = _Sorted(".stepscope/process-*.json")
    ranks = _Sorted(".stepscope/rank-*.json")
    port_samples = _Sorted(".stepscope/ports-*.bin")
    unrecorded = _Sorted(".stepscope/end-*-p*.json")
    failures = _Sorted(".stepscope/failure-*.json")
    stacks = _Sorted(".stepscope/stack-*.txt")
    flights = _Sorted(".stepscope/flight-*.json")
    events_of = _Beside("events", ".jsonl")
    samples_of = _Beside("samples", ".bin")
    groups_of = _Beside("groups", ".json")
    devices_of = _Beside("devices", ".bin")
    load_of = _Beside("load", ".bin")
    end_of = _Beside("end", ".json")

    @property
    def is_there(self) -> bool:
        """Whether `profile` or `run` made this folder."""
        return holds_record(self.record, "profile", beside=(".stepscope",))

    def window_ranks(self, window: int) -> tuple[Path, ...]:
        return tuple(sorted(self.control.glob(f"window-{window}-rank-*.json")))

    def diaries(self, rank: int | None = None) -> tuple[Path, ...]:
        """List the step diaries, one a process that stepped (records/profile.py). rank: those of one; None: all."""
        return tuple(sorted(self.control.glob(f"diary-{'*' if rank is None else f'{rank:05d}-*'}.bin")))

    def windows(self) -> tuple[int, ...]:
        """List the numbers of the windows that left traces."""
        numbers = (folder.name.removeprefix("window-") for folder in self.root.glob("window-*") if folder.is_dir())
        return tuple(sorted(int(number) for number in numbers if number.isdigit()))


@dataclass(frozen=True, slots=True)
class DryLayout:
    """The output folder of a dry run; ``hook/stepscope_dry`` writes ranks and failures by the same names.

    rank, failure, log: of one rank of a world: what it recorded (DryRank), why it has no step (DryFailure), and what the
    script printed. others: folders of the same script with its wrappers forced otherwise. profile: of ranks of the host,
    what was measured on one (DryProfile).
    """

    root: Path

    record = _At("dryrun.json")
    profile = _At("profiled.json")
    control = _At(".stepscope")
    ranks = _Sorted(".stepscope/world-*-rank-??????.json")
    others = _Sorted("other-*")
    other = _Numbered("other-{}")

    @property
    def is_there(self) -> bool:
        """Whether a dry run made this folder."""
        return holds_record(self.record, "dry_run", beside=(".stepscope",))

    def rank(self, world: int, rank: int) -> Path:
        return self.control / f"world-{world:06d}-rank-{rank:06d}.json"

    def failure(self, world: int, rank: int) -> Path:
        return self.control / f"failure-{world:06d}-rank-{rank:06d}.json"

    def log(self, world: int, rank: int) -> Path:
        return self.root / f"world-{world}-rank-{rank}.log"


def profiled_job(window: Path) -> Path | None:
    """Return the folder of the job whose capture ``window`` is; None where it is none of ``stepscope profile``."""
    number = window.absolute().name.removeprefix("window-")
    job = window.absolute().parent
    ours = number.isdigit() and window.absolute() == ProfileLayout(job).traces(int(number))
    return job if ours and ProfileLayout(job).is_there else None


def shown_as(path: Path) -> Path:
    """Return the path that a capture is named by: the job's folder for its only window, else the path itself."""
    job = profiled_job(path)
    return path if job is None or len(ProfileLayout(job).windows()) > 1 else job
