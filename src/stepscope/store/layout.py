"""Every path inside a run folder. Nobody else joins path names."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Files of one cell; rank numbers are zero-padded so that they sort."""

    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def traces(self) -> Path:
        return self.root / "trace"

    def samples(self, rank: int) -> Path:
        return self.root / f"samples-{rank:05d}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        return self.root / f"heartbeat-{rank:05d}"

    def summary(self, rank: int) -> Path:
        return self.root / f"rank-{rank:05d}.json"

    def error(self, rank: int) -> Path:
        return self.root / f"error-{rank:05d}.json"

    @property
    def flights(self) -> Path:
        return self.root / "flight"

    def flight(self, rank: int) -> Path:
        """Return the file of a rank's flight recorder, left when it had to leave."""
        return self.flights / f"rank-{rank:05d}.json"

    def trace(self, rank: int) -> Path:
        return self.traces / f"rank-{rank:05d}.json.gz"

    def rank_files(self) -> tuple[Path, ...]:
        """Every file that ranks wrote: what an earlier attempt left behind."""
        patterns = ("samples-*.jsonl", "heartbeat-*", "rank-*.json", "error-*.json", "trace/*", "flight/*")
        return tuple(sorted(p for pattern in patterns for p in self.root.glob(pattern)))


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Files of one worker group."""

    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def launcher_log(self) -> Path:
        return self.root / "launcher.log"

    @property
    def rank_logs(self) -> Path:
        return self.root / "logs"

    def error(self, rank: int) -> Path:
        """Return the file of a rank that failed outside any cell (start-up)."""
        return self.root / f"error-{rank:05d}.json"

    def heartbeat(self, rank: int) -> Path:
        return self.root / f"heartbeat-{rank:05d}"

    def joining(self, rank: int) -> Path:
        """Return the file with the nonce of a rank that a launcher has started (launch/join.py)."""
        return self.root / f"joining-{rank:05d}"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """A run folder."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def results_jsonl(self) -> Path:
        return self.root / "results.jsonl"

    @property
    def results_json(self) -> Path:
        """The file with the one document of a matrix with sections."""
        return self.root / "results.json"

    @property
    def comm_run(self) -> RunLayout:
        """The sweep of collectives that a matrix brings: a run folder of its own."""
        return RunLayout(self.root / "comm")

    @property
    def results_csv(self) -> Path:
        return self.root / "results.csv"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def nccl_debug(self) -> Path:
        """The folder of NCCL's own logs, one file a rank."""
        return self.root / "nccl-debug"

    @property
    def summary_md(self) -> Path:
        return self.report / "summary.md"

    @property
    def groups(self) -> Path:
        return self.root / "groups"

    def cell(self, cell_id: str) -> CellLayout:
        return CellLayout(self.root / "cells" / cell_id)

    def trace_files(self) -> tuple[Path, ...]:
        """Files of the traces of all cells."""
        return tuple(sorted(path for traces in self.root.glob("cells/*/trace") for path in traces.iterdir()))

    def group(self, group_id: str) -> GroupLayout:
        return GroupLayout(self.groups / group_id)


