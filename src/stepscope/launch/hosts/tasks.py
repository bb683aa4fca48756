"""The nodes of a world that a launcher has started, as hosts that answer: ``srun stepscope doctor`` on each of them.

The first task listens beside the port at which ranks would meet; one task of each other node connects to it and answers
its questions. Neither torch nor a shared folder takes part.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import BinaryIO, cast

from stepscope.core.errors import MissingError
from stepscope.core.words import counted
from stepscope.launch.hosts.agent import serve
from stepscope.launch.hosts.conversation import Conversation, HostLost
from stepscope.launch.hosts.peers import listening

MEET_S = 60.0
NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE")


def nodes_of(environ: Mapping[str, str]) -> int:
    """Count the nodes of the world that ``environ`` describes (world_environ): 1 where it is on one, or cannot be
    counted."""
    size, local = environ.get("WORLD_SIZE", ""), environ.get("LOCAL_WORLD_SIZE", "")
    if size.isdigit() and local.isdigit() and int(local) > 0:
        return max(1, -(-int(size) // int(local)))
    count = next((environ[name] for name in NODES if environ.get(name, "").isdigit()), "1")
    return max(1, int(count)) if size.isdigit() and int(size) > 1 else 1


def meeting_port(environ: Mapping[str, str]) -> int:
    """Return a port beside the world's own, which torchrun's store has."""
    return int(environ["MASTER_PORT"]) + 1


class TaskSession(Conversation):
    """A task that has connected."""

    def __init__(self, link: socket.socket, address: str) -> None:
        self._link = link
        super().__init__(address, link.makefile("rb"), link.makefile("wb"))

    def greet_as_named(self) -> None:
        """Take the name that the task states. Raises HostLost."""
        self.host = str(self.greet().fields["host"])

    def close(self) -> None:
        """Close the link and its streams; what is under way is read first."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
        self.drain()
        for stream in (self._from, self._to):
            with suppress(OSError):
                stream.close()


def gather(
    environ: Mapping[str, str], nodes: int, stack: ExitStack, *, patience_s: float = MEET_S
) -> list[Conversation]:
    """Await the tasks of the other nodes, which ``stack`` lets go. Raises MissingError when not all come."""
    limit = time.monotonic() + patience_s
    port = meeting_port(environ)
    sessions: list[Conversation] = []
    try:
        server = listening(port)
    except OSError as error:
        raise MissingError(
            f"port {port} cannot be listened at, where the other nodes come: {error.strerror or error}",
            fix="export another MASTER_PORT",
        ) from error
    with server:
        while len(sessions) < nodes - 1:
            server.settimeout(max(0.01, limit - time.monotonic()))
            try:
                link, address = server.accept()
            except TimeoutError:
                came = ", ".join(session.host for session in sessions) or "none"
                raise MissingError(
                    f"{counted(nodes - 1 - len(sessions), 'node')} of {nodes} did not come within {patience_s:.0f} s",
                    why=f"one task of each node connects to port {port} of this one; those that did: {came}",
                    fix="see that `stepscope doctor` runs on each node, and that the network lets TCP through",
                ) from None
            link.settimeout(None)
            session = TaskSession(link, str(address[0]))
            stack.callback(session.close)
            session.greet_as_named()
            sessions.append(session)
    return sessions


def answer_first_task(environ: Mapping[str, str]) -> None:
    """Connect to the first task and answer until it lets go. Raises HostLost when it is not there."""
    address, port = environ["MASTER_ADDR"], meeting_port(environ)
    with _connected_task(address, port) as link, suppress(OSError):
        serve(cast(BinaryIO, link.makefile("rb")), cast(BinaryIO, link.makefile("wb")))


def _connected_task(address: str, port: int) -> socket.socket:
    """Return a link to the first task, once it listens. Raises HostLost where it does not in time."""
    limit = time.monotonic() + MEET_S
    while True:
        try:
            link = socket.create_connection((address, port), timeout=5.0)
        except OSError as error:
            if time.monotonic() > limit:
                raise HostLost(
                    address,
                    f"the first task does not answer at {address}:{port} within {MEET_S:.0f} s",
                    why=error.strerror or str(error),
                    fix="see that `stepscope doctor` runs as rank 0, and that the network lets TCP through",
                ) from None
            time.sleep(0.2)
        else:
            link.settimeout(None)
            return link


def named_apart(tasks: list[Conversation]) -> list[Conversation]:
    """Return the same tasks, those of one host name told apart by a number: containers of one image often share theirs."""
    names = [task.host for task in tasks]
    for number, task in enumerate(tasks):
        if names.count(names[number]) > 1:
            task.host = f"{names[number]}/{number}"
    return tasks
