"""Traces of any size: a real one repeated in Kineto's own layout, as if the job had run on.

    python -m benchmarks._trace_sizes SOURCE TARGET --copies 50 [--rank 3 --world-size 8]

Every copy is shifted in time; its correlation and External ids, flow ids, sequence numbers and step numbers go on
counting. Numbers keep their decimals. A re-dumped copy (``--dump indented|compact``) keeps every number's text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
from isal import igzip

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_NUMBER = re.compile(
    rb'("ts": |"correlation": |"External id": |"ph": "[stf]", "id": |"Sequence number": |"Seq": |ProfilerStep#)'
    rb"(\d+)(?:\.(\d+))?(?=[,\s\"}])"
)
_GAP_US = 1000
_RANK = re.compile(rb'("distributedInfo": \{[^}]*?"rank": )\d+')


@dataclass(frozen=True, slots=True)
class Template:
    """A trace cut at the numbers that change from copy to copy.

    ``texts`` has one entry more than ``numbers``; a number is (kind, digits without the point, decimals).
    """

    head: bytes
    texts: list[bytes]
    numbers: list[tuple[bytes, int, int]]
    tail: bytes
    strides: dict[bytes, int]  # per kind, in whole units
    event_count: int


def template(source: Path) -> Template:
    """Read a trace in Kineto's layout. Raises ValueError for another layout."""
    opener = igzip.open if source.suffix == ".gz" else open
    with opener(source, "rb") as file:
        text: bytes = file.read()
    start = _EVENTS.search(text)
    end = text.rfind(b"\n  ]")
    if start is None or end < 0 or b"\n  },\n  {" not in text:
        raise ValueError(f"{source}: not in Kineto's own layout")
    events = text[start.end() : end]
    texts, numbers, position = [], [], 0
    extent: dict[bytes, tuple[int, int]] = {}
    for match in _NUMBER.finditer(events):
        kind, whole, fraction = match[1], match[2], match[3] or b""
        texts.append(events[position : match.start(2)])
        numbers.append((kind, int(whole + fraction), len(fraction)))
        position = match.end(2) if match[3] is None else match.end(3)
        value = int(whole)
        low, high = extent.get(kind, (value, value))
        if value:
            extent[kind] = min(low, value), max(high, value)
    texts.append(events[position:])
    strides = {kind: high - low + 1 for kind, (low, high) in extent.items()}
    strides[b'"ts": '] += _GAP_US
    return Template(
        head=text[: start.end()],
        texts=texts,
        numbers=numbers,
        tail=text[end:],
        strides=strides,
        event_count=events.count(b"\n  },\n  {") + 1,
    )


def copies(cut: Template, count: int) -> Iterator[bytes]:
    """The text of the events, copy by copy, without the comma between them."""
    for number in range(count):
        pieces = []
        for text, (kind, digits, decimals) in zip(cut.texts, cut.numbers, strict=False):
            pieces.append(text)
            value = digits + number * cut.strides[kind] * 10**decimals
            if decimals:
                plain = b"%d" % value
                pieces += [plain[:-decimals], b".", plain[-decimals:]]
            else:
                pieces.append(b"%d" % value)
        pieces.append(cut.texts[-1])
        yield b"".join(pieces)


def write(cut: Template, target: Path, *, count: int, rank: int | None = None, world_size: int | None = None) -> int:
    """Write ``count`` copies as one file; its events. ``rank``: replaces what the source records."""
    head = cut.head
    if rank is not None:
        head, replaced = _RANK.subn(rb"\g<1>%d" % rank, head, count=1)
        if not replaced:
            start = head.index(b'"')
            world = b'"distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d},\n  '
            head = head[:start] + world % (rank, world_size or rank + 1) + head[start:]
    opened: IO[bytes] = igzip.open(target, "wb", compresslevel=1) if target.suffix == ".gz" else target.open("wb")
    with opened as file:
        file.write(head)
        for number, text in enumerate(copies(cut, count)):
            file.write((b"," if number else b"") + text)
        file.write(cut.tail)
    return cut.event_count * count


def redump(source: Path, target: Path, *, indented: bool) -> None:
    """The same trace as another JSON writer would leave it, with every number's text kept."""
    text = source.read_bytes()
    # msgspec.json.format works on text: numbers are not parsed.
    target.write_bytes(msgspec.json.format(text, indent=2 if indented else -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--dump", choices=("indented", "compact"))
    given = parser.parse_args()
    if given.dump:
        redump(given.source, given.target, indented=given.dump == "indented")
        return
    cut = template(given.source)
    print(write(cut, given.target, count=given.copies, rank=given.rank, world_size=given.world_size))


if __name__ == "__main__":
    main()
