"""Classes of kernels that the user states: by options, or in a file beside the traces, which holds for every command."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.traces.sections import KernelClass, StatedClass

CLASSES: dict[str, KernelClass] = {
    "computation": "computation", "compute": "computation", "communication": "communication", "comm": "communication",
    "copies": "copies", "copy": "copies", "memory": "copies",
}  # fmt: skip
"""How a class may be spelled."""

_BETWEEN = r"(\s*[=,]\s*|\s*:\s+|\s+)"
_LINE = re.compile(rf"(?P<first>\w+){_BETWEEN}(?P<rest>\S.*)")
_TURNED = re.compile(rf"(?P<rest>.*?\S){_BETWEEN}(?P<first>\w+)")


def stated_classes(communication: Sequence[str], file: Path | None) -> tuple[StatedClass, ...]:
    """Return what ``--communication`` and ``--class`` state; patterns given one by one count first. Raises UsageError."""
    patterns: list[StatedClass] = [("communication", pattern) for pattern in communication]
    if not all(communication):
        raise UsageError("--communication '': expected a pattern of kernels' names", fix="--communication 'my_ep::.*'")
    return (*patterns, *(read_classes(file) if file is not None else ()))


def read_classes(file: Path) -> tuple[StatedClass, ...]:
    """Read a file with a class and a pattern a line, in either order. Raises UsageError."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file}: cannot be read", why=getattr(error, "strerror", None) or "it is not a text"
        ) from error
    stated = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = next((m for form in (_LINE, _TURNED) if (m := form.fullmatch(text)) and m["first"] in CLASSES), None)
        if match is None:
            word = text.split()[0]
            raise UsageError(
                f"{file}, line {number}: {unknown('class', word, tuple(CLASSES))}",
                fix="a line is a class and a pattern of kernels' names: communication my_ep::.*",
            )
        stated.append((CLASSES[match["first"]], match["rest"].strip("\"'")))
    return tuple(stated)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return what fits a kernel's name: the pattern as it is, as a regular expression on a part of the name, or, where it is
    none, with ``*`` for anything."""
    try:
        expression = re.compile(pattern)
    except re.error:
        expression = re.compile(fnmatch.translate(f"*{pattern}*"))
    return lambda name: pattern in name or expression.search(name) is not None
