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
from collections.abc import Iterator, Sequence
from contextlib import suppress
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

TIMEOUT_S, LAST_S = 5.0, 5.5
"""For one notice to one recipient; after the end of a job, for all that is under way: a command was killed by then."""

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

    def send(self, notice: Notice) -> str | None:
        """Send one notice; return why it was not taken, None where it was."""
        if self.kind == "command":
            return self._run(notice.body.decode())
        if self.kind == "slack":
            return self._post(json.dumps({"text": html.escape(notice.text, quote=False)}).encode())
        return self._post(notice.body)

    def _run(self, given: str) -> str | None:
        try:
            ran = processes.ask(shlex.split(self.place), environ=os.environ, timeout_s=TIMEOUT_S, given=given)
        except OSError as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return f"it did not end within {TIMEOUT_S:.0f} s, and was killed"
        last = ran.stderr.strip().rpartition("\n")[2]
        return f"exit code {ran.returncode}{last and f': {last}'}" if ran.returncode else None

    def _post(self, body: bytes) -> str | None:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        headers = {"Content-Type": "application/json", "User-Agent": f"stepscope/{__version__}"}
        try:
            with urlopen(Request(self.place, data=body, headers=headers), timeout=TIMEOUT_S):
                return None
        except HTTPError as error:
            with error:
                return f"it answered {error.code} {error.reason}"
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:.0f} s"
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


class _Sending(Thread):
    """One notice on its way to one recipient. A thread, as neither names nor connections obey a time limit alone."""

    def __init__(self, notice: Notice, to: Recipient) -> None:
        super().__init__(name="notice", daemon=True)
        self.notice = notice
        self.to = to
        self.failed: str | None = "no answer by the end of this command"
        try:
            self.start()
        except RuntimeError as error:  # no more threads are allowed here
            self.failed = str(error)

    def run(self) -> None:
        self.failed = self.to.send(self.notice)


class Notices:
    """What is sent to the recipients of a job."""

    def __init__(self, layout: ProfileLayout, recipients: Sequence[Recipient]) -> None:
        self._layout = layout
        self._recipients = recipients
        self._sent: list[_Sending] = []
        self._failing: set[Recipient] = set()

    def send(self, event: Event, verdict: JobVerdict, text: str) -> None:
        """Send to every recipient; returns at once. text: the verdict in one line."""
        job, host = self._layout.root.resolve().name, socket.gethostname()
        head, folder, text = headed("notice/1"), str(self._layout.root.absolute()), f"{job} on {host}: {text}"
        document = {"event": event, "job": job, "host": host, "folder": folder, "text": text, "verdict": plain(verdict)}
        notice = Notice(event=event, created=head["created"], text=text, body=encode_document({**head, **document}))
        self._sent += [_Sending(notice, to) for to in self._recipients]

    def failures(self, *, last: bool = False) -> Iterator[str]:
        """Yield why a recipient did not get a notice, as ``RECIPIENT: why``: once, and again only when it worked in between.
        Each outcome is noted in the folder. last: also of what is still under way."""
        for sending in [sent for sent in self._sent if last or not sent.is_alive()]:
            self._sent.remove(sending)
            notice, to, failed = sending.notice, sending.to, sending.failed
            outcome = {"at": notice.created, "event": notice.event, "to": to.shown, "failed": failed}
            with suppress(OSError), self._layout.notices.open("a") as file:
                file.write(f"{json.dumps(outcome)}\n")
            if failed is None:
                self._failing.discard(to)
            elif to not in self._failing:
                self._failing.add(to)
                yield f"{to.shown}: {failed}"

    def close(self) -> Iterator[str]:
        """Wait a little for what is under way, then yield failures."""
        until = time.monotonic() + LAST_S
        with suppress(KeyboardInterrupt):
            for sending in self._sent:
                if sending.is_alive():
                    sending.join(max(0.0, until - time.monotonic()))
        yield from self.failures(last=True)
