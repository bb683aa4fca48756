"""Questions to one host and its answers in time, whatever carries them."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Any, BinaryIO

from stepscope import __version__
from stepscope.core.errors import DataError, MissingError
from stepscope.launch.hosts import messages
from stepscope.launch.hosts.messages import HostMessage

HELLO_S = 60.0
_WAITING = 64


class HostLost(MissingError):  # noqa: N818 - reads as the state it reports
    """A host cannot be used, or went away."""

    def __init__(self, host: str, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, why=why, fix=fix)
        self.host = host


class Conversation:
    """An agent that answers on ``read`` what is written to ``write``; ``host`` names it.

    Messages arrive in an inbox as (conversation, message); the last one is (conversation, None).
    """

    def __init__(self, host: str, read: BinaryIO, write: BinaryIO) -> None:
        self.host = host
        self._from, self._to = read, write
        self._inbox: queue.Queue[tuple[Conversation, HostMessage | None]] = queue.Queue(_WAITING)
        self._reader = threading.Thread(target=self._read, name=f"stepscope-{host}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError, DataError):
            if messages.skip_to_mark(self._from):
                while (message := messages.receive(self._from)) is not None:
                    self._inbox.put((self, message))
        self._inbox.put((self, None))

    def forward_to(self, inbox: queue.Queue[tuple[Conversation, HostMessage | None]]) -> None:
        """Put what arrives from now on into ``inbox``; call this before the question whose answers belong there."""
        self._inbox = inbox

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Send a message. Raises HostLost where the agent is gone."""
        try:
            messages.send(self._to, kind, body, **fields)
        except (OSError, ValueError):
            raise self.lost() from None

    def answer(self, *, timeout_s: float) -> HostMessage:
        """Return the next message. Raises HostLost when none comes in time, MissingError when it is a failure."""
        try:
            _, message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise HostLost(
                self.host,
                f"{self.host} does not answer within {timeout_s:.0f} s",
                why="it is connected, or still connects; stepscope on the host has not answered",
                fix=f"try {self.by_hand()}",
            ) from None
        if message is None:
            raise self.lost()
        if message.kind == "failed":
            failure = message.fields
            raise MissingError(f"{self.host}: {failure['what']}", why=failure["why"], fix=failure["fix"])
        return message

    def ask(self, kind: str, *, timeout_s: float, **fields: Any) -> HostMessage:
        self.send(kind, **fields)
        return self.answer(timeout_s=timeout_s)

    def greet(self) -> HostMessage:
        """Return the agent's first message. Raises HostLost where there is none, or when it is of another version of
        stepscope."""
        hello = self.answer(timeout_s=HELLO_S)
        theirs = hello.fields.get("version")
        if theirs != __version__:
            raise HostLost(
                self.host,
                f"{self.host} has stepscope {theirs}, and this is {__version__}",
                why="command and ranks exchange files of one version",
                fix=f"install the wheel of stepscope {__version__} on {self.host} (`make wheel` in a checkout)",
            )
        return hello

    def hang_up(self) -> None:
        """End the agent's input; it may still send what it has."""
        with suppress(OSError, ValueError):
            self._to.close()

    def lost(self) -> HostLost:
        """Say why the conversation ended."""
        return HostLost(self.host, f"{self.host} went away", why="its connection ended", fix=f"try {self.by_hand()}")

    def by_hand(self) -> str:
        """Return what a user may try by hand."""
        return f"`ping {self.host}`"

    def drain(self) -> None:
        """Let the reader end, which may wait for room."""
        while self._reader.is_alive():
            with suppress(queue.Empty):
                self._inbox.get(timeout=0.05)
