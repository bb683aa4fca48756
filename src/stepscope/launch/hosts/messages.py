"""What the command and a host say to each other over one stream: a line of JSON, then as many bytes as it announces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from stepscope.core.errors import DataError

MARK = b"stepscope-agent/1\n"
"""Written before the first message: what a login shell prints comes earlier, and is skipped."""

_MOST_NOISE_BYTES = 1 << 16
_MOST_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HostMessage:
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""


def send(stream: BinaryIO, kind: str, body: bytes = b"", **fields: Any) -> None:
    """Write one message. Raises OSError where the other side is gone."""
    head = json.dumps({"kind": kind, "bytes": len(body), **fields}, separators=(",", ":"))
    stream.write(head.encode() + b"\n" + body)
    stream.flush()


def receive(stream: BinaryIO) -> HostMessage | None:
    """Return the next message, or None at the end of the stream. Raises DataError for what is no message."""
    line = stream.readline(_MOST_HEAD_BYTES)
    if not line.endswith(b"\n"):
        return None
    try:
        head = json.loads(line)
        kind, size = str(head.pop("kind")), int(head.pop("bytes"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"expected a message, found {line[:80]!r}") from error
    body = bytearray()
    while len(body) < size:
        part = stream.read(size - len(body))
        if not part:
            return None
        body += part
    return HostMessage(kind, head, bytes(body))


def skip_to_mark(stream: BinaryIO) -> bool:
    """Read what precedes ``MARK``; return False where the stream ends, or goes on for long, without it."""
    seen = 0
    while seen < _MOST_NOISE_BYTES:
        line = stream.readline(_MOST_NOISE_BYTES)
        if not line:
            return False
        if line.endswith(MARK):
            return True
        seen += len(line)
    return False
