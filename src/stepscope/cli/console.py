"""Results go to stdout, everything else to stderr. rich is loaded on first use."""

from __future__ import annotations

import codecs
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO, cast

from stepscope.core.errors import Interrupted, MissingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDE = 200
"""Characters a line in a pipe or a file, where COLUMNS does not say."""


@cache
def out() -> Console:
    """Return stdout, for results. Not a terminal: no colour, and COLUMNS wide or wide enough never to wrap a table."""
    return _console()(soft_wrap=False, width=_width(sys.stdout), **_PLAIN)


@cache
def err() -> Console:
    """Return stderr, for progress, logs and errors."""
    return _console()(stderr=True, width=_width(sys.stderr), **_PLAIN)


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""Settings that show text as it is: names of files and runs may hold what rich takes for markup."""

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line end, and those that turn the direction of writing."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@cache
def _console() -> type[Console]:
    """Return rich's console; what it prints moves no cursor and sets no title, whatever a file is called."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Visible(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = visible(segment.text)
                yield segment if segment.control or text == segment.text else Segment(text, segment.style)

    return Visible


def say(text: str | Text = "", style: str = "") -> None:
    """Print a line of results on stdout, which is left to the terminal to break."""
    out().print(text, style=style, soft_wrap=True)


def log(text: str, style: str = "dim") -> None:
    """Print a line of progress or doubt on stderr, which is left to the terminal to break."""
    err().print(text, style=style, soft_wrap=True)


def visible(text: str) -> str:
    """Return ``text`` without control characters; bytes of a file name that are no UTF-8 become replacement characters."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _UNSEEN.sub("", text))


def _width(stream: TextIO) -> int | None:
    """Return the characters a line; None: rich asks the terminal."""
    if stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else WIDE


def typed() -> tuple[str, ...]:
    """Return the command line, whatever file started the program (``python -m stepscope``)."""
    return ("stepscope", *sys.argv[1:])


def print_json(document: bytes | str) -> None:
    """Print exactly one JSON document on stdout."""
    text = document.decode() if isinstance(document, bytes) else document
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def print_document(document: Mapping[str, Any]) -> None:
    """Print what a command says with --json, on stdout: schema, version and time as in ``document``, then the command."""
    from stepscope.records.codec import encode_document

    head = {key: document[key] for key in ("schema", "tool_version", "created")}
    print_json(encode_document({**head, "command": typed(), **document}))


class OutputError(MissingError):
    """stdout takes no more: a full disk, a terminal that has gone."""


class ReaderGone(Interrupted):
    """The program at the other end of a pipe has ended (``| head -1``): nobody wants the rest."""

    def __init__(self, what: str) -> None:
        super().__init__(what, signum=signal.SIGPIPE)


@contextmanager
def checked_streams() -> Iterator[None]:
    """Within the block, stdout and stderr that cannot be written say so in stepscope's own errors, once.

    A lost stderr alone stops nothing: it carries no results. A pipe without a reader stops the command on both.
    """
    before = sys.stdout, sys.stderr
    sys.stdout = _checked(sys.stdout, 1, _stdout_failed)
    sys.stderr = _checked(sys.stderr, 2, _stderr_failed)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _stdout_failed(error: OSError) -> None:
    if error.errno == errno.EPIPE:
        raise ReaderGone("the reader of stdout has gone") from error
    raise OutputError("cannot write to stdout", why=error.strerror or str(error)) from error


def _stderr_failed(error: OSError) -> None:
    if error.errno == errno.EPIPE:
        raise ReaderGone("the reader of stderr has gone") from error


def _checked(stream: TextIO | None, descriptor: int, failed: Callable[[OSError], None]) -> TextIO:
    if stream is None:  # closed by whoever started this process
        stream = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as the process
    if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
        codecs.register_error("stepscope", _plainer)
        stream.reconfigure(errors="stepscope")
    return cast(TextIO, _Checked(stream, descriptor, failed))


_PLAINER = str.maketrans(
    {
        "•": "*", "·": "-", "→": ">", "–": "-", "—": "-", "─": "-", "━": "-", "│": "|", "┃": "|", "±": "+", "×": "x",
        "…": ".", "’": "'", "‘": "'", "“": '"', "”": '"', "µ": "u", "μ": "u", "█": "#", "≥": ">", "≤": "<",
    }
)  # fmt: skip
"""What stands for a character, one for one, so that columns stay where they are."""


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Return what a terminal without UTF-8 (LC_ALL=POSIX) shows for a character that it does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAINER)
    return text.encode("ascii", "replace").decode("ascii"), error.end


class _Checked:
    """A text stream whose failures go to ``failed``; after the first one, what is written vanishes."""

    def __init__(self, stream: TextIO, descriptor: int, failed: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._failed = failed

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        # Text is still buffered: without this the interpreter would try, and fail, to write it at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)
        self._failed(error)
