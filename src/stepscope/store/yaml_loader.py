"""YAML without its traps, and with the position of every value.

Plain scalars follow the YAML 1.2 core schema in its unambiguous part: ``1e-4`` is a number, only ``true`` and ``false``
are booleans, and a scalar that YAML readers disagree about (``yes``, ``012``, ``1:30``, ``1_000``, ``0x1f``) is a
mistake that the user is told how to spell. Duplicate keys, tags, merge keys and several documents are mistakes too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import nearest_path

Path = tuple[str | int, ...]
"""Where a value stands in a document: ``("axes", "world_size", 1)``."""


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file (1-based line and column) or, for an option of the command line, the option itself (line 0).

    names_the_key: the option stands for one key only, so that a problem need not name it again.
    """

    source: str
    line: int = 0
    column: int = 0
    names_the_key: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: where it stands, the key path it concerns, and what to do about it.

    advice: what to do, where somebody who knows the key may know better; printed after the message.
    """

    mark: Mark
    path: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.message}: {self.advice}" if self.advice else self.message
        named = self.path and not self.mark.names_the_key
        return f"{self.mark}: {self.path}: {text}" if named else f"{self.mark}: {text}"


def path_text(path: Path) -> str:
    """Write the path ``("axes", "world_size", 1)`` as ``axes.world_size[1]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def raise_problems(source: str, problems: Iterable[Problem]) -> None:
    """Raise one UsageError that lists every problem in file order; return when there is none."""
    unique = sorted(set(problems))
    if not unique:
        return
    count = "1 error" if len(unique) == 1 else f"{len(unique)} errors"
    lines = "\n".join(f"  {problem}" for problem in unique)
    raise UsageError(f"{source}: {count}\n{lines}")


MAX_VALUES = 100_000
"""Most values of a file, more than any matrix needs: stops one whose aliases multiply (the "billion laughs")."""

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_OTHER_BASE = re.compile(r"[-+]?0[xob][0-9a-fA-F_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9_.]*_[0-9_.]*(?:[eE][-+]?[0-9]+)?")
_OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NULLS = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}


@record
class Document:
    """A parsed file: plain values, the mark of every path, and the mistakes found while reading.

    A mapping entry is marked at its key, a list item at the item.
    """

    source: str
    value: Any
    marks: Mapping[Path, Mark]
    problems: tuple[Problem, ...] = ()

    def mark(self, path: Path) -> Mark:
        """Return the mark of ``path`` or of the nearest thing that contains it."""
        for end in range(len(path), -1, -1):
            nearest = self.marks.get(path[:end])
            if nearest is not None:
                return nearest
        return Mark(self.source)

    def problem(self, path: Path, message: str) -> Problem:
        return Problem(self.mark(path), path_text(path), message)


def read_yaml(file: FilePath) -> Document:
    """Read the document in ``file``. Unreadable, not UTF-8 or no YAML at all: UsageError with file, line and column."""
    try:
        if not str(file).startswith("/dev/") and file.is_fifo():
            raise OSError("it is a pipe, and possibly no process writes to it")
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{file} does not exist", fix=nearest_path(FilePath(file))) from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder, not a YAML file", fix="name the file") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {file}", why=error.strerror or str(error), fix="check the path and its permissions"
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{file}:{line}: not UTF-8 text",
            why=f"byte {error.start} is {data[error.start]:#04x}",
            fix="save it as UTF-8",
        ) from error
    return parse_yaml(text, source=str(file))


def parse_yaml(text: str, *, source: str) -> Document:
    """Read the one document in ``text``; ``source`` names it in errors. Syntax errors raise UsageError."""
    try:
        node = _yaml_node(text)
        reader = _Reader(source)
        value = None if node is None else reader.read(node, ())
    except yaml.YAMLError as error:
        raise _syntax_error(error, source) from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested too deeply") from error
    return Document(source=source, value=value, marks=reader.marks, problems=tuple(reader.problems))


