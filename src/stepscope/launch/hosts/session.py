"""A conversation with one host: ssh to it, questions and answers in time, and why there is none.

``localhost`` and this machine's own name need no ssh.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO, cast

from stepscope import __version__
from stepscope.core.dataclass import record
from stepscope.core.processes import die_with_parent
from stepscope.launch.hosts.conversation import Conversation, HostLost

CONNECT_S = 10
ALIVE_S = 5
"""ssh asks a silent host this often; after three questions without an answer the host is lost."""
CLOSE_S = 1.0
"""An agent that is asked to end has no more to say: what it ends itself takes longer, without ssh."""
_OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", f"ServerAliveInterval={ALIVE_S}",
    "-o", "ServerAliveCountMax=3",
)  # fmt: skip
"""They come after the user's own options, so that what --ssh says of one counts."""

AGENT = "stepscope.launch.hosts.agent"


@record
class Reach:
    """How hosts are reached. ssh: the command and its options. python: on the hosts; None: this one's path, else python3."""

    ssh: tuple[str, ...] = ("ssh",)
    python: str | None = None


def is_local(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def command(host: str, reach: Reach) -> list[str]:
    """Return the command line that starts the agent on ``host``."""
    if is_local(host):
        return [reach.python or sys.executable, "-m", AGENT]
    if reach.python is not None:
        script = f"exec {shlex.quote(reach.python)} -m {AGENT}"
    else:
        here = shlex.quote(sys.executable)
        script = f'p={here}; [ -x "$p" ] || p=python3; exec "$p" -m {AGENT}'
    return [*reach.ssh, *_OPTIONS, host, f"exec sh -c {shlex.quote(script)}"]


class HostSession(Conversation):
    """An agent that runs on ``host``, at the other end of ssh. Use as a context manager: leaving it ends the agent and what
    it started.
    """

    def __init__(self, host: str, reach: Reach) -> None:
        """Start ssh and return without waiting for it."""
        self._reach = reach
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        line = command(host, reach)
        try:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM, parent=os.getpid()),
            )
        except OSError as error:
            self._errors.close()
            raise HostLost(
                host,
                f"{line[0]} cannot be started: {error.strerror}",
                why=f"{host} is reached with it",
                fix="install OpenSSH's client, or name another command with --ssh",
            ) from error
        super().__init__(host, cast(BinaryIO, self._process.stdout), cast(BinaryIO, self._process.stdin))

    def __enter__(self) -> HostSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the agent: its input ends; ssh is ended when that does not do."""
        self.hang_up()
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()
        self.drain()
        self._from.close()
        self._errors.close()

    def lost(self) -> HostLost:
        """Say why the conversation ended, by what ssh wrote."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._errors.seek(0)
        stderr = self._errors.read().decode(errors="replace")
        return why_lost(self.host, self._process.returncode, stderr, by_hand=self.by_hand(), python=self._reach.python)

    def by_hand(self) -> str:
        return f"`{' '.join([*self._reach.ssh, '-o', 'BatchMode=yes', self.host, 'true'])}`"


def why_lost(host: str, code: int | None, stderr: str, *, by_hand: str, python: str | None) -> HostLost:
    """Say what ended the conversation with ``host``, by ssh's exit code and what it and the host wrote. Pure."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = lines[-1] if lines else None
    if "Permission denied" in stderr or "Too many authentication failures" in stderr:
        return HostLost(
            host,
            f"{host} asks for a password, or refuses this key",
            why=f"stepscope answers no question of ssh; ssh said: {_line_with(lines, ('denied', 'failures'))}",
            fix=f"give the host your key, for example `ssh-copy-id {host}`, until {by_hand} succeeds",
        )
    if "Host key verification failed" in stderr:
        return HostLost(
            host,
            f"the key of {host} is unknown, or another one than last time",
            why=_line_with(lines, ("host key", "REMOTE HOST", "verification")),
            fix=f"connect by hand, look at the key, accept it: ssh {host}",
        )
    if "No module named" in stderr and "stepscope" in stderr:
        older = re.search(r"No module named '?stepscope\b(?!\.)", stderr) is None
        return HostLost(
            host,
            f"{host} has {'an older stepscope, without --hosts' if older else 'no stepscope'}; this is {__version__}",
            why=last,
            fix=f"install torch and the wheel of stepscope {__version__} there (`make wheel` in a checkout), or name the "
            "Python that has both: --remote-python PATH",
        )
    if code == 127 or "not found" in (last or ""):
        return HostLost(
            host,
            f"{host} has no such Python: {python or f'neither {sys.executable} nor python3'}",
            why=last,
            fix="name the Python that has stepscope: --remote-python PATH",
        )
    if code == 255:
        return HostLost(
            host, f"the connection to {host} failed or broke", why=last and f"ssh said: {last}", fix=f"try {by_hand}"
        )
    ended = "did not start" if code is None else f"ended with code {code}"
    return HostLost(host, f"stepscope on {host} {ended}", why=last, fix=f"try {by_hand}")


def _line_with(lines: Sequence[str], signs: Sequence[str]) -> str | None:
    return next((line for line in lines if any(sign in line for sign in signs)), lines[-1] if lines else None)
