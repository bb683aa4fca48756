"""A group's ranks on one of several hosts: started here by torchrun, their files sent to the command as they change.

The ranks end when the command says so, when its stream ends, or when it has been silent for too long (a cut cable shows no
end): no rank outlives the command.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from stepscope.core.errors import Interrupted
from stepscope.core.forks import stop_signals_raise
from stepscope.core.places import cache_dir
from stepscope.launch import torchrun
from stepscope.launch.hosts import messages
from stepscope.launch.hosts.messages import HostMessage
from stepscope.launch.torchrun import Launched, Node
from stepscope.records import codec
from stepscope.records.cell import GroupSpec
from stepscope.store.layout import GroupLayout, RunLayout
from stepscope.store.writer import make_dir, write_record

LOOK_S = 0.2
STOP_GRACE_S = 3.0
SILENCE_S = 45.0
"""The command sends a sign of life every few seconds; one that is gone for so long is gone."""
CHUNK_BYTES = 1 << 20


def run_ranks(question: HostMessage, read: BinaryIO, write: BinaryIO) -> int:
    """Run this host's ranks of a group to their end."""
    folder = Path(tempfile.mkdtemp(prefix="stepscope-ranks-"))
    layout = RunLayout(folder)
    asked = codec.decode(question.body, GroupSpec, source="the command's question")
    files = layout.group(asked.group_id)
    cache = str(cache_dir(os.environ))
    write_record(files.spec, replace(asked, run_dir=str(folder), cache_dir=cache))
    mirror = Mirror(folder, files, name=question.fields["name"], first_rank=question.fields["first_rank"])
    lifeline = Lifeline(read)
    launched: Launched | None = None
    try:
        with suppress(Interrupted), stop_signals_raise("stopped"):
            launched = _start_ranks(files, question.fields, asked, folder)
            while launched.process.poll() is None and not lifeline.stop.wait(LOOK_S):
                mirror.send(write)
    finally:
        if launched is not None:
            torchrun.stop(launched, grace_s=STOP_GRACE_S)
        with suppress(OSError):  # the command may be gone
            mirror.send(write)
            messages.send(write, "ended", code=None if launched is None else launched.process.returncode)
        shutil.rmtree(folder, ignore_errors=True)
        lifeline.done.set()
    return 0


def _start_ranks(files: GroupLayout, asked: Mapping[str, Any], spec: GroupSpec, folder: Path) -> Launched:
    """Start the ranks of this host, in its own run folder."""
    node = Node(rank=asked["node"], nodes=asked["nodes"], address=asked["address"], port=asked["port"])
    extra = {name: _moved_path(value, spec.run_dir, folder) for name, value in asked["env"].items()}
    for value in extra.values():
        if value.startswith(str(folder)):
            make_dir(Path(value).parent)
    environ = torchrun.environment(
        {**_interface_variables(asked["interface"]), **os.environ},
        threads_per_rank=spec.threads_per_rank,
        extra=extra,
    )
    make_dir(files.rank_logs)
    line = torchrun.command(files.spec, world_size=asked["ranks"], log_dir=files.rank_logs, node=node)
    return torchrun.launch(line, files.launcher_log, environ)


def _interface_variables(name: str | None) -> dict[str, str]:
    """What makes gloo and NCCL use the interface to the first host, unless this host's own variables name another."""
    if name is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def _moved_path(value: str, run_dir: str, folder: Path) -> str:
    """A path in the command's run folder is one in this host's."""
    return str(folder) + value.removeprefix(run_dir) if value.startswith(f"{run_dir}/") else value


class Lifeline:
    """Watches the command's stream: ``stop`` is set when it ends or is silent for too long.

    A main thread that cannot stop the ranks then, because its own writing hangs, is given a while; the process ends, and
    the ranks with it.
    """

    def __init__(self, read: BinaryIO) -> None:
        self.stop, self.done = threading.Event(), threading.Event()
        self._descriptor = read.fileno()
        threading.Thread(target=self._watch, name="stepscope-lifeline", daemon=True).start()

    def _watch(self) -> None:
        """Stop the ranks where the command falls silent; end by force where they do not stop."""
        while select.select([self._descriptor], [], [], SILENCE_S)[0]:
            if not os.read(self._descriptor, 4096):
                break
        self.stop.set()
        if not self.done.wait(4 * STOP_GRACE_S):
            os._exit(1)


class Mirror:
    """Sends the files of a run folder that have changed, each as a message ``file`` or several.

    A file that has grown is sent from where it ended; another one, such as one that took its place, as a whole. Final
    records of ranks go last: who sees one has what it stands for.
    """

    def __init__(self, folder: Path, files: GroupLayout, *, name: str, first_rank: int) -> None:
        self._folder, self._files = folder, files
        self._name, self._first_rank = name, first_rank
        self._sent: dict[Path, tuple[int, int, int]] = {}

    def send(self, write: BinaryIO) -> None:
        changed = [(path, stat) for path, stat in self._all() if self._sent.get(path) != _stat_mark(stat)]
        for path, _ in sorted(changed, key=lambda entry: entry[0].name.startswith(("rank-", "error-"))):
            with suppress(FileNotFoundError):
                self._send_file(write, path)

    def _all(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files of the run folder with their state, hidden ones and the spec left out."""
        for root, _, names in os.walk(self._folder):
            for name in names:
                path = Path(root, name)
                if name.startswith(".") or path == self._files.spec:
                    continue
                with suppress(OSError):
                    yield path, path.stat()

    def _send_file(self, write: BinaryIO, path: Path) -> None:
        """Send what a file has grown by, or all of it where it is another one."""
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            inode, _, size = self._sent.get(path, (0, 0, 0))
            begin = size if inode == stat.st_ino and size <= stat.st_size else 0
            file.seek(begin)
            at = begin
            while True:
                part = file.read(min(CHUNK_BYTES, stat.st_size - at))
                last = at + len(part) >= stat.st_size or not part
                messages.send(write, "file", part, path=self._shown(path), at=at, append=begin > 0, last=last)
                at += len(part)
                if last:
                    break
        self._sent[path] = _stat_mark(stat)

    def _shown(self, path: Path) -> str:
        """Say where the file belongs in the command's run folder: torchrun's logs are by rank there, not by local rank."""
        logs = self._files.rank_logs
        if path == self._files.launcher_log:
            path = logs / self._name / path.name
        elif path.is_relative_to(logs):
            parts = list(path.relative_to(logs).parts)
            parts[0] = self._name
            if len(parts) > 3 and parts[2].isdigit():
                parts[2] = str(self._first_rank + int(parts[2]))
            path = logs.joinpath(*parts)
        return path.relative_to(self._folder).as_posix()


def _stat_mark(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
