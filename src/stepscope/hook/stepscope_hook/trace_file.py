"""The file of a window: what torch exported of one session of its profiler, or of two, as one packed trace."""

import gzip
import os
import re
import shutil
import tempfile

GZIP_LEVEL = 1
"""gzip's fastest: the job waits while its trace is written."""

ROOM_BYTES = 4 << 30
"""A temporary folder with less room may be too small: torch can write a trace only once."""

EVENTS = b'"traceEvents": ['
HEAD_BYTES, TAIL_BYTES = 4 << 20, 1 << 16
"""Bytes within which the events begin and, from the end, end."""
_BASE = re.compile(rb'"baseTimeNanoseconds": *(\d+)')
_FLOW = re.compile(rb'^( *"id": *)(\d+)')
FLOWS = 1 << 40
"""Added to the ids of a second session's arrows, which torch counts from 1 in each; its other ids go on in the process."""


def on_this_host(folder):
    """Return a new folder for a trace while it is made, where ``folder`` may be on another host; None: make it there.

    torch writes it in pieces of kilobytes, ten times the bytes that are kept, and the job waits for each.
    """
    try:
        own = tempfile.gettempdir()
        if os.stat(own).st_dev != os.stat(folder).st_dev and shutil.disk_usage(own).free >= ROOM_BYTES:
            return tempfile.mkdtemp(prefix="stepscope-")
    except OSError:
        pass  # no folder for temporary files
    return None


def whole(path):
    """Raise OSError where torch has left no trace, or half of one: it does not say when a disk is full."""
    if not os.path.exists(path):
        raise OSError("torch wrote no file: the disk is full, or the folder cannot be written")
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - 64, 0))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("torch wrote half a file: the disk is full")


def pack(parts, target, unfinished=b""):
    """Write the traces of ``parts``, in order of time, as one packed file; without the second where they cannot be joined.

    unfinished: a name that becomes "unfinished step".
    """
    with gzip.open(target, "wb", compresslevel=GZIP_LEVEL) as file:
        places = [_events(part) for part in parts]
        if len(parts) == 2 and None not in places and places[0][2] == places[1][2]:
            _join(parts, places, file)
            return
        with open(parts[0], "rb") as source:
            if unfinished:
                for line in source:
                    file.write(line.replace(unfinished, b'"unfinished step"'))
            else:
                shutil.copyfileobj(source, file, 1 << 20)


def _join(parts, places, file):
    """Write the second file, with the first one's events before its own."""
    with open(parts[0], "rb") as first, open(parts[1], "rb") as second:
        file.write(second.read(places[1][0]))
        first.seek(places[0][0])
        _copy(first, file, places[0][1] - places[0][0])
        file.write(b",\n  ")
        while second.tell() < places[1][1]:
            line = second.readline()
            if b'"id"' in line:
                line = _FLOW.sub(lambda match: b"%s%d" % (match.group(1), int(match.group(2)) + FLOWS), line)
            file.write(line)
        shutil.copyfileobj(second, file, 1 << 20)


def _copy(source, target, count):
    while count > 0:
        block = source.read(min(count, 1 << 20))
        if not block:
            raise OSError("the file has become shorter")
        target.write(block)
        count -= len(block)


def _events(path):
    """Return (where its first event begins, where the last one ends, what its times count from); None: not as expected."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        begin = head.find(EVENTS)
        base = _BASE.search(head[:begin] if begin >= 0 else b"")
        first = head.find(b"{", begin)
        at = max(os.path.getsize(path) - TAIL_BYTES, 0)
        file.seek(at)
        end = file.read().rfind(b"}\n  ]")
    if begin < 0 or first < 0 or end < 0 or base is None or at + end <= first:
        return None
    return first, at + end + 2, base.group(1)
