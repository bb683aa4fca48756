"""Files that are no traces of the device, by their beginning: what each is, and what to give instead. One table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope.core.dataclass import record


@record
class OtherFile:
    """mark: what the beginning holds. title: what it is. instead: what to do, or to give."""

    mark: re.Pattern[bytes]
    title: str
    instead: str


def _other(mark: bytes, title: str, instead: str) -> OtherFile:
    return OtherFile(mark=re.compile(mark, re.DOTALL | re.IGNORECASE), title=title, instead=instead)


_PROFILE = (
    "record the device's work with torch.profiler (prof.export_chrome_trace), or run `stepscope profile -- COMMAND`"
)
_UNPACK = "unpack it first"

WHAT_IF = "a timeline of operations as a what-if analysis of stragglers writes it, without kernels and launches"
CHAKRA = "a Chakra execution trace of operators and what they depend on, without the device's times"

OTHER_FILES = (
    _other(
        rb'"schema"\s*:\s*"[\d.]+-chakra|\[pytorch\|profiler\|execution_(?:trace|graph)\||"ctrl_deps"\s*:|'
        rb"\A[\x00-\xff]{1,2}(?:\n[\x03-\x0f]\d+\.\d+\.\d+|\x12[\x00-\xff]{1,2}\n[\x00-\xff](?:schema|version|pid))",
        CHAKRA,
        "give the profiler's own export of the same steps: profile(execution_trace_observer=...) and "
        "prof.export_chrome_trace write one each",
    ),
    _other(rb'"traceEvents"\s*:\s*(?:null|\{|")', "a trace whose traceEvents is not a list", "export it again"),
    _other(
        rb'\A\s*\{[^\n]*"ph"\s*:[^\n]*\},?\s*\n\s*\{', "one event a line, without a list around them",
        "make one list of them: jq -s . FILE > trace.json",
    ),
    _other(rb"\A\s*[\[{]\s*\{?\s*'", "Python objects as print writes them, which is not JSON", "write it with json.dump"),
    _other(rb"\Aversion https://git-lfs", "a pointer of Git LFS, without the content itself", "git lfs pull"),
    _other(rb"\A\s*<(?:!doctype|html|\?xml)", "a web page or XML", "download the file itself; its page may need a login"),
    _other(rb"\APK\x03\x04", "a zip archive", _UNPACK),
    _other(rb"\ABZh\d", "packed with bzip2", _UNPACK),
    _other(rb"\A\xfd7zXZ", "packed with xz", _UNPACK),
    _other(rb"\A\x04\x22\x4d\x18", "packed with lz4", _UNPACK),
    _other(rb"\A.{257}ustar", "a tar archive", _UNPACK),
    _other(rb"\A\x80[\x02-\x05]", "a Python pickle", _PROFILE),
)  # fmt: skip

_WHAT_IF_NAMES = re.compile(
    r"(forward|backward)-(compute|send|recv)|grads-(reduce-scatter|all-reduce)|params-all-gather|tp-(allreduce|allgather)"
)


def other_file(head: bytes) -> str | None:
    """Return what a file is that begins so; None where no entry fits."""
    return next((entry.title for entry in OTHER_FILES if entry.mark.search(head)), None)


def other_timeline(categories: Iterable[str]) -> str | None:
    """Return what a timeline is whose spans have these categories; None where it is none of a known kind."""
    return WHAT_IF if any(_WHAT_IF_NAMES.match(category) for category in categories) else None


def instead_of(title: str) -> str | None:
    """Return what to give instead of a file that is called so; None for another title."""
    if title == WHAT_IF:
        return _PROFILE
    return next((entry.instead for entry in OTHER_FILES if entry.title == title), None)