@dataclass(frozen=True, slots=True)
class ProfileLayout:
    """The output folder of ``stepscope profile`` and ``run``; the hook in the job writes into it by the same names."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "profile.json"

    @property
    def verdict(self) -> Path:
        """The file of what the first screen says, as numbers (records/finding.py); derived."""
        return self.root / "verdict.json"

    @property
    def control(self) -> Path:
        return self.root / ".stepscope"

    @property
    def hook(self) -> Path:
        """The file of what the hook is told, as JSON: also on hosts that the command line does not start itself."""
        return self.control / "hook.json"

    @property
    def nccl_debug(self) -> Path:
        return self.root / "nccl-debug"

    @property
    def memory(self) -> Path:
        """The folder of the allocator's snapshots; there once a rank's history is kept."""
        return self.root / "memory"

    def request(self, window: int) -> Path:
        return self.control / f"request-{window}.json"

    def traces(self, window: int) -> Path:
        return self.root / f"window-{window}"

    def processes(self) -> tuple[Path, ...]:
        return tuple(sorted(self.control.glob("process-*.json")))

    def ranks(self) -> tuple[Path, ...]:
        return tuple(sorted(self.control.glob("rank-*.json")))

    def window_ranks(self, window: int) -> tuple[Path, ...]:
        return tuple(sorted(self.control.glob(f"window-{window}-rank-*.json")))

    def diaries(self, rank: int | None = None) -> tuple[Path, ...]:
        """List the step diaries, one a process that stepped (records/profile.py). rank: those of one; None: all."""
        return tuple(sorted(self.control.glob(f"diary-{'*' if rank is None else f'{rank:05d}-*'}.bin")))

    @staticmethod
    def events_of(diary: Path) -> Path:
        """Return the file of what happened between the steps of one of ``diaries``."""
        return _beside(diary, "events", ".jsonl")

    @staticmethod
    def samples_of(diary: Path) -> Path:
        """Return the file of a process's memory over time, for one of ``diaries``."""
        return _beside(diary, "samples", ".bin")

    @staticmethod
    def groups_of(diary: Path) -> Path:
        """Return the file of whom a process waited for, for one of ``diaries``."""
        return _beside(diary, "groups", ".json")

    @staticmethod
    def devices_of(diary: Path) -> Path:
        """Return the file of a process's GPUs over time (records/hardware.py), for one of ``diaries``."""
        return _beside(diary, "devices", ".bin")

    @staticmethod
    def load_of(diary: Path) -> Path:
        """Return the file of who used a process's processors over time (records/hardware.py), for one of ``diaries``."""
        return _beside(diary, "load", ".bin")

    def port_samples(self) -> tuple[Path, ...]:
        """List the files of each host's network ports over time (records/hardware.py)."""
        return tuple(sorted(self.control.glob("ports-*.bin")))

    @staticmethod
    def end_of(diary: Path) -> Path:
        """Return the file of how a process ended, as Python saw it, for one of ``diaries``."""
        return _beside(diary, "end", ".json")

    def unrecorded(self) -> tuple[Path, ...]:
        """List the files of the ends of processes of which no step is recorded."""
        return tuple(sorted(self.control.glob("end-*-p*.json")))

    def failures(self) -> tuple[Path, ...]:
        """List the files of exceptions that nobody caught, one a process (records/profile.py)."""
        return tuple(sorted(self.control.glob("failure-*.json")))

    @property
    def end(self) -> Path:
        """The file of how the job ended."""
        return self.control / "job-end.json"

    @property
    def stack_request(self) -> Path:
        """The file that makes ranks of a job that stands still leave their stacks and flight recorders."""
        return self.control / "stack-request.json"

    def stacks(self) -> tuple[Path, ...]:
        return tuple(sorted(self.control.glob("stack-*.txt")))

    def flights(self) -> tuple[Path, ...]:
        return tuple(sorted(self.control.glob("flight-*.json")))

    def windows(self) -> tuple[int, ...]:
        """List the numbers of the windows that left traces."""
        numbers = (folder.name.removeprefix("window-") for folder in self.root.glob("window-*") if folder.is_dir())
        return tuple(sorted(int(number) for number in numbers if number.isdigit()))


def profiled_job(window: Path) -> Path | None:
    """Return the folder of the job whose capture ``window`` is; None where it is none of ``stepscope profile``."""
    number = window.absolute().name.removeprefix("window-")
    job = window.absolute().parent
    ours = number.isdigit() and window.absolute() == ProfileLayout(job).traces(int(number))
    return job if ours and ProfileLayout(job).record.is_file() else None


def _beside(diary: Path, kind: str, suffix: str) -> Path:
    return diary.with_name(diary.name.replace("diary-", f"{kind}-", 1)).with_suffix(suffix)


def shown_as(path: Path) -> Path:
    """Return the path that a capture is named by: the job's folder for its only window, else the path itself."""
    job = profiled_job(path)
    return path if job is None or len(ProfileLayout(job).windows()) > 1 else job
