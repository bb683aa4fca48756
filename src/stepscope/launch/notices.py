"""What happens to a job, for whoever is not at the terminal: each recipient gets it once, from a thread of its own.

Nothing here holds up a job, or changes how it ends: what a recipient does wrong is a note in the job's folder.
"""

from __future__ import annotations

import html
import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from threading import Thread
from typing import Literal
from urllib.parse import urlsplit

from stepscope import __version__
from stepscope.core import processes
from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.records.codec import encode_document, headed, plain
from stepscope.records.finding import JobVerdict
from stepscope.store.layout import ProfileLayout

TIMEOUT_S = 5.0
"""For one notice to one recipient."""

LAST_S = 5.0
"""After the end of a job, for all that is still to be sent: by then the job's own output is complete."""

KILL_S = 0.5
"""Beyond that: a command that is still at work is killed meanwhile."""

Event = Literal["verdict", "hang", "end"]


@record
class Notice:
    """What is sent. text: in one line. body: all of it, as JSON."""

    event: Event
    created: str
    text: str
    body: bytes


@record
class Recipient:
    """Where notices go. kind: what is done with ``place``; ``shown`` has no part of it that may be a secret."""

    kind: Literal["post", "slack", "command"]
    place: str
    shown: str

    def send(self, notice: Notice, timeout_s: float) -> str | None:
        """Send one notice; return why it was not taken, None where it was."""
        if timeout_s <= 0:
            return "the job ended before it was its turn"
        if self.kind == "command":
            return self._run(notice, timeout_s)
        if self.kind == "slack":
            return self._post(json.dumps({"text": html.escape(notice.text, quote=False)}).encode(), timeout_s)
        return self._post(notice.body, timeout_s)

    def _run(self, notice: Notice, timeout_s: float) -> str | None:
        command = shlex.split(self.place)
        try:
            ran = processes.ask(command, environ=os.environ, timeout_s=timeout_s, given=notice.body.decode())
        except OSError as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return f"it did not end within {timeout_s:.0f} s, and was killed"
        last = ran.stderr.strip().rpartition("\n")[2]
        return f"exit code {ran.returncode}{last and f': {last}'}" if ran.returncode else None

    def _post(self, body: bytes, timeout_s: float) -> str | None:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        headers = {"Content-Type": "application/json", "User-Agent": f"stepscope/{__version__}"}
        try:
            with urlopen(Request(self.place, data=body, headers=headers), timeout=timeout_s):
                return None
        except HTTPError as error:
            with error:
                return f"it answered {error.code} {error.reason}"
        except TimeoutError:
            return f"no answer within {timeout_s:.0f} s"
        except (OSError, HTTPException, ValueError) as error:
            return str(error.reason if isinstance(error, URLError) else error) or type(error).__name__


def recipient(text: str) -> Recipient:
    """Read ``URL``, ``slack:URL`` or ``COMMAND``. Raises UsageError."""
    kind: Literal["post", "slack"] = "slack" if text.startswith("slack:") else "post"
    place = text.removeprefix("slack:")
    try:
        parts = urlsplit(place)
        if parts.scheme in ("http", "https") and parts.hostname:
            port = f":{parts.port}" if parts.port else ""
            shown = f"{text.removesuffix(place)}{parts.scheme}://{parts.hostname}{port}/..."
            return Recipient(kind=kind, place=place, shown=shown)
        words = [] if kind == "slack" else shlex.split(text)
    except ValueError:  # a port that is none, quotes that are not closed
        words = []
    if not words or shutil.which(words[0]) is None:
        why = f"there is no program {words[0]}" if words else "it is neither the URL of a recipient nor a command"
        raise UsageError(
            f"--notify {text!r} reaches no one", why=why, fix="https://..., slack:https://..., or a command"
        )
    return Recipient(kind="command", place=text, shown=words[0])


def without_secrets(words: Sequence[str], recipients: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with recipients as they may be shown: who has the URL of a webhook can write there."""
    kept = tuple(words)
    for text in recipients:
        kept = tuple(word.replace(text, recipient(text).shown) for word in kept)
    return kept


class _Line:
    """One recipient, and what waits for it. A thread, as neither names nor connections obey a time limit alone."""

    def __init__(self, to: Recipient) -> None:
        self.to = to
        self.outcomes: SimpleQueue[tuple[Notice, str | None]] = SimpleQueue()
        self.open: list[Notice] = []
        self.failed = False
        self._waiting: SimpleQueue[Notice | None] = SimpleQueue()
        self._until = inf
        self._thread = Thread(target=self._work, name="notices", daemon=True)

    def send(self, notice: Notice) -> None:
        self.open.append(notice)
        try:
            if not self._thread.ident:
                self._thread.start()
            self._waiting.put(notice)
        except RuntimeError as error:  # no more threads are allowed here
            self.outcomes.put((notice, str(error)))

    def end(self, until: float) -> None:
        self._until = until
        self._waiting.put(None)

    def join(self) -> None:
        if self._thread.ident:
            self._thread.join(max(0.0, self._until - time.monotonic()) + KILL_S)

    def _work(self) -> None:
        while (notice := self._waiting.get()) is not None:
            reason = self.to.send(notice, min(TIMEOUT_S, self._until - time.monotonic()))
            self.outcomes.put((notice, reason))


class Notices:
    """What is sent to the recipients of a job."""

    def __init__(self, layout: ProfileLayout, recipients: Iterable[Recipient]) -> None:
        self._layout = layout
        self._lines = [_Line(to) for to in recipients]

    def send(self, event: Event, verdict: JobVerdict, text: str) -> None:
        """Send to every recipient; returns at once. text: the verdict in one line."""
        job, host = self._layout.root.resolve().name, socket.gethostname()
        head, folder, text = headed("notice/1"), str(self._layout.root.absolute()), f"{job} on {host}: {text}"
        document = {"event": event, "job": job, "host": host, "folder": folder, "text": text, "verdict": plain(verdict)}
        notice = Notice(event=event, created=head["created"], text=text, body=encode_document({**head, **document}))
        for line in self._lines:
            line.send(notice)

    def failures(self) -> Iterator[str]:
        """Yield why a recipient did not get a notice, as ``RECIPIENT: why``: once, and again only when it worked in between.
        Each outcome is noted in the folder."""
        for line in self._lines:
            while not line.outcomes.empty():
                notice, reason = line.outcomes.get()
                line.open.remove(notice)
                yield from self._noted(line, notice, reason)

    def close(self) -> Iterator[str]:
        """Wait a little for what is still to be sent, then yield failures."""
        until = time.monotonic() + LAST_S
        for line in self._lines:
            line.end(until)
        with suppress(KeyboardInterrupt):
            for line in self._lines:
                line.join()
        yield from self.failures()
        for line in self._lines:
            for notice in line.open:
                yield from self._noted(line, notice, "no answer by the end of this command")

    def _noted(self, line: _Line, notice: Notice, reason: str | None) -> Iterator[str]:
        outcome = {"at": notice.created, "event": notice.event, "to": line.to.shown, "failed": reason}
        with suppress(OSError), self._layout.notices.open("a") as file:
            file.write(f"{json.dumps(outcome)}\n")
        if reason is not None and not line.failed:
            yield f"{line.to.shown}: {reason}"
        line.failed = reason is not None
