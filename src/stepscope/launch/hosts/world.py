"""``python -m stepscope.launch.hosts.world``: a worker group whose ranks are on several hosts.

Starts each host's ranks through its agent, writes the files that come back into the run folder of this machine, and ends
all of them together. For the one who supervises the group it is what torchrun is for a group on one host: the contract is
that of launch/torchrun.py.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError, ExitCode, Interrupted, StepscopeError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.processes import die_with_parent
from stepscope.launch import torchrun
from stepscope.launch.ends.cell import leave_word
from stepscope.launch.hosts.conversation import Conversation, HostLost
from stepscope.launch.hosts.messages import HostMessage
from stepscope.launch.hosts.session import Reach
from stepscope.launch.hosts.survey import HostWorld, on_all, open_sessions
from stepscope.records import codec
from stepscope.records.cell import GroupSpec
from stepscope.records.samples import Heartbeat, RankError
from stepscope.store.layout import GroupLayout, RunLayout
from stepscope.store.reader import read_record
from stepscope.store.writer import make_dir, write_bytes

VARIABLE = "STEPSCOPE_HOST_WORLD"
"""The variable that carries the world. An argument would be seen by every user of the machine, with the ranks' variables."""

SIGN_OF_LIFE_S = 5.0
LAST_WORDS_S = 3.0
"""How long the others go on after one host's failure: time for their ranks to say theirs."""
STOP_S = 4.5
"""How long the hosts have to stop: less than a controller gives this process, more than the agents give the ranks."""
ANSWER_S = 30.0


def start(files: GroupLayout, world: HostWorld, *, spec: GroupSpec, extra_env: Mapping[str, str]) -> torchrun.Launched:
    """Start a worker group on ``world``; end it with torchrun.stop. Raises MissingError when its log cannot be written."""
    make_dir(files.rank_logs)
    ranks = world.placed(spec.world_size, spec.device)
    question = {
        "spec": str(files.spec),
        "ssh": world.reach.ssh,
        "python": world.reach.python,
        "address": world.address,
        "env": dict(extra_env),
        "hosts": [
            {"name": host.name, "ranks": number, "interface": host.interface}
            for host, number in zip(world.hosts, ranks, strict=True)
            if number
        ],
    }
    line = [sys.executable, "-m", "stepscope.launch.hosts.world"]
    return torchrun.launch(line, files.launcher_log, {**os.environ, VARIABLE: json.dumps(question)})


def lost_host(files: GroupLayout) -> HostLost | None:
    """Return the host whose loss ended a group, or None when something else did."""
    for path in sorted(files.root.glob("error-*.json")):
        error = read_record(path, RankError)
        if error.traceback == HostLost.__name__:
            return HostLost(error.host, error.exception.partition(": ")[2], fix=error.fix)
    return None


@dataclass(slots=True)
class HostPart:
    """A host of this group: its ranks, and how its part of the group is. clock_ns: its clock less this machine's."""

    name: str
    session: Conversation
    first_rank: int
    ranks: int
    clock_ns: int = 0
    over: bool = False
    code: int | None = None
    last: Heartbeat | None = None


def main() -> int:
    """Run the world and return the exit code: 0; 1 when ranks failed; 3 when a host was lost; 143 and so on when told to
    stop."""
    die_with_parent(signal.SIGTERM)
    asked = json.loads(os.environ.pop(VARIABLE))
    spec_path = Path(asked["spec"])
    spec = read_record(spec_path, GroupSpec)
    layout = RunLayout(Path(spec.run_dir))
    files = layout.group(spec.group_id)
    try:
        with stop_signals_raise("stopped"), ExitStack() as stack:
            return _run_world(asked, spec, spec_path.read_bytes(), layout, stack)
    except HostLost as error:
        sys.stderr.write(f"{error}\n")
        names = [host["name"] for host in asked["hosts"]]
        first = sum(host["ranks"] for host in asked["hosts"][: names.index(error.host)]) if error.host in names else 0
        _leave_word(files, first, error, None)
        return error.exit_code
    except Interrupted as stop:
        return stop.exit_code
    except StepscopeError as error:
        sys.stderr.write(f"{error}\n")
        _leave_word(files, 0, error, None)
        return error.exit_code


def _run_world(asked: Mapping[str, Any], spec: GroupSpec, spec_text: bytes, layout: RunLayout, stack: ExitStack) -> int:
    """Run the ranks of all hosts to their end; return the exit code."""
    inbox: queue.Queue[tuple[Conversation, HostMessage | None]] = queue.Queue(64)
    reach = Reach(ssh=tuple(asked["ssh"]), python=asked["python"])
    sessions = open_sessions([host["name"] for host in asked["hosts"]], reach, stack)
    clocks = on_all(sessions, clock_offset_ns)
    port = sessions[0].ask("port", timeout_s=ANSWER_S).fields["port"]
    members, first = [], 0
    for number, (session, host, (clock_ns, _)) in enumerate(zip(sessions, asked["hosts"], clocks, strict=True)):
        members.append(HostPart(host["name"], session, first, host["ranks"], clock_ns))
        session.forward_to(inbox)
        session.send(
            "ranks", spec_text, name=host["name"], first_rank=first, ranks=host["ranks"], node=number,
            nodes=len(sessions), address=asked["address"], port=port, interface=host["interface"], env=asked["env"],
        )  # fmt: skip
        first += host["ranks"]
    files = layout.group(spec.group_id)
    pump = Pump(members, inbox, layout)
    try:
        pump.until_over()
    finally:
        pump.stop()
    failed = [member for member in pump.ended if member.code]
    for member in (*failed[1:], *failed[:1]):  # the verdict takes the last report for the first failure
        with suppress(OSError):
            sys.stdout.write((files.rank_logs / member.name / files.launcher_log.name).read_text(errors="replace"))
    sys.stdout.flush()
    if pump.lost is not None:
        member, error = pump.lost
        sys.stderr.write(f"{error}\n")
        _leave_word(files, member.first_rank, error, member.last)
        return error.exit_code
    return ExitCode.BUG if failed else ExitCode.OK