def _yaml_node(text: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def parse_value(text: str, *, source: str) -> Any:
    """Read one value typed on the command line by the same rules; mistakes raise UsageError."""
    document = parse_yaml(text, source=source)
    if document.problems:
        first = document.problems[0]
        raise UsageError(f"{source}: {first.message}: {first.advice}" if first.advice else f"{source}: {first.message}")
    return document.value


def _syntax_error(error: yaml.YAMLError, source: str) -> UsageError:
    """Return our error for one of the parser's: place, problem, and how to fix it."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        problem = error.problem or "not valid YAML"
        if "single document" in (error.context or ""):
            problem = "a second document starts here; one file holds one matrix"
        fix = "indent with spaces, not tabs" if r"'\t'" in problem else None
        why = error.context if error.context and "single document" not in error.context else None
        return UsageError(f"{where}: {problem}", why=why, fix=fix)
    if isinstance(error, yaml.reader.ReaderError):
        return UsageError(f"{source}: not readable as YAML", why=f"{error.reason} at character {error.position}")
    return UsageError(f"{source}: not readable as YAML", why=str(error))


@dataclass(slots=True)
class _Reader:
    """Turns YAML nodes into plain values, noting positions and mistakes on the way."""

    source: str
    marks: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    open_nodes: set[int] = field(default_factory=set)
    num_values: int = 0

    def read(self, node: yaml.Node, path: Path) -> Any:
        """Return the value of a node; what is wrong is collected. Raises UsageError for too many values."""
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise UsageError(f"{self.source}: more than {MAX_VALUES} values", fix="write fewer, or use fewer aliases")
        self.marks.setdefault(path, self._mark(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self.open_nodes:
            self._complain(node, path, "an alias that contains itself")
            return None
        self.open_nodes.add(id(node))
        value = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        self.open_nodes.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """Return a mapping; a key that is given twice is complained of."""
        self._check_tag(node, path, "tag:yaml.org,2002:map")
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in values:
                first = self.marks[(*path, key)]
                self._complain(key_node, (*path, key), f"given twice; the first is in line {first.line}")
                continue
            self.marks[(*path, key)] = self._mark(key_node)
            values[key] = self.read(value_node, (*path, key))
        return values

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        """Return a key as text; None, with a complaint, for any other."""
        if not isinstance(node, yaml.ScalarNode):
            self._complain(node, path, "a key must be text")
            return None
        if node.tag == "tag:yaml.org,2002:merge":
            self._complain(node, path, "merge keys (<<) are not supported: write the values out")
            return None
        return str(node.value)

    def _sequence(self, node: yaml.Node, path: Path) -> list[Any]:
        self._check_tag(node, path, "tag:yaml.org,2002:seq")
        return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]

    def _check_tag(self, node: yaml.Node, path: Path, plain: str) -> None:
        if node.tag != plain:
            self._complain(node, path, f"tags are not supported: remove {_tag_text(node.tag)}")

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        """Return a plain value; one of an unclear type is complained of."""
        text = str(node.value)
        if node.style is not None:  # quoted or a block: text, whatever it looks like
            self._check_tag(node, path, "tag:yaml.org,2002:str")
            return text
        # A plain scalar's implicit tag is what YAML 1.1 makes of the text; anything else was written by hand.
        implied = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        self._check_tag(node, path, implied)
        value, mistake = plain_scalar(text)
        if mistake is not None:
            self._complain(node, path, mistake, advice=_boolean_advice(text))
        return value

    def _complain(self, node: yaml.Node, path: Path, message: str, *, advice: str = "") -> None:
        self.problems.append(Problem(self._mark(node), path_text(path), message, advice))

    def _mark(self, node: yaml.Node) -> Mark:
        start = node.start_mark
        return Mark(self.source, start.line + 1, start.column + 1)


def _is_old_boolean(text: str) -> bool:
    return text.lower() in _OLD_BOOLEANS and text in {text.lower(), text.upper(), text.capitalize()}


def _boolean_advice(text: str) -> str:
    """Say what to write for a boolean; a key that takes no boolean knows better."""
    return f"write {_OLD_BOOLEANS[text.lower()]}, or quote it" if _is_old_boolean(text) else ""


def _tag_text(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def plain_scalar(text: str) -> tuple[Any, str | None]:
    """Return what an unquoted scalar means, and the complaint when readers of YAML disagree about it."""
    if text in _NULLS:
        return None, None
    if text in _TRUE:
        return True, None
    if text in _FALSE:
        return False, None
    if _is_old_boolean(text):
        return text, f"{text} is a boolean to some YAML readers and text to others"
    if _INT.fullmatch(text):
        return int(text), None
    if _LEADING_ZERO.fullmatch(text):
        return text, f"{text} is octal to some YAML readers: write {int(text)}, or quote it"
    if _OTHER_BASE.fullmatch(text):
        return text, f"{text}: write the number in decimal, or quote it"
    if _SEXAGESIMAL.fullmatch(text):
        return text, f"{text} is a base-60 number to some YAML readers: write it in decimal, or quote it"
    if _UNDERSCORED.fullmatch(text):
        return text, f"{text} is a number to some YAML readers: write {text.replace('_', '')}, or quote it"
    if _SPECIAL_FLOAT.fullmatch(text):
        return text, f"{text} is not a finite number"
    if _FLOAT.fullmatch(text):
        number = float(text)
        return (number, None) if math.isfinite(number) else (text, f"{text} is too large for a number")
    return text, None