def clock_offset_ns(session: Conversation) -> tuple[int, int]:
    """Return (the host's clock less this machine's, by how much that may be wrong): from the fastest of 7 answers.

    The answer was written between question and arrival: half their distance is the most that the offset is off by.
    """
    estimates = []
    for _ in range(7):
        asked = time.time_ns()
        theirs = session.ask("clock", timeout_s=ANSWER_S).fields["time_ns"]
        arrived = time.time_ns()
        estimates.append((theirs - (asked + arrived) // 2, (arrived - asked + 1) // 2))
    return min(estimates, key=lambda estimate: estimate[1])


class Pump:
    """Takes what the hosts send until all of them have ended, one has failed, or one is lost."""

    def __init__(
        self,
        members: Sequence[HostPart],
        inbox: queue.Queue[tuple[Conversation, HostMessage | None]],
        layout: RunLayout,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended: list[HostPart] = []
        self.lost: tuple[HostPart, HostLost] | None = None
        self._members = {id(member.session): member for member in members}
        self._inbox = inbox
        self._layout = layout
        self._now = now
        self._stopping = False

    def until_over(self) -> None:
        """Take messages until all hosts are over, one is lost, or ranks outlive a failure."""
        failed_at: float | None = None
        sign_at = 0.0
        while self.lost is None and not all(member.over for member in self._members.values()):
            now = self._now()
            if failed_at is None and any(member.code for member in self.ended):
                failed_at = now
            if failed_at is not None and now - failed_at > LAST_WORDS_S:
                return
            if now >= sign_at:
                sign_at = now + SIGN_OF_LIFE_S
                for member in self._members.values():
                    self._sign(member)
            self._take(timeout_s=0.5)

    def stop(self) -> None:
        """End what still runs; what its ranks have written until then still arrives."""
        self._stopping = True
        limit = self._now() + STOP_S
        for member in self._members.values():
            member.session.hang_up()
        while not all(member.over for member in self._members.values()) and self._now() < limit:
            self._take(timeout_s=0.2)

    def _sign(self, member: HostPart) -> None:
        """Tell a host that the command is still there."""
        if member.over:
            return
        try:
            member.session.send("here")
        except HostLost as error:
            self._lose(member, error)

    def _take(self, *, timeout_s: float) -> None:
        """Handle the next message, if one comes in time."""
        try:
            session, message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        member = self._members[id(session)]
        if message is None:
            if not member.over:
                self._lose(member, session.lost())
        elif message.kind == "file":
            self._store(member, message)
        elif message.kind == "ended":
            member.over, member.code = True, message.fields["code"]
            self.ended.append(member)

    def _lose(self, member: HostPart, error: HostLost) -> None:
        member.over = True
        if self.lost is None and not self._stopping:
            self.lost = (member, error)

    def _store(self, member: HostPart, message: HostMessage) -> None:
        """Write a file that a host sent. Raises DataError for a path outside the run folder."""
        path = self._layout.root / message.fields["path"]
        if not path.resolve().is_relative_to(self._layout.root.resolve()):
            raise DataError(f"{member.name} sent a file outside the run folder: {message.fields['path']}")
        body = self._on_this_clock(member, path.name, message.body)
        if message.fields["append"]:
            with path.open("ab") as file:
                file.write(body)
            return
        if message.fields["at"] == 0 and message.fields["last"]:
            write_bytes(path, body)
            return
        make_dir(path.parent)
        part = path.with_name(f".{path.name}.part")
        with part.open("ab" if message.fields["at"] else "wb") as file:
            file.write(body)
        if message.fields["last"]:
            part.replace(path)

    def _on_this_clock(self, member: HostPart, name: str, body: bytes) -> bytes:
        """Return the file with the times of heartbeats and errors by this machine's clock: they are compared with it and
        each other."""
        with suppress(DataError):
            if name.startswith("heartbeat-"):
                beat = codec.decode(body, Heartbeat, source=name)
                member.last = beat
                shifted = {
                    key: value - member.clock_ns
                    for key in ("time_ns", "moved_ns", "entered_ns")
                    if (value := getattr(beat, key))
                }
                return codec.encode_line(replace(beat, **shifted), header=True)
            if name.startswith("error-"):
                error = codec.decode(body, RankError, source=name)
                return codec.encode(replace(error, time_ns=error.time_ns - member.clock_ns))
        return body


def _leave_word(files: GroupLayout, rank: int, error: StepscopeError, last: Heartbeat | None) -> None:
    """Leave word in the name of a lost host's first rank: no rank of it can say why it is gone."""
    lost: dict[str, Any] = {}
    if isinstance(error, HostLost):  # before what other ranks say because of it
        lost = {"host": error.host, "traceback": HostLost.__name__, "time_ns": 0}
    if last is not None:
        lost |= {"phase": last.phase, "step": last.step}
    why = "" if error.why is None else f" ({error.why})"
    leave_word(files.error(rank), error, f"{error.what}{why}", rank=rank, kind="error", **lost)


if __name__ == "__main__":
    sys.exit(main())
